"""The flags of every command that takes a SCENARIO, written once.

`takes_scenario` gives a command the argument SCENARIO and the scenario flags, and hands it a `Chosen`: the
resolved scenario and the policies the user allowed. Values of the form file.py:name given on the command
line are trusted; those in a file need --trust.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from simulator.errors import ConfigError

SCENARIO_PANEL = "Scenario"
TRACE_PANEL = "Trace"


def _flag(*names: str, help: str, panel: str = SCENARIO_PANEL, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


ScenarioArgument = Annotated[
    str, typer.Argument(help="Bundled name, yaml file or run folder.", metavar="SCENARIO")
]
_FLAGS: dict[str, Any] = {
    "trace": Annotated[str | None, _flag("--trace", help="Replay this file's requests.", panel=TRACE_PANEL)],
    "format": Annotated[
        str | None, _flag("--format", help="Trace format; found by itself where it can.", panel=TRACE_PANEL)
    ],
    "columns": Annotated[
        str | None,
        _flag("--columns", help="Name a csv's columns: arrival=ts,prompt=in,output=out.", panel=TRACE_PANEL),
    ],
    "time_unit": Annotated[
        str | None, _flag("--time-unit", help="Unit of the time stamps: s, ms, us, ns.", panel=TRACE_PANEL)
    ],
    "model": Annotated[str | None, _flag("--model", help="Model: shipped name or path to a config.json.")],
    "hardware": Annotated[str | None, _flag("--hardware", help="GPU; see `servetwin list hardware`.")],
    "profile": Annotated[str | None, _flag("--profile", help="Latency profile (.json).")],
    "rate": Annotated[
        float | None, _flag("--rate", help="Requests per second: Poisson, or a trace's time rescaled.")
    ],
    "num_requests": Annotated[int | None, _flag("--num-requests", help="How many requests to draw or take.")],
    "slo": Annotated[
        list[str] | None,
        _flag("--slo", help="ttft:500, tpot:50 or e2el:3000 (ms); repeatable, replaces the file's."),
    ],
    "set_": Annotated[
        list[str] | None,
        _flag("--set", help="Change any key: scheduler.max_num_seqs=128; repeatable.", metavar="KEY=VALUE"),
    ],
    "seed": Annotated[int | None, _flag("--seed", help="Seed of all random draws.")],
    "trust": Annotated[
        bool, _flag("--trust", help="Load policy code that the scenario file names.", metavar="")
    ],
}
_DEFAULTS: dict[str, Any] = {"trust": False}


@dataclass(frozen=True)
class Chosen:
    """What SCENARIO and its flags say."""

    scenario: Any  # simulator.config.scenario.Scenario; imported late to keep --help quick
    policies: Any  # simulator.config.build.Policies


def takes_scenario(command: Callable[..., None]) -> Callable[..., None]:
    """Add SCENARIO and the scenario flags to a command whose first parameter is `chosen`."""
    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    first = inspect.Parameter("scenario", keyword, annotation=ScenarioArgument)
    flags = [
        inspect.Parameter(name, keyword, default=_DEFAULTS.get(name), annotation=annotation)
        for name, annotation in _FLAGS.items()
    ]
    rest = [each.replace(kind=keyword) for each in list(own.parameters.values())[1:]]

    @functools.wraps(command)
    def wrapped(*, scenario: str, **given: Any) -> None:
        flags = {name: given.pop(name) for name in _FLAGS}
        chosen = choose(scenario, flags, {name: given.get(name) for name in ("batching", "order")})
        command(chosen, **given)

    parameters = [first, *rest, *flags]
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def choose(source: str, flags: dict[str, Any], axes: dict[str, str | None]) -> Chosen:
    """Resolve a scenario with its flags; ConfigError names the flag that cannot be used."""
    from simulator.config.build import Policies
    from simulator.config.build_workload import with_rate
    from simulator.config.loading import load_scenario
    from simulator.config.policies import files_named

    scenario = load_scenario(source)
    changes = flag_changes(flags, scenario.workload.trace is not None or flags["trace"] is not None)
    changes |= {f"scheduler.{axis}": value for axis, value in axes.items() if value is not None}
    trusted = files_named(changes.values())
    scenario = scenario.with_(**changes)
    if flags["model"] is not None and "model.max_model_len" not in changes:
        scenario = with_length_of_model(scenario)
    if flags["rate"] is not None:
        scenario = with_rate(scenario, flags["rate"])
    return Chosen(scenario, Policies(trusted=trusted, trust=flags["trust"]))


def with_length_of_model(scenario: Any) -> Any:
    """Take the model's own max_model_len where the scenario, written for another model, has a longer one."""
    from simulator.specs import get_model

    wanted, own = scenario.model.max_model_len, get_model(scenario.model.name).max_model_len
    if wanted is None or wanted <= own:
        return scenario
    typer.echo(f"model.max_model_len: {own:,}, that of {scenario.model.name} (was {wanted:,})", err=True)
    return scenario.with_(**{"model.max_model_len": None})


def flag_changes(flags: dict[str, Any], has_trace: bool) -> dict[str, object]:
    """Return the scenario keys that the flags set."""
    changes: dict[str, object] = {}
    plain = {
        "trace": "workload.trace",
        "format": "workload.format",
        "time_unit": "workload.time_unit",
        "model": "model.name",
        "hardware": "hardware.gpu",
        "profile": "latency.profile",
        "seed": "seed",
    }
    changes |= {key: flags[name] for name, key in plain.items() if flags[name] is not None}
    if flags["columns"] is not None:
        changes["workload.columns"] = parse_pairs(flags["columns"].split(","), "--columns")
    if flags["num_requests"] is not None:
        changes["workload.limit" if has_trace else "workload.num_requests"] = flags["num_requests"]
    if flags["slo"]:
        changes |= parse_slo(flags["slo"])
    if flags["set_"]:
        from simulator.config.loading import parse_value

        changes |= {key: parse_value(value) for key, value in parse_pairs(flags["set_"], "--set").items()}
    return changes


def parse_pairs(items: list[str], flag: str) -> dict[str, str]:
    """Split key=value items; ConfigError for an item that is none."""
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {item[:80]!r}: write key=value")
        pairs[key.strip()] = value
    return pairs


def parse_slo(items: list[str]) -> dict[str, object]:
    """Read ttft:500 and its like; what is not named is no longer an SLO."""
    limits: dict[str, object] = {"slo.ttft_ms": None, "slo.tpot_ms": None, "slo.e2el_ms": None}
    for item in items:
        name, colon, value = item.partition(":")
        key = f"slo.{name}_ms"
        if not colon or key not in limits:
            raise ConfigError(f"--slo {item[:80]!r}: write ttft:MS, tpot:MS or e2el:MS")
        try:
            limits[key] = float(value)
        except ValueError:
            raise ConfigError(f"--slo {item[:80]!r}: {value[:40]!r} is not a number of ms") from None
    return limits
