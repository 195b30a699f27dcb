"""Which settings a sweep tries: all of a grid, or points drawn over lists and ranges.

Latin hypercubes: McKay, Beckman and Conover, Technometrics 21(2), 1979. Sobol sequences: scrambled (Owen), by
scipy.stats.qmc. Each axis turns a number of the unit interval into a value: a list by equal parts, a range
evenly, by factors (`log`), or in whole numbers (`int`).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simulator.errors import ConfigError
from simulator.metrics.tables import Floats

DESIGNS = ("grid", "random", "lhs", "sobol")
MOST_POINTS = 100_000
DIGITS = 6
"""Significant digits of a drawn value: enough to tell points apart, few enough to type again."""


class Choices(NamedTuple):
    """An axis of listed values."""

    values: Sequence[object]

    def at(self, u: Floats) -> list[object]:
        """Return the values at these places of [0, 1)."""
        return [self.values[int(place)] for place in u * len(self.values)]


class Range(NamedTuple):
    """An axis of numbers from `low` to `high`, both within."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, u: Floats) -> list[object]:
        """Return the values at these places of [0, 1).

        >>> Range(1, 1000, log=True).at(np.array([0.0, 0.5]))
        [1.0, 31.6228]
        >>> Range(1, 4, whole=True).at(np.array([0.0, 0.26, 0.99]))
        [1, 2, 4]
        """
        wide = 1 if self.whole else 0  # the last whole number has as much room as the others
        if self.log:
            values = self.low * ((self.high + wide) / self.low) ** u
        else:
            values = self.low + (self.high + wide - self.low) * u
        if self.whole:
            return [min(math.floor(value), int(self.high)) for value in values]
        rounded = (float(f"{value:.{DIGITS}g}") for value in values)
        return [min(max(value, self.low), self.high) for value in rounded]


Axis = Choices | Range


def draw_design(
    axes: Mapping[str, Axis], design: str, points: int | None, seed: int
) -> tuple[list[dict[str, object]], list[str]]:
    """Return the changes of every point in order, and what a reader must know of how they came about.

    Points that whole numbers make equal come once.
    """
    if design == "grid":
        return grid(axes), []
    assert points is not None, "checked when the file was read"
    places = _places(design, points, len(axes), np.random.default_rng(seed))
    columns = [axis.at(places[:, i]) for i, axis in enumerate(axes.values())]
    drawn = [dict(zip(axes, row, strict=True)) for row in zip(*columns, strict=True)]
    distinct = list({json.dumps(each, default=id): each for each in drawn}.values())
    notes = []
    if design == "sobol" and points & (points - 1):
        below = 1 << (points.bit_length() - 1)
        notes.append(
            f"{points} points are no power of two: a Sobol sequence fills the space evenly with {below} "
            f"or {2 * below}"
        )
    if len(distinct) < points:
        notes.append(f"{points - len(distinct)} of {points} points equal others and are left out")
    return distinct, notes


def grid(axes: Mapping[str, Axis]) -> list[dict[str, object]]:
    """Return the product of all lists, the last key changing fastest."""
    lists = [axis.values for axis in axes.values() if isinstance(axis, Choices)]
    num = math.prod(map(len, lists))
    if num > MOST_POINTS:
        raise ConfigError(f"design: the grid has {num:,} points; {MOST_POINTS:,} is the limit")
    return [dict(zip(axes, row, strict=True)) for row in itertools.product(*lists)]


def _places(design: str, points: int, dimensions: int, rng: np.random.Generator) -> Floats:
    """Return places in the unit cube, shape (points, dimensions)."""
    from scipy.stats import qmc

    places: Floats
    if design == "random":
        return rng.random((points, dimensions))
    if design == "lhs":
        places = qmc.LatinHypercube(dimensions, seed=rng).random(points)
    else:
        sequence = qmc.Sobol(dimensions, seed=rng)
        places = sequence.random_base2((points - 1).bit_length())[:points]
    return places
