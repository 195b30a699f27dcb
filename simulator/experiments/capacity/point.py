"""One rate over all replications: shares, rates and percentiles with their intervals.

Shares are ratios of sums, good over injected, so that a busy window of a trace counts by its requests; their
intervals are those of a ratio estimator (Cochran, Sampling Techniques, 1977, section 6.4) with Student's t
over replications, because requests within a run depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.experiments.jobs import Values

LEVEL = 0.95
"""Confidence of every interval over replications."""
TOLERANCE = 0.02
"""Share of what arrives that may be left waiting, and how closely a rate is found, where nobody says."""
GROWS_LEVEL = 0.90
"""Two-sided: a queue grows if the mean growth is above 0 with 95 %."""


class Estimate(NamedTuple):
    """A value and its interval over replications; both bounds are None of one replication."""

    value: float
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        return self._asdict()


def half_width(deviations: Iterable[float], level: float = LEVEL) -> float | None:
    """Return t * standard error of a mean whose values deviate so from it; None of fewer than two."""
    each = np.asarray(list(deviations), np.float64)
    if len(each) < 2:
        return None
    from scipy.special import stdtrit

    spread = math.sqrt(float((each**2).sum()) / (len(each) - 1) / len(each))
    return float(stdtrit(len(each) - 1, 0.5 + level / 2)) * spread


def ratio(tops: Sequence[float], bottoms: Sequence[float], level: float = LEVEL) -> Estimate | None:
    """Estimate the ratio of two sums over replications; None if the lower one is 0.

    >>> ratio([90, 80], [100, 100]).value
    0.85
    """
    total = sum(bottoms)
    if not total:
        return None
    value, mean = sum(tops) / total, total / len(bottoms)
    half = half_width(
        ((top - value * bottom) / mean for top, bottom in zip(tops, bottoms, strict=True)), level
    )
    return Estimate(value, *((None, None) if half is None else (value - half, value + half)))


@dataclass(frozen=True)
class Point:
    """What the replications gave at one rate."""

    rate: float
    values: tuple[Values, ...]

    def of(self, top: str, bottom: str) -> Estimate | None:
        """Estimate one sum over another."""
        return ratio([v[top] for v in self.values], [v[bottom] for v in self.values])

    @property
    def attainment(self) -> Estimate:
        """Share of the injected requests within the SLO."""
        found = self.of("good", "injected") or Estimate(0.0, None, None)
        bounds = (None if b is None else min(max(b, 0.0), 1.0) for b in found[1:])
        return Estimate(found.value, *bounds)

    @property
    def late_attainment(self) -> Estimate | None:
        """The same of the second half of the requests: lower, where a run is too short for its rate."""
        return self.of("late_good", "late")

    @property
    def goodput(self) -> Estimate | None:
        """Requests within the SLO per second in which requests were sent."""
        found = self.of("good", "span")
        return found if found is None or found.low is None else found._replace(low=max(found.low, 0.0))

    def mean(self, name: str) -> Estimate | None:
        """Estimate the mean of a number over the replications that have it."""
        found = [v[name] for v in self.values if name in v]
        return ratio(found, [1.0] * len(found)) if found else None

    @property
    def growth(self) -> float:
        """How much the queue grows, as a share of the requests sent meanwhile."""
        return float(np.mean([v["growth"] for v in self.values]))

    @property
    def grows(self) -> bool:
        """Whether that is more than chance."""
        found = ratio([v["growth"] for v in self.values], [1.0] * len(self.values), GROWS_LEVEL)
        return found is not None and (found.value if found.low is None else found.low) > 0

    def why(self, target: float, tolerance: float) -> str:
        """Say which limits are missed most, or that the queue grows."""
        if self.grows and self.growth > tolerance and self.attainment.value >= target:
            return f"the queue grows by {100 * self.growth:.1f} % of what arrives"
        limits = [key for key in self.values[0] if key.startswith("within_")]
        shares = {key.removeprefix("within_").upper(): self.of(key, "injected") for key in limits}
        parts = [
            f"{name.replace('E2EL', 'E2E')} within its limit for {100 * share.value:.2f} %"
            for name, share in sorted(shares.items(), key=lambda each: each[1].value if each[1] else 1.0)
            if share is not None and share.value < 1.0
        ]
        return " and ".join(parts) or "requests were rejected or given up"

    def margin(self, target: float, tolerance: float, without: int | None = None) -> float:
        """Return how far this rate is from missing, < 0 if it does; perhaps without a replication.

        A rate meets if the attainment is at least `target` and, in the long run, no more than the share
        `tolerance` of what arrives is left waiting.
        """
        kept = [v for i, v in enumerate(self.values) if i != without]
        injected = sum(v["injected"] for v in kept)
        above = (sum(v["good"] for v in kept) / injected if injected else 0.0) - target
        if not self.grows:
            return above
        return min(above, tolerance - float(np.mean([v["growth"] for v in kept])))
