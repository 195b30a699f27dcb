"""How much timing error would turn a verdict: the factor on a candidate's step times that makes it equal.

Every step of the candidate takes a factor longer or shorter, the baseline's stay as they are, and the same
few replications are served at each factor. What the pace changes there is added to the mean difference over
all replications, which is thus exact at factor 1. The crossing is bracketed outwards from 1 and then closed
in on by the Illinois variant of regula falsi (Dowell and Jarratt, BIT 11, 1971), which needs no derivative
and keeps its bracket. All candidates are searched at once, so that their runs fill the cores.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import NamedTuple

from simulator.experiments.jobs import Job, serve_all
from simulator.experiments.metric_cells import lower_is_better
from simulator.experiments.tournament.contest import Contest
from simulator.experiments.tournament.rounds import Rows

SLOWER = (1.05, 1.15, 1.4, 2.0)
"""Factors tried until the difference changes sign; 1/factor if the candidate must be faster."""
TOLERANCE = 0.001
MOST_TRIES = 14
FEW = 3  # replications, at most

Search = Generator[float, float, float | None]


class Turning(NamedTuple):
    """`factor` is None where no factor within the bounds turns it; from so many replications."""

    factor: float | None
    replications: int

    def text(self) -> str:
        """Say it in words.

        >>> Turning(1.0312, 3).text()
        "turns if the candidate's steps are 3.1 % slower than modelled"
        """
        if self.factor is None:
            return f"no factor within {1 / SLOWER[-1]:g} to {SLOWER[-1]:g} on its step times turns it"
        off = 100 * (self.factor - 1)
        how = "slower" if off > 0 else "faster"
        return f"turns if the candidate's steps are {abs(off):.1f} % {how} than modelled"

    def to_dict(self) -> dict[str, object]:
        return {"factor": self.factor, "replications": self.replications, "tolerance": TOLERANCE}


def crossing(at_one: float, is_better: bool) -> Search:
    """Search the factor at which a difference is 0: yields factors, is sent differences, returns the factor.

    `at_one` is the difference at factor 1, and a candidate that `is_better` is made slower.
    """
    inner, f_inner = 1.0, at_one
    for each in SLOWER:
        outer = each if is_better else 1 / each
        f_outer = yield outer
        if f_outer == 0:
            return outer
        if (f_outer > 0) != (at_one > 0):
            break
        inner, f_inner = outer, f_outer
    else:
        return None
    for _ in range(MOST_TRIES):
        if abs(outer - inner) <= TOLERANCE:
            break
        tried = outer - f_outer * (outer - inner) / (f_outer - f_inner)
        edge = TOLERANCE / 2  # so that the bracket closes on both sides
        low, high = min(inner, outer) + edge, max(inner, outer) - edge
        tried = min(max(tried, low), high) if low < high else (inner + outer) / 2
        value = yield tried
        if value == 0:
            return tried
        if (value > 0) != (f_outer > 0):
            inner, f_inner = outer, f_outer
        else:
            f_inner /= 2
        outer, f_outer = tried, value
    return outer - f_outer * (outer - inner) / (f_outer - f_inner)


def turnings(
    contest: Contest, values: Rows, differences: Mapping[str, float], metric: str, workers: int = 0
) -> dict[str, Turning]:
    """Search for every candidate of `differences`, its mean difference over all replications."""
    num = min(FEW, len(values[contest.baseline]))
    sign = 1.0 if lower_is_better(metric) else -1.0
    usable = [i for i in range(num) if all(metric in values[n][i] for n in (contest.baseline, *differences))]
    found: dict[str, Turning] = {}
    searches: dict[str, tuple[Search, float]] = {}
    for name, mean in differences.items():
        if usable and mean:
            search = crossing(mean, sign * mean < 0)
            searches[name] = search, next(search)
    while searches:
        jobs = [contest.job(name, i, pace) for name, (_, pace) in searches.items() for i in usable]
        moved = _moved(contest, jobs, list(searches), values, usable, metric, workers)
        for name, change in moved.items():
            search, _ = searches[name]
            try:
                searches[name] = search, search.send(differences[name] + change)
            except StopIteration as end:
                found[name] = Turning(end.value, len(usable))
                del searches[name]
    return {name: found[name] for name in differences if name in found}


def _moved(
    contest: Contest,
    jobs: list[Job],
    names: list[str],
    values: Rows,
    usable: list[int],
    metric: str,
    workers: int,
) -> dict[str, float]:
    """Return by how much the mean over the usable replications differs from the one at factor 1."""
    served = iter(serve_all(jobs, contest.workers(workers, len(jobs))))
    moved = {}
    for name in names:
        changes = []
        for i in usable:
            found = next(served)
            if metric in found:
                changes.append(found[metric] - values[name][i][metric])
        moved[name] = math.fsum(changes) / len(changes) if changes else 0.0
    return moved
