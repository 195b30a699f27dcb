"""From the axes of a sweep to what Optuna draws from, and back to the values of a scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.experiments.sweep.designs import DIGITS, Axis, Range
from simulator.experiments.sweep.plan import shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = Mapping[str, Axis]
"""What is varied, by scenario key."""
_FEW = 2  # two numbers have no order to learn from


def distribution(axis: Axis) -> BaseDistribution:
    """Return what Optuna draws: a number of a range, or the place of a listed value.

    Places of numbers that rise are drawn in order, so that a good value says something of its neighbours.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, Range):
        if axis.whole:
            return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        return FloatDistribution(axis.low, axis.high, log=axis.log)
    last = len(axis.values) - 1
    numbers = [v for v in axis.values if isinstance(v, int | float) and not isinstance(v, bool)]
    is_ordered = len(numbers) == len(axis.values) > _FEW and numbers == sorted(numbers)
    return IntDistribution(0, last) if is_ordered else CategoricalDistribution(range(last + 1))


def value(key: str, axis: Axis, drawn: Any) -> Any:
    """Return the value that was drawn as files show it; a fraction with as many digits as one would type."""
    if not isinstance(axis, Range):
        return shown(key, axis.values[drawn])
    if axis.whole:
        return int(drawn)
    return min(max(float(f"{drawn:.{DIGITS}g}"), axis.low), axis.high)


def actual(space: Space, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point with the Python objects in place of their names."""
    changes = dict(point)
    for key, axis in space.items():
        if not isinstance(axis, Range):
            changes[key] = next((v for v in axis.values if shown(key, v) == point[key]), point[key])
    return changes


def size(space: Space) -> int | None:
    """Return how many points there are, None for no end of them."""
    sizes = [
        len(axis.values)
        if not isinstance(axis, Range)
        else int(axis.high - axis.low) + 1
        if axis.whole
        else None
        for axis in space.values()
    ]
    return None if None in sizes else math.prod(n for n in sizes if n is not None)


def plain(key: str, axis: Axis) -> object:
    """Return an axis as a file has it."""
    if isinstance(axis, Range):
        return {"low": axis.low, "high": axis.high, "log": axis.log, "int": axis.whole}
    return [shown(key, value) for value in axis.values]
