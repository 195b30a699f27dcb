"""All candidates' capacities, and what they were found from."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.config.build import Machine, Policies
from simulator.config.scenario import Scenario
from simulator.experiments.capacity.answer import FOUND, Answer
from simulator.experiments.capacity.crossing import mean_of
from simulator.experiments.capacity.point import Estimate
from simulator.experiments.intervals import Interval, interval_of
from simulator.experiments.replications import Replications


@dataclass
class Found:
    """The candidates' answers, in the order given; the first is what differences refer to."""

    base: Scenario
    answers: dict[str, Answer]
    replications: Replications
    num_replications: int
    target: float
    tolerance: float
    range: tuple[float, float] | None
    num_draws: int
    policies: dict[str, Policies] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def winner(self) -> str | None:
        """The candidate with the highest capacity, the first of equals; None if nobody has one."""
        rates = {name: each.rate for name, each in self.answers.items() if each.rate is not None}
        return max(rates, key=lambda name: rates[name] or 0.0) if rates else None

    @property
    def baseline(self) -> str:
        """The first candidate, which differences refer to."""
        return next(iter(self.answers))

    def difference(self, name: str) -> Estimate | None:
        """Return a candidate's capacity minus the baseline's, from paired replications.

        None of the baseline itself, and where a capacity was not found between rates that were tested.
        """
        ours, theirs = self.answers[name], self.answers[self.baseline]
        if name == self.baseline or ours.outcome != FOUND or theirs.outcome != FOUND:
            return None
        pairs = zip(ours.pseudo, theirs.pseudo, strict=True)
        return mean_of([a - b for a, b in pairs], ours.crossing - theirs.crossing)

    def model_difference(self, name: str) -> Interval | None:
        """Return the model interval of the difference, taken within each draw."""
        if name == self.baseline:
            return None
        pairs = zip(self.answers[name].drawn, self.answers[self.baseline].drawn, strict=False)
        return interval_of(ours - theirs for ours, theirs in pairs)

    def verdict(self, name: str) -> str:
        """Say in a word or two how a candidate compares with the baseline."""
        if name == self.baseline:
            return "baseline"
        ours, theirs = self.answers[name], self.answers[self.baseline]
        if {r: p.values for r, p in ours.tested.items()} == {r: p.values for r, p in theirs.tested.items()}:
            return "identical"
        apart = self.difference(name)
        if apart is None:
            return ours.outcome if ours.outcome != FOUND else f"baseline: {theirs.outcome}"
        if apart.low is None or apart.high is None:
            return "needs replications"
        return "higher" if apart.low > 0 else "lower" if apart.high < 0 else "tie"
