"""Candidates of a comparison: the base scenario with some keys changed, or with a policy of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from simulator.config.axes import split_objects
from simulator.config.build import Machine, Policies, build_machine
from simulator.config.build_workload import build_workload
from simulator.config.loading import parse_value
from simulator.config.policies import files_named
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.schedulers import Scheduler
from simulator.workload.workload import Workload

Candidate = Mapping[str, object] | Callable[..., Any]


def candidates_of(vary: Iterable[str]) -> dict[str, dict[str, object]]:
    """Turn key=a,b items into named candidates, the product of all.

    >>> list(candidates_of(["scheduler.max_num_seqs=64,128"]))
    ['max_num_seqs=64', 'max_num_seqs=128']
    """
    axes: list[list[tuple[str, str]]] = []
    for item in vary:
        key, equals, values = item.partition("=")
        choices = [value.strip() for value in values.split(",")]
        if not equals or not key or not all(choices):
            raise ConfigError(f"--vary {item[:80]!r}: write key=value,value")
        if len(set(choices)) < len(choices) or any(key == axis[0][0] for axis in axes):
            raise ConfigError(f"--vary {item[:80]!r}: names a key or a value twice")
        axes.append([(key, value) for value in choices])
    found: dict[str, dict[str, object]] = {}
    for choice in itertools.product(*axes) if axes else ():
        name = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in choice)
        found[name] = {key: parse_value(value) for key, value in choice}
    return found


class Shared:
    """Machines and workloads that several candidates have in common, built once."""

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        self._workloads: dict[str, Workload] = {}

    def machine(self, scenario: Scenario) -> Machine:
        key = repr((scenario.model, scenario.hardware, scenario.kv, scenario.latency))
        key += str(scenario.scheduler.async_scheduling)
        if key not in self._machines:
            self._machines[key] = build_machine(scenario)
        return self._machines[key]

    def workload(self, scenario: Scenario, max_model_len: int) -> Workload:
        key = repr((scenario.workload, scenario.seed, max_model_len))
        if key not in self._workloads:
            self._workloads[key] = build_workload(scenario, max_model_len)
        return self._workloads[key]


def with_candidate(scenario: Scenario, candidate: Candidate, policies: Policies) -> tuple[Scenario, Policies]:
    """Return the scenario and the policies with a candidate's changes; an object goes to its own axis."""
    if not isinstance(candidate, Mapping):
        is_batching = isinstance(candidate, type) and issubclass(candidate, Scheduler)
        candidate = {"scheduler.batching" if is_batching else "scheduler.order": candidate}
    changes, objects = split_objects({str(key): value for key, value in candidate.items()})
    trusted = files_named(changes.values()).union(policies.trusted)
    return scenario.with_(**changes), replace(policies, **objects, trusted=trusted)
