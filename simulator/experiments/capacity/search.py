"""Which rates to test: a bracket by doubling, a bisection, and a curve that looks for what both missed.

Attainment need not fall with the rate (a batch that waits to fill is quicker at a higher one), and it is
noisy. The answer is therefore defined by what was tested: going up, the last rate that meets before the first
that misses. The curve's rates are tested after the bisection; one that misses below the answer moves it down
there, and the bisection goes on between that rate and the next one below that meets. Noise is met by testing
every rate with the same requests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

DOUBLINGS = 16
"""At most so many up: 65,000 times the scenario's rate."""
HALVINGS = 3
"""So many down before an idle server is asked whether it is worth going on."""
IDLE = 1 / 512
"""Of the rate where the search begins: requests hardly meet."""
CURVE = (0.4, 0.6, 0.8, 0.95, 1.1, 1.25, 1.5, 2.0)
"""Rates of the curve, as multiples of the answer."""
RANGE_POINTS = 7
"""Rates of the curve within a range that was given, evenly spaced in their logarithm."""
CLOSE = 0.04
"""A rate of the curve this close to one that was tested is left out."""

Met = Mapping[float, bool]
"""Whether a rate that was tested meets the SLO."""


class Edge(NamedTuple):
    """Neighbours among the rates tested, of which the lower meets and the higher misses."""

    met: float
    missed: float

    def is_narrow(self, tolerance: float) -> bool:
        return self.missed <= self.met * (1 + tolerance)


def tidy(rate: float) -> float:
    """Round a rate to six digits, so that it reads well and is found again.

    >>> tidy(2.34567891)
    2.34568
    """
    return float(f"{rate:.6g}")


def first_edge(met: Met) -> Edge | None:
    """Return where, going up, a rate that meets is first followed by one that misses.

    >>> first_edge({1.0: True, 2.0: True, 3.0: False, 4.0: True, 5.0: False})
    Edge(met=2.0, missed=3.0)
    """
    rates = sorted(met)
    for low, high in itertools.pairwise(rates):
        if met[low] and not met[high]:
            return Edge(low, high)
    return None


def search(
    met: Met,
    start: float,
    tolerance: float,
    *,
    low: float | None = None,
    high: float | None = None,
    step: float = 2.0,
    curve: bool = True,
) -> Iterator[list[float]]:
    """Yield rates to test until the answer is known within `tolerance` (relative).

    The caller puts what it found into `met` before it asks for more. Without a range the bracket grows by
    `step` from `start`.
    """
    if low is not None and high is not None:
        yield [tidy(low), tidy(high)]
    else:
        yield from _bracket(met, tidy(start), step)
    yield from _bisect(met, tolerance)
    while curve and (more := _curve(met, low, high)):
        yield more
        yield from _bisect(met, tolerance)


def _bracket(met: Met, start: float, step: float) -> Iterator[list[float]]:
    yield [start]
    rate = start
    if met[start]:
        for _ in range(DOUBLINGS):
            rate = tidy(rate * step)
            yield [rate]
            if not met[rate]:
                return
        return
    for i in range(math.ceil(-math.log(IDLE) / math.log(step))):
        rate = tidy(rate / step)
        if i == HALVINGS:
            idle = tidy(start * IDLE)
            yield [idle]
            if not met[idle]:
                return
        yield [rate]
        if met[rate]:
            return


def _bisect(met: Met, tolerance: float) -> Iterator[list[float]]:
    while (edge := first_edge(met)) and not edge.is_narrow(tolerance):
        yield [tidy(math.sqrt(edge.met * edge.missed))]


def _curve(met: Met, low: float | None, high: float | None) -> list[float]:
    """Return rates that the curve lacks; none if no rate meets."""
    edge = first_edge(met)
    wanted = [] if edge is None else [edge.met * factor for factor in CURVE]
    if low is not None and high is not None:
        wanted = [rate for rate in wanted if low <= rate <= high]
        wanted += [low * (high / low) ** (i / (RANGE_POINTS + 1)) for i in range(1, RANGE_POINTS + 1)]
    found: list[float] = []
    for rate in map(tidy, sorted(wanted)):
        if all(abs(rate / other - 1) > CLOSE for other in (*met, *found)):
            found.append(rate)
    return found
