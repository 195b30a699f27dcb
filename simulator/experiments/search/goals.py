"""What a search is for: objectives such as p99_ttft_ms:min and constraints such as attainment>=0.99."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from simulator.config.scenario import Scenario
from simulator.config.tenants import tenant_limits
from simulator.errors import ConfigError, suggest
from simulator.experiments.jobs import Values

DIRECTIONS = {"min": False, "max": True}
MAX_OBJECTIVES = 4
"""With more, nearly every point is on the front, and the volume under it takes long to find."""
_CONSTRAINT = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(<=|>=)\s*([^\s<>=]+)\s*")
_OF_THROUGHPUT = ("throughput", "tokens_per_gpu", "output_tokens_per_s", "cost_per_million")


class Objective(NamedTuple):
    """A metric of the summary, to be as small or as large as can be."""

    metric: str
    maximize: bool

    def __str__(self) -> str:
        return f"{self.metric}:{'max' if self.maximize else 'min'}"


class Constraint(NamedTuple):
    """A metric that must be at least, or at most, a bound."""

    metric: str
    at_least: bool
    bound: float

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.at_least else '<='}{self.bound:g}"

    def violation(self, value: float) -> float:
        """Return by what share of the bound, of 1 if that is 0, a value misses it; <= 0 if it does not."""
        short = self.bound - value if self.at_least else value - self.bound
        return short / (abs(self.bound) or 1.0)


def parse_objective(item: object, place: str) -> Objective:
    """Read metric:min or metric:max, as text or, since yaml makes that of a space, as {metric: min}."""
    if isinstance(item, Mapping) and len(item) == 1:
        item = ":".join(map(str, next(iter(item.items()))))
    metric, colon, direction = str(item).partition(":")
    metric, direction = metric.strip(), direction.strip()
    if not isinstance(item, str) or not colon or not metric:
        raise ConfigError(f"{place}: write metric:min or metric:max, got {item!r:.80}")
    if direction not in DIRECTIONS:
        raise ConfigError(f"{place}: {direction!r:.40} is no direction{suggest(direction, DIRECTIONS)}")
    return Objective(metric, DIRECTIONS[direction])


def parse_objectives(items: Iterable[object], place: str) -> tuple[Objective, ...]:
    """Read objectives; ConfigError for none, too many, or a metric that comes twice."""
    found = tuple(parse_objective(item, place) for item in items)
    if not 1 <= len(found) <= MAX_OBJECTIVES:
        raise ConfigError(
            f"{place}: needs one to {MAX_OBJECTIVES} of metric:min or metric:max, got {len(found)}"
        )
    _refuse_twice([each.metric for each in found], place)
    return found


def parse_constraint(item: object, place: str) -> Constraint:
    """Read metric<=number or metric>=number."""
    match = _CONSTRAINT.fullmatch(item) if isinstance(item, str) else None
    try:
        bound = float(match[3]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise ConfigError(f"{place}: write metric<=number or metric>=number, got {item!r:.80}")
    return Constraint(match[1], match[2] == ">=", bound)


def parse_constraints(items: Iterable[object], place: str) -> tuple[Constraint, ...]:
    """Read constraints; ConfigError for one that comes twice."""
    found = tuple(parse_constraint(item, place) for item in items)
    _refuse_twice([str((each.metric, each.at_least)) for each in found], place, [e.metric for e in found])
    return found


def default_constraints(scenario: Scenario, objectives: Iterable[Objective]) -> tuple[Constraint, ...]:
    """Hold a search for throughput, or for a lower price of it, to the scenario's SLO, if there is one."""
    objectives = list(objectives)
    is_judged = scenario.slo.seconds() or any(tenant_limits(scenario).values())
    is_asked = any(each.metric == "attainment" for each in objectives)
    is_throughput = any(word in each.metric for each in objectives for word in _OF_THROUGHPUT)
    if not is_judged or is_asked or not is_throughput:
        return ()
    return (Constraint("attainment", True, scenario.slo.attainment),)


def check_metrics(names: Iterable[str], known: Collection[str], place: str) -> None:
    """ConfigError for a metric that no run of the scenario has."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{place}: {name!r:.80}: no such metric{suggest(name, known)}")


def missing(values: Values, metrics: Iterable[str]) -> list[str]:
    """Return the metrics that have no value."""
    return [name for name in metrics if not math.isfinite(values.get(name, math.nan))]


def _refuse_twice(keys: list[str], place: str, names: list[str] | None = None) -> None:
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise ConfigError(f"{place}: {(names or keys)[i]!r:.80} is given twice")
