"""The sweep file: what is varied of which scenario, by which design.

    base: chat-a100                       # bundled name, yaml file, run folder
    vary:
      scheduler.max_num_seqs: [64, 128, 256]
      scheduler.order: all                # every entry of the policies' table
      workload.arrivals.rate: {low: 2, high: 12, log: true}
    design: lhs                           # grid | random | lhs | sobol
    points: 40                            # not for a grid
    replications: 3
    metrics: [attainment, p99_ttft_ms]    # null: the usual ones
    seed: 0                               # of the design; the base has its own

Paths are relative to the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.config.axes import AXES, is_given, name_of
from simulator.config.checking import change_keys
from simulator.config.loading import bundled_scenarios, load_scenario, read_mapping
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.experiments.metric_cells import COLUMNS
from simulator.experiments.sweep.designs import DESIGNS, MOST_POINTS, Axis, Choices, Range

KEYS = ("base", "vary", "design", "points", "replications", "metrics", "seed")
RANGE_KEYS = ("low", "high", "log", "int")
MOST_REPLICATIONS = 1000


@dataclass(frozen=True)
class Plan:
    """A sweep as its file says, checked as far as that goes without the points."""

    name: str
    place: str  # what messages call it
    folder: Path  # that its paths are relative to
    base: Scenario
    axes: dict[str, Axis]
    design: str = "grid"
    points: int | None = None
    replications: int = 1
    metrics: tuple[str, ...] = tuple(COLUMNS)
    seed: int = 0
    is_own_words: bool = False  # a mapping of the user's: policy files that it names are trusted


def read_plan(source: str | Path | Mapping[str, Any]) -> Plan:
    """Read a sweep file, or a mapping with its keys; ConfigError names place, value and rule."""
    if isinstance(source, Mapping):
        data, place, folder, name = dict(source), "sweep", Path(), ""
    else:
        path = Path(source)
        data, place, folder, name = read_mapping(path, "a sweep"), str(path), path.parent, path.stem
    for key in data:
        if key not in KEYS:
            raise ConfigError(f"{place}: {key!r:.80}: unknown key{suggest(key, KEYS)}")
    for key in ("base", "vary"):
        if data.get(key) is None:
            raise ConfigError(f"{place}: {key} is missing")
    try:
        plan = _plan(data, place, folder, name)
        return replace(plan, is_own_words=isinstance(source, Mapping))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(f"{place}: ") else f"{place}: {text}") from None


def _plan(data: dict[str, Any], place: str, folder: Path, name: str) -> Plan:
    base = read_base(data["base"], folder)
    design = data.get("design", "grid")
    if design not in DESIGNS:
        raise ConfigError(f"design: unknown {design!r:.80}{suggest(design, DESIGNS)}")
    axes = read_axes(data["vary"], base)
    ranges = [key for key, axis in axes.items() if isinstance(axis, Range)]
    if design == "grid" and ranges:
        raise ConfigError(
            f"vary.{ranges[0]}: a grid needs a list of values; ranges go with {', '.join(DESIGNS[1:])}"
        )
    points = data.get("points")
    if (points is None) != (design == "grid"):
        rule = "a grid has as many as its lists give" if design == "grid" else f"{design} needs a number"
        raise ConfigError(f"points: {rule}, got {points!r:.80}")
    metrics = data.get("metrics")
    if metrics is not None and not (isinstance(metrics, list) and all(isinstance(m, str) for m in metrics)):
        raise ConfigError(f"metrics: must be a list of names, got {metrics!r:.80}")
    return Plan(
        name or base.name,
        place,
        folder,
        base,
        axes,
        design,
        None if points is None else whole_number("points", points, 1, MOST_POINTS),
        whole_number("replications", data.get("replications", 1), 1, MOST_REPLICATIONS),
        tuple(dict.fromkeys(metrics or COLUMNS)),
        whole_number("seed", data.get("seed", 0), 0, 2**63 - 1),
    )


def read_base(source: Any, folder: Path) -> Scenario:
    """Load the scenario that is varied; a path is relative to the folder."""
    if isinstance(source, Scenario | Mapping):
        return load_scenario(source)
    if not isinstance(source, str | Path):
        raise ConfigError(f"base: must name a scenario, got {source!r:.80}")
    is_bundled = str(source) in bundled_scenarios()
    near = source if is_bundled or not (folder / source).exists() else folder / source
    try:
        return load_scenario(near)
    except ConfigError as error:
        raise ConfigError(f"base: {error}") from None


def read_axes(vary: Any, base: Scenario) -> dict[str, Axis]:
    """Read what is varied; ConfigError names the key."""
    if not isinstance(vary, Mapping) or not vary:
        raise ConfigError(f"vary: must map scenario keys to values, got {vary!r:.80}")
    data, axes = base.to_dict(), {}
    for key, values in vary.items():
        if key in ("schema", "name"):
            raise ConfigError(f"vary.{key}: is no setting")
        change_keys(Scenario, data, {str(key): None})  # names an unknown key
        try:
            axes[str(key)] = _axis(str(key), values)
        except ConfigError as error:
            raise ConfigError(f"vary.{key}: {error}") from None
    return axes


def _axis(key: str, values: Any) -> Axis:
    if isinstance(values, Mapping):
        return _range(values)
    if isinstance(values, str) and values == "all" and key in AXES and not AXES[key].is_list:
        return Choices(list(AXES[key].table))
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        alls = ", or all" if key in AXES and not AXES[key].is_list else ""
        raise ConfigError(f"must be a list of values{alls}, or {{low, high, log, int}}, got {values!r:.80}")
    values = list(values)
    if not values:
        raise ConfigError("the list is empty, so there is no point to run")
    seen: list[str] = [json.dumps(shown(key, value), default=str) for value in values]
    for i, text in enumerate(seen):
        if text in seen[:i]:
            raise ConfigError(f"{text:.80} is given twice, which would make equal points")
    return Choices(values)


def shown(key: str, value: object) -> object:
    """Return a value of an axis as files and tables show it: a policy that is an object by its name."""
    axis = AXES.get(key)
    if axis is None or not is_given(value):
        return value
    if isinstance(value, list | tuple):
        return [shown(key, each) for each in value]
    return name_of(axis, value)


def _range(given: Mapping[str, Any]) -> Range:
    for key in given:
        if key not in RANGE_KEYS:
            raise ConfigError(f"unknown {key!r:.80}{suggest(key, RANGE_KEYS)}")
    low, high = (_number(name, given.get(name)) for name in ("low", "high"))
    log, whole = (given.get(name, False) for name in ("log", "int"))
    for name, flag in (("log", log), ("int", whole)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{name}: must be true or false, got {flag!r:.80}")
    if not low < high:
        raise ConfigError(f"low must be < high, got {low:g} and {high:g}")
    if log and low <= 0:
        raise ConfigError(f"low must be > 0 for a logarithmic range, got {low:g}")
    if whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"low and high must be whole numbers with int: true, got {low:g} and {high:g}")
    return Range(low, high, log, whole)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name}: must be a number, got {value!r:.80}")
    return float(value)


def whole_number(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number within bounds; ConfigError says which it must be."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name}: must be a whole number from {least} to {most:,}, got {value!r:.80}")
    return value
