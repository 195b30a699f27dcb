"""Which numbers of replicas to test: by doubling, then a bisection of integers, then a curve around it.

More replicas need not help (prefixes spread over more caches), and attainment is noisy. As for rates, the
answer is defined by what was tested: going down from the most, the last number that meets before the first
that misses, with nothing between the two. Numbers of the curve are tested after the bisection; one that
misses above the answer moves it up there, and the bisection goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

CURVE = (0.5, 0.75, 1.25, 1.5, 2.0)
"""Numbers of replicas of the curve, as multiples of the answer; the next one up is always tested."""

Met = Mapping[int, bool]
"""Whether a number of replicas that was tested meets the SLO."""


class Step(NamedTuple):
    """Neighbours among the numbers tested, of which the lower misses and the higher meets."""

    missed: int
    met: int


def last_step(met: Met) -> Step | None:
    """Return where, going down, a number that meets is first followed by one that misses.

    >>> last_step({1: False, 2: True, 3: False, 4: True, 5: True, 6: False})
    Step(missed=3, met=4)
    """
    for high, low in itertools.pairwise(sorted(met, reverse=True)):
        if met[high] and not met[low]:
            return Step(low, high)
    return None


def fewest(met: Met) -> int | None:
    """Return the answer as far as it was tested: None if no number meets, the least one if all do.

    >>> fewest({1: False, 2: False}), fewest({1: True, 2: True}), fewest({1: False, 2: True})
    (None, 1, 2)
    """
    step = last_step(met)
    if step is not None:
        return step.met
    return min((n for n in met if met[n]), default=None)


def search_fewest(met: Met, start: int, most: int, *, curve: bool = True) -> Iterator[Sequence[int]]:
    """Yield numbers of replicas to test, 1 to `most`, until the answer and its lower neighbour are known.

    The caller puts what it found into `met` before it asks for more. What is there is not
    asked again.
    """
    n = min(start, most)
    if n not in met:
        yield [n]
    if met[n]:
        while met[n] and n > 1 and last_step(met) is None:
            n //= 2
            if n not in met:
                yield [n]
    else:
        while not met[n] and n < most:
            n = min(2 * n, most)
            if n not in met:
                yield [n]
    yield from _bisect(met)
    while curve and (more := _curve(met, most)):
        yield more
        yield from _bisect(met)


def _bisect(met: Met) -> Iterator[Sequence[int]]:
    while (step := last_step(met)) is not None and step.met - step.missed > 1:
        yield [(step.met + step.missed) // 2]


def _curve(met: Met, most: int) -> list[int]:
    """Return numbers that the curve lacks; none if no number meets."""
    n = fewest(met)
    if n is None:
        return []
    wanted = {n + 1, *(math.ceil(n * factor) for factor in CURVE)}
    return sorted(each for each in wanted if 1 <= each <= most and each not in met)
