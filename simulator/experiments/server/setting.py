"""What becomes of one scenario key on a real server: flags, a line on what the server lacks, or both."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from simulator.config.build import Machine
from simulator.config.cluster import ClusterSection
from simulator.config.scenario import Scenario
from simulator.specs import MODELS

GIB = 2**30
WHOLE_SECTIONS = ("speculative", "cluster")  # null or a mapping: one key
HUGGING_FACE_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Setting(NamedTuple):
    """Flags for a key's value, and what of it the server cannot do, with what to do instead."""

    argv: tuple[str, ...] = ()
    lacks: str = ""


CHECKPOINTS = {
    "int8": "serve a checkpoint with 8-bit weights and 16-bit activations (GPTQ, or W8A16)",
    "int4": "serve a checkpoint with 4-bit weights in groups of 128 (AWQ, GPTQ, or W4A16)",
}
"""What to serve in place of a flag: servers read these types from the checkpoint."""

Rule = Callable[[Scenario, Machine], Setting]
SAME = Setting()  # the server's own default


class Lack(NamedTuple):
    """A scenario key that has no counterpart, or only a near one."""

    key: str
    value: object
    instead: str

    def to_dict(self) -> dict[str, object]:
        return self._asdict()


def scenario_keys(scenario: Scenario) -> Iterator[tuple[str, object]]:
    """Yield every key of a scenario with its value, section.name for those in a section."""
    for name, value in scenario.to_dict().items():
        if isinstance(value, dict) and name not in WHOLE_SECTIONS:
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            yield name, value


def settings(scenario: Scenario, machine: Machine, rules: Mapping[str, Rule]) -> tuple[list[str], list[Lack]]:
    """Return the flags of a table of rules, and what has no counterpart."""
    argv: list[str] = []
    lacks = []
    for key, value in scenario_keys(scenario):
        if key in rules:
            found = rules[key](scenario, machine)
            argv += found.argv
            if found.lacks:
                lacks.append(Lack(key, value, found.lacks))
    return argv, lacks


def model_id(name: str) -> tuple[str, str]:
    """Return what a server calls a model, and a line if that is a placeholder.

    >>> model_id("llama-3.1-8b")
    ('meta-llama/Llama-3.1-8B', '')
    """
    shipped = MODELS.get(name.strip().lower())
    if shipped is None and os.path.exists(name):
        folder = name if os.path.isdir(name) else os.path.dirname(name) or "."
        return folder, f"{folder} must hold the weights too, not only config.json"
    if shipped is None:
        return name, ""  # a Hugging Face id that servetwin knows
    if HUGGING_FACE_ID.fullmatch(shipped.source):
        return shipped.source, ""
    return "YOUR-MODEL", f"YOUR-MODEL stands for {shipped.name}, of which no checkpoint is published"


def fleet_lacks(cluster: ClusterSection, alike: str, policies: Mapping[str, str], disaggregated: str) -> str:
    """Say what of a cluster a server's data parallelism cannot do.

    `alike` names what it does with replicas that are all alike, `policies` routers in front of servers,
    `disaggregated` how prefill and decode servers are started.
    """
    if cluster.disaggregation is not None:
        parts = [disaggregated]
    elif not isinstance(cluster.replicas, int):
        parts = ["replicas that differ are servers of their own, each with its flags, behind a router"]
    else:
        parts = [alike]
    for router in cluster.routers:
        known = policies.get(router) or "no counterpart; a router of your own must do it"
        parts.append(f"router {router}: {known}")
    if cluster.autoscaler is not None:
        parts.append("the autoscaler is your orchestrator's (KEDA, HorizontalPodAutoscaler)")
    return "; ".join(parts)


def expert_skew(scenario: Scenario, machine: Machine) -> Setting:
    """Return the rule of a key that describes the load, not the server."""
    if not scenario.parallel.expert_skew:
        return SAME
    return Setting(lacks="how tokens choose experts is the model's and the load's; no flag sets it")


def rule_names(value: object) -> list[tuple[str, object]]:
    """Return the names and arguments of admission rules."""
    rules = value if isinstance(value, list) else [value]
    return [next(iter(each.items())) if isinstance(each, dict) else (str(each), None) for each in rules]
