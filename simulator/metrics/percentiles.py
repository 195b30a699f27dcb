"""Percentiles of plain and of weighted samples, by one of two named methods.

`linear` is numpy's and vLLM's default; `nearest` is the nearest-rank definition, always an observed value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from simulator.metrics.tables import Floats, Ints

METHODS = ("linear", "nearest")


def percentiles(values: Floats, ranks: list[float], method: str = "linear") -> list[float | None]:
    """Return one percentile per rank (0..100); None for an empty sample.

    >>> percentiles(np.arange(1.0, 101.0), [99], "nearest")
    [99.0]
    """
    return weighted_percentiles(values, np.ones(len(values), dtype=np.int64), ranks, method)


def weighted_percentiles(
    values: Floats, weights: Ints, ranks: list[float], method: str = "linear"
) -> list[float | None]:
    """Return the percentiles of the sample in which each value occurs `weight` times; None if it is empty."""
    _check(method)
    total = int(weights.sum())
    if total == 0:
        return [None] * len(ranks)
    order = np.argsort(values)
    ordered, upto = values[order], np.cumsum(weights[order])

    def nth(i: int) -> float:
        """The i-th smallest (from 0) of the sample written out."""
        return float(ordered[np.searchsorted(upto, i, side="right")])

    return [_percentile(nth, total, rank, method) for rank in ranks]


def grouped_percentiles(
    values: Floats, group: Ints, num_groups: int, rank: float, method: str = "linear"
) -> Floats:
    """Return one percentile per group, value i being of group[i]; NaN for an empty group.

    The same numbers as `percentiles` of each group, in one sort: a trace may have thousands of users.
    """
    _check(method)
    sizes = np.bincount(group, minlength=num_groups)
    found = np.full(num_groups, np.nan)
    some = np.flatnonzero(sizes)
    ordered, first = values[np.lexsort((values, group))], (np.cumsum(sizes) - sizes)[some]
    exact = Fraction(str(rank)) / 100
    if method == "nearest":
        ranks = -(-exact.numerator * sizes[some] // exact.denominator)
        found[some] = ordered[first + np.maximum(ranks - 1, 0)]
        return found
    low, rest = np.divmod(exact.numerator * (sizes[some] - 1), exact.denominator)
    below, above = ordered[first + low], ordered[first + np.minimum(low + 1, sizes[some] - 1)]
    found[some] = below + (above - below) * (rest / exact.denominator)
    return found


def _check(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"percentile_method must be one of {', '.join(METHODS)}, got {method!r}")


def _percentile(nth: Callable[[int], float], total: int, rank: float, method: str) -> float:
    exact = Fraction(str(rank)) / 100  # 7 % of 100 is 7, not 7.000000000000001
    if method == "nearest":
        return float(nth(max(0, math.ceil(exact * total) - 1)))
    position = exact * (total - 1)
    low = math.floor(position)
    below = nth(low)
    if position == low:
        return float(below)
    fraction = float(position - low)
    return float(below + (nth(low + 1) - below) * fraction)
