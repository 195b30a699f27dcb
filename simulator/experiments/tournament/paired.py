"""The statistics of a difference: an interval over replications, one over models, both together, a verdict.

Replications are independent of each other, requests within one are not, so intervals go over replications.
Both candidates serve the same requests in each, and the difference is taken there before anything else: the
luck that both share cancels (Law, Simulation Modeling and Analysis, 10.2.1, the paired-t interval, and 11.2,
common random numbers). Left out: several comparisons at once; each interval is for one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simulator.experiments.intervals import Interval, interval_of
from simulator.experiments.metric_cells import lower_is_better

LEVEL = 0.95
SURE = 0.999
"""A look at this level may end a tournament early; seven of them add at most 0.7 % of false verdicts."""
MARGIN = 0.05
"""Practical equivalence, relative to the baseline: profiles are no better than about so much."""
MARGIN_OF_SHARE = 0.01
"""Practical equivalence of a share such as attainment, absolute: a point."""
SHARES = ("attainment", "prefix_hit_rate", "kv_usage_mean", "kv_usage_peak")

WIN, LOSS, TIE, IDENTICAL, MORE = "win", "loss", "tie", "identical", "needs more runs"


class Estimate(NamedTuple):
    """A mean over replications and the interval that holds the true one with probability `level`."""

    mean: float
    low: float
    high: float
    replications: int
    level: float

    def to_dict(self) -> dict[str, float]:
        return self._asdict()


def t_interval(values: Iterable[float], level: float = LEVEL) -> Estimate | None:
    """Return Student's interval of the mean, None of fewer than two values.

    >>> found = t_interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    from scipy.special import stdtrit

    sample = [float(value) for value in values]
    n = len(sample)
    if n < 2:
        return None
    mean = math.fsum(sample) / n
    if all(value == sample[0] for value in sample):
        return Estimate(sample[0], sample[0], sample[0], n, level)
    variance = math.fsum((value - mean) ** 2 for value in sample) / (n - 1)
    half = float(stdtrit(n - 1, (1 + level) / 2)) * math.sqrt(variance / n)
    return Estimate(mean, mean - half, mean + half, n, level)


class Difference(NamedTuple):
    """Candidate minus baseline. `model` is around the same mean, None without draws of the model's errors.

    `combined` is what the verdict goes by: `sampling` if there were no draws.
    """

    sampling: Estimate
    model: Interval | None
    combined: Interval
    margin: float  # absolute

    @property
    def mean(self) -> float:
        return self.sampling.mean


def difference(values: Sequence[float], moved: Sequence[float], margin: float) -> Difference | None:
    """Return a paired difference, None of fewer than two replications.

    `values` are candidate minus baseline by replication; `moved` is how far each draw of the models' errors
    moves that difference. `combined` adds the half-widths of both in quadrature on either side, as
    independent errors are added (JCGM 100:2008, 5.1.2), so a lopsided model interval stays lopsided.
    """
    sampling = t_interval(values)
    if sampling is None:
        return None
    mean, n = sampling.mean, sampling.replications
    errors = interval_of(moved, LEVEL)
    if errors is None:
        return Difference(sampling, None, Interval(sampling.low, sampling.high, n, LEVEL), margin)
    below, above = max(-errors.low, 0.0), max(errors.high, 0.0)
    low = mean - math.hypot(mean - sampling.low, below)
    high = mean + math.hypot(sampling.high - mean, above)
    model = Interval(mean + errors.low, mean + errors.high, errors.draws, errors.level)
    return Difference(sampling, model, Interval(low, high, errors.draws, min(LEVEL, errors.level)), margin)


def verdict_of(found: Difference | None, metric: str) -> str:
    """Return win or loss if the combined interval excludes 0, a tie if it lies within the margin around 0."""
    if found is None:
        return MORE
    low, high = found.combined.low, found.combined.high
    if low > 0 or high < 0:
        return WIN if (high < 0) == lower_is_better(metric) else LOSS
    return TIE if max(-low, high) <= found.margin else MORE


def is_settled(found: Difference | None, values: Sequence[float]) -> bool:
    """Say whether further replications would hardly change a verdict.

    That is so for a tie; for an interval over replications narrower than the margin; and where the interval
    at the level `SURE` excludes 0. Asking only whether the 95 % interval does, after every batch, would call
    a winner too often (Law, 9.4.1: looking until it is significant).
    """
    if found is None:
        return False
    low, high = found.combined.low, found.combined.high
    if low <= 0 <= high and max(-low, high) <= found.margin:
        return True
    if found.sampling.high - found.sampling.low <= found.margin:
        return True
    sure = t_interval(values, SURE)
    is_sure = sure is not None and not sure.low <= 0 <= sure.high
    return is_sure and (not low <= 0 <= high or is_models(found))


def is_models(found: Difference) -> bool:
    """Say whether the models' errors alone leave open who is better: no replication can settle that."""
    return found.model is not None and found.model.low <= 0 <= found.model.high


def margin_of(metric: str, baseline: float, given: float | None) -> float:
    """Return the margin in the metric's unit; `given` is a share (0.05), of the baseline or absolute."""
    if metric in SHARES:
        return MARGIN_OF_SHARE if given is None else given
    return abs(baseline) * (MARGIN if given is None else given)
