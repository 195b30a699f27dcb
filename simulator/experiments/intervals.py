"""Intervals from a sample of equally likely values, such as a metric under each draw of a model's errors.

Quantiles are at rank p * (K + 1) of K sorted values ("weibull" in numpy's words), with a line between two
values. A further draw then falls between the 5 and 95 % quantiles in 90 % of cases, whatever the
distribution: of 20 draws numpy's default, rank p * (K - 1) + 1, would hold only 81 %. Fewer than 19 draws
cannot say so much; the interval is then all they span, and its `level` is the smaller one that this has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

LEVEL = 0.9
METHOD = "weibull"


class Interval(NamedTuple):
    """Bounds between which a further draw falls with probability `level`, from `draws` values."""

    low: float
    high: float
    draws: int
    level: float

    def to_dict(self) -> dict[str, float]:
        return self._asdict()


def interval_of(values: Iterable[float], level: float = LEVEL) -> Interval | None:
    """Return the central interval of these draws, None of fewer than two.

    >>> interval_of(range(1, 40))
    Interval(low=2.0, high=38.0, draws=39, level=0.9)
    >>> interval_of([3.0, 1.0])
    Interval(low=1.0, high=3.0, draws=2, level=0.333)
    """
    ordered = sorted(map(float, values))
    n = len(ordered)
    if n < 2:
        return None
    tail = max((1.0 - level) / 2, 1.0 / (n + 1))
    return Interval(_at(ordered, tail), _at(ordered, 1.0 - tail), n, min(level, round(1.0 - 2 * tail, 3)))


def _at(ordered: list[float], share: float) -> float:
    """Return the value at rank share * (n + 1), counted from 1; equal neighbours give their own value."""
    rank = round(share * (len(ordered) + 1), 9)  # 0.05 * 40 is 2, not 2.0000000000000018
    low = math.floor(rank)
    below = ordered[low - 1]
    return below if rank == low else below + (ordered[low] - below) * (rank - low)
