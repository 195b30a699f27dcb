"""What came of a tournament: every replication's numbers, differences with intervals, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from simulator.config.run import Run
from simulator.experiments.jobs import Progress, numbers
from simulator.experiments.metric_cells import lower_is_better
from simulator.experiments.model_draws import ModelDraws
from simulator.experiments.tournament.contest import Contest
from simulator.experiments.tournament.paired import (
    IDENTICAL,
    LOSS,
    WIN,
    Difference,
    Estimate,
    difference,
    is_settled,
    margin_of,
    t_interval,
    verdict_of,
)
from simulator.experiments.tournament.rounds import Rounds, Rows, means, play, play_until
from simulator.experiments.tournament.turning import Turning, turnings


@dataclass(frozen=True)
class Standing:
    """Candidates after some replications; differences are candidate minus baseline, of `metric`."""

    contest: Contest
    metric: str
    rounds: Rounds
    margin: float | None = None  # as given: a share of the baseline, or of 1 for shares
    draws: ModelDraws | None = None
    turning: Mapping[str, Turning] | None = None

    @property
    def names(self) -> list[str]:
        return list(self.contest.runs)

    def mean(self, name: str, metric: str) -> float | None:
        """Return a metric's mean over the replications that have one."""
        found = means(self.rounds.values[name], metric)
        return math.fsum(found) / len(found) if found else None

    def estimate(self, name: str, metric: str) -> Estimate | None:
        """Return the sampling interval of a metric."""
        return t_interval(means(self.rounds.values[name], metric))

    def pairs(self, name: str, metric: str) -> list[float]:
        """Return candidate minus baseline in each replication in which both have the metric."""
        return _pairs(self.rounds.values, name, self.contest.baseline, metric)

    def difference(self, name: str, metric: str) -> Difference | None:
        """Return the paired difference with its intervals; None if fewer than two replications have it."""
        margin = margin_of(metric, self.mean(self.contest.baseline, metric) or 0.0, self.margin)
        return difference(self.pairs(name, metric), self._moved(name, metric), margin)

    def is_identical(self, name: str) -> bool:
        """Say whether all of a candidate's numbers are the baseline's to the bit, in every replication."""
        values = self.rounds.values
        return values[name] == values[self.contest.baseline]

    @cached_property
    def differences(self) -> dict[str, Difference | None]:
        """Differences of the metric that decides, of all but the baseline."""
        return {name: self.difference(name, self.metric) for name in self.contest.others}

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """The verdict on every candidate but the baseline."""
        return {
            name: IDENTICAL if self.is_identical(name) else verdict_of(found, self.metric)
            for name, found in self.differences.items()
        }

    @property
    def best(self) -> list[str]:
        """The candidates with the best mean, in the order given; those without a number are left out."""
        sign = 1.0 if lower_is_better(self.metric) else -1.0
        badness = {
            name: sign * mean for name in self.names if (mean := self.mean(name, self.metric)) is not None
        }
        return [name for name, value in badness.items() if value == min(badness.values())]

    @property
    def settled(self) -> bool:
        """Whether further replications would hardly change a verdict."""
        return all(
            self.is_identical(name) or is_settled(found, self.pairs(name, self.metric))
            for name, found in self.differences.items()
        )

    def _moved(self, name: str, metric: str) -> list[float]:
        """Return how far each draw of the models' errors moves the difference of the plain runs."""
        if self.draws is None:
            return []
        ours = numbers(self.contest.runs[name]).get(metric)
        theirs = numbers(self.contest.runs[self.contest.baseline]).get(metric)
        if ours is None or theirs is None:
            return []
        drawn = self.draws.pairs(name, self.contest.baseline, metric)
        return [(a - b) - (ours - theirs) for a, b in drawn]


def hold(
    runs: Mapping[str, Run],
    metric: str,
    baseline: str,
    *,
    replications: int | None = None,
    max_seconds: float,
    margin: float | None = None,
    draws: ModelDraws | None = None,
    find_turning: bool = True,
    workers: int = 0,
    progress: Progress | None = None,
) -> Standing:
    """Hold a tournament between candidates whose plain runs were made.

    `replications` None adds some until verdicts are possible, for at most `max_seconds`. `workers` are
    processes, 0 as many as are worth it, -1 one a core; the result does not depend on it.
    """
    contest = Contest.of(runs, baseline, replications)
    if replications is not None:
        rounds = play(contest, replications, workers, progress)
    else:

        def settled(values: Rows) -> bool:
            return Standing(contest, metric, Rounds(values, ""), margin, draws).settled

        rounds = play_until(contest, settled, max_seconds, workers, progress)
    standing = Standing(contest, metric, rounds, margin, draws)
    if not find_turning:
        return standing
    turned = {
        name: found.mean
        for name, found in standing.differences.items()
        if found is not None and standing.verdicts[name] in (WIN, LOSS)
    }
    turning = turnings(contest, rounds.values, turned, metric, workers)
    contest.replications.forget()
    return Standing(contest, metric, rounds, margin, draws, turning)


def _pairs(values: Rows, name: str, baseline: str, metric: str) -> list[float]:
    both = zip(values[name], values[baseline], strict=True)
    return [ours[metric] - theirs[metric] for ours, theirs in both if metric in ours and metric in theirs]
