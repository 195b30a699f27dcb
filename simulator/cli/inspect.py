"""servetwin list, init, check: what there is, a scenario to start from, and what a scenario comes to."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.flags import Chosen, takes_scenario
from simulator.errors import ConfigError


class Kind(StrEnum):
    scenarios = "scenarios"
    models = "models"
    hardware = "hardware"
    profiles = "profiles"
    policies = "policies"


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List what ships with servetwin, one line each; of policies also what one of your own must be.

    Example:

        servetwin list policies
    """
    if kind is Kind.policies:
        from simulator.experiments.policy_list import policies_as_dict, policies_text

        print(json.dumps({kind.value: policies_as_dict()}, indent=1) if as_json else policies_text())
        return
    rows = _LISTS[kind]()
    if as_json:
        print(json.dumps({kind.value: dict(rows)}, indent=1))
        return
    width = max(len(name) for name, _ in rows)
    for name, line in rows:
        print(f"{name:<{width}}  {line}")


def _scenarios() -> list[tuple[str, str]]:
    from simulator.config.loading import bundled_scenarios, scenario_text

    return [(name, scenario_text(name).splitlines()[0].removeprefix("# ")) for name in bundled_scenarios()]


def _models() -> list[tuple[str, str]]:
    from simulator.specs import MODELS

    return [(name, model.description) for name, model in MODELS.items()]


def _hardware() -> list[tuple[str, str]]:
    from simulator.specs import HARDWARE

    return [
        (
            name,
            f"{gpu.description}: {gpu.memory / 2**30:.1f} GiB, {gpu.hbm_bandwidth / 1e12:.3g} TB/s, "
            f"{gpu.flops / 1e12:.3g} TFLOP/s bf16",
        )
        for name, gpu in HARDWARE.items()
    ]


def _profiles() -> list[tuple[str, str]]:
    from simulator.latency.profile_file import describe_profile, shipped_profiles

    return [(name, describe_profile(path)) for name, path in shipped_profiles().items()]


_LISTS: dict[Kind, Callable[[], list[tuple[str, str]]]] = {
    Kind.scenarios: _scenarios,
    Kind.models: _models,
    Kind.hardware: _hardware,
    Kind.profiles: _profiles,
}


def init(
    name: Annotated[str, typer.Argument(help="Name of the new scenario.")] = "my-scenario",
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.")] = Path("scenario.yaml"),
) -> None:
    """Write a commented scenario with every key and its default.

    Example:

        servetwin init chat-on-h100 -o chat.yaml
    """
    from simulator.config.template import commented_yaml

    if out.exists():
        raise ConfigError(f"{out} exists; name another file with -o")
    try:
        out.write_text(commented_yaml(name), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    print(f"Wrote {out}. Next: servetwin check {out}")


@takes_scenario
def check(
    chosen: Chosen,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Resolve a scenario: every key, the KV blocks that follow, and what a run will cost.

    Example:

        servetwin check chat-a100 --hardware h100-80gb-sxm
    """
    from simulator.config.build import build_machine
    from simulator.config.build_workload import build_workload
    from simulator.config.cluster import replica_scenarios
    from simulator.config.policies import suspects
    from simulator.config.server import make_server
    from simulator.config.wrong_policies import blaming
    from simulator.experiments.model_interval import drawing_words

    scenario = chosen.scenario
    machine = build_machine(scenario)
    policies = chosen.policies.reading(scenario)
    with blaming(suspects(policies.files)):
        make_server(scenario, machine, policies)
    workload = build_workload(scenario, machine.max_model_len)
    tokens = int(workload.num_prompt.sum() + workload.num_output.sum())
    seconds = 6e-5 * len(workload) + 5e-8 * tokens
    facts: dict[str, object] = {
        "num_requests": len(workload),
        "total_tokens": tokens,
        "estimated_seconds": round(seconds, 1),
        "kv": machine.kv.to_dict(),
        **({"kinds": [each.kv.to_dict() for each in machine.kinds]} if len(machine.kinds) > 1 else {}),
        "times": machine.latency.provenance,
        "notes": list(machine.notes),
        "model_draws": drawing_words(machine.latency),
    }
    if as_json:
        print(json.dumps({"scenario": scenario.to_dict(), **facts}, indent=1))
        return
    print(scenario.to_yaml())
    for (count, _), each in zip(replica_scenarios(scenario), machine.kinds or (machine,), strict=True):
        if scenario.cluster is not None:
            print(f"{count} x {each.hardware.name}:")
        print("\n".join(each.kv.lines()))
        print(f"\nTimes: {each.latency.provenance}")
    for note in machine.notes:
        print(f"Note: {note}")
    print(f"Cost: {len(workload):,} requests, {tokens:,} tokens: about {max(0.1, seconds):.1f} s on a laptop")
    print(facts["model_draws"])


def register(app: typer.Typer) -> None:
    app.command("list")(list_)
    app.command("init")(init)
    app.command("check")(check)
