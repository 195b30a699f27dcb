"""results.csv: a row per point; over replications the mean of each metric and its interval.

Intervals are Student's, 95 %, over replications (Law, Simulation Modeling and Analysis, 9.4.1): runs are
independent, requests within a run are not. A metric that a run has no value for is left out of its mean.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simulator.errors import ConfigError, suggest
from simulator.experiments.jobs import Values
from simulator.experiments.metric_cells import lower_is_better
from simulator.experiments.sweep.journal import Key
from simulator.experiments.sweep.points import Point
from simulator.experiments.sweep.tasks import Outcome

LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean over replications; bounds are None of fewer than two."""

    mean: float
    low: float | None = None
    high: float | None = None


class Row(NamedTuple):
    """A point and what its runs gave: estimates by metric, every metric that a run had."""

    point: Point
    runs: int  # that ended well
    failed: int
    estimates: dict[str, Estimate]
    error: str | None = None  # of its first run that failed

    def value(self, metric: str) -> float | None:
        """Return the mean of a metric, None if no run has it."""
        found = self.estimates.get(metric)
        return None if found is None else found.mean


def rows_of(points: Sequence[Point], found: Mapping[Key, Outcome]) -> list[Row]:
    """Return a row per point that has runs, in the order of the points."""
    by_point: dict[int, list[Outcome]] = {}
    for key in sorted(found):
        by_point.setdefault(key[0], []).append(found[key])
    return [_row(point, by_point[point.number]) for point in points if point.number in by_point]


def _row(point: Point, outcomes: list[Outcome]) -> Row:
    good = [each.values for each in outcomes if each.error is None]
    errors = [each.error for each in outcomes if each.error is not None]
    names = dict.fromkeys(name for values in good for name in values)
    estimates = {name: estimate([values[name] for values in good if name in values]) for name in names}
    return Row(point, len(good), len(errors), estimates, errors[0] if errors else None)


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean and its t-interval.

    >>> estimate([1.0, 2.0, 3.0])
    Estimate(mean=2.0, low=-0.4841377117, high=4.4841377117)
    >>> estimate([5.0])
    Estimate(mean=5.0, low=None, high=None)
    """
    num = len(values)
    mean = math.fsum(values) / num
    if num < 2:
        return Estimate(mean)
    from scipy.special import stdtrit

    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (num - 1) / num)
    half = float(stdtrit(num - 1, (1 + level) / 2)) * spread
    return Estimate(mean, _rounded(mean - half), _rounded(mean + half))


def _rounded(value: float) -> float:
    """Round a bound to 11 digits: scipy's quantile may differ in the last ones from machine to machine."""
    return float(f"{value:.11g}")


def columns(rows: Sequence[Row], metrics: Iterable[str], replications: int) -> dict[str, list[object]]:
    """Return the table by column: point, keys, runs, failed, then metrics with their bounds if replicated."""
    keys = rows[0].point.keys if rows else {}
    table: dict[str, list[object]] = {"point": [row.point.number for row in rows]}
    table |= {key: [row.point.keys[key] for row in rows] for key in keys}
    table |= {"runs": [row.runs for row in rows], "failed": [row.failed for row in rows]}
    nothing = Estimate(math.nan)
    for metric in metrics:
        found = [row.estimates.get(metric, nothing) for row in rows]
        table[metric] = [None if math.isnan(each.mean) else each.mean for each in found]
        if replications > 1:
            table[f"{metric}_low"] = [each.low for each in found]
            table[f"{metric}_high"] = [each.high for each in found]
    return table


def csv_text(table: Mapping[str, Sequence[object]]) -> str:
    """Return columns as csv: floats with all their digits, nothing where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows([[_field(value) for value in row] for row in zip(*table.values(), strict=True)])
    return text.getvalue()


def _field(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return value
    return json.dumps(value, default=str)


def best_row(rows: Sequence[Row], metric: str) -> Row | None:
    """Return the row with the best mean of a metric, the first of equals; None if none has it.

    Points of which a run failed are left out. ConfigError for a metric that no run ever has.
    """
    known = {name for row in rows for name in row.estimates}
    if known and metric not in known:
        raise ConfigError(f"{metric!r:.80}: no such metric{suggest(metric, sorted(known))}")
    sign = -1.0 if lower_is_better(metric) else 1.0
    whole = [
        (sign * value, row) for row in rows if not row.failed and (value := row.value(metric)) is not None
    ]
    return max(whole, key=lambda each: each[0])[1] if whole else None


def numbers(rows: Iterable[Row], metric: str) -> list[float]:
    """Return the means of a metric, nan where there is none."""
    return [math.nan if (value := row.value(metric)) is None else value for row in rows]


def values_of(row: Row) -> Values:
    """Return the means of a row by metric."""
    return {name: each.mean for name, each in row.estimates.items()}
