"""How sure a capacity is: where curves cross their target, with and without each replication.

Between two rates that were tested the margin (attainment minus target) goes along a line; the capacity is
where it first falls below 0. Its interval is the jackknife's (Miller, "The jackknife - a review", Biometrika
1974): leaving out one replication at a time gives R pseudo-values, whose mean has a t-interval. Replication i
has the same requests for every candidate, so differences are taken pseudo-value by pseudo-value.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.experiments.capacity.point import Estimate, Point, half_width


def crossing(rates: Sequence[float], margins: Sequence[float]) -> float:
    """Return where margins, by rising rate, first fall below 0; the last rate if they never do.

    Rates that miss before any meets are passed over; if none meets it is the first rate.

    >>> crossing([1.0, 2.0, 3.0], [0.2, 0.1, -0.1])
    2.5
    """
    has_met = False
    for i, margin in enumerate(margins):
        if margin < 0 and has_met:
            share = margins[i - 1] / (margins[i - 1] - margin)
            return rates[i - 1] + share * (rates[i] - rates[i - 1])
        has_met = has_met or margin >= 0
    return rates[-1] if has_met else rates[0]


def crossing_of(
    points: Sequence[Point], target: float, tolerance: float, without: int | None = None
) -> float:
    """Return the crossing of points by rising rate, perhaps without one replication."""
    margins = [point.margin(target, tolerance, without) for point in points]
    return crossing([point.rate for point in points], margins)


def pseudo_values(points: Sequence[Point], target: float, tolerance: float) -> list[float]:
    """Return the jackknife's pseudo-value of every replication; none of a single one."""
    num = len(points[0].values)
    if num < 2:
        return []
    whole = crossing_of(points, target, tolerance)
    parts = [crossing_of(points, target, tolerance, without=i) for i in range(num)]
    return [num * whole - (num - 1) * part for part in parts]


def mean_of(pseudo: Sequence[float], value: float) -> Estimate:
    """Return a value with the interval that its pseudo-values give it."""
    if not pseudo:
        return Estimate(value, None, None)
    mean = sum(pseudo) / len(pseudo)
    half = half_width(each - mean for each in pseudo)
    return Estimate(value, *((None, None) if half is None else (value - half, value + half)))
