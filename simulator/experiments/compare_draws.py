"""What the models' errors leave of a comparison: intervals of differences, and how often who is better.

A difference is taken within each draw, candidate minus baseline, before any quantile: the error that both
share cancels, and only what it does to one more than to the other is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simulator.config.run import Run
from simulator.experiments.intervals import Interval, interval_of
from simulator.experiments.jobs import Values, numbers
from simulator.experiments.metric_cells import cell, change, lower_is_better, metric_of
from simulator.experiments.model_draws import ModelDraws

TITLES = ("model interval", "of change")


class Tally(NamedTuple):
    """In how many draws a candidate is better than another, and equal, of those in which both have it."""

    candidate: str
    against: str
    better: int
    equal: int
    draws: int

    def text(self) -> str:
        even = f", equal in {self.equal}" if self.equal else ""
        of = f"{self.better} of {self.draws} draws of the model's error"
        return f"{self.candidate} is better than {self.against} in {of}{even}"


@dataclass(frozen=True)
class DrawnComparison:
    """Candidates under the same draws. `winner` is the best if the profiles are right as they are."""

    draws: ModelDraws
    runs: Mapping[str, Run]
    baseline: str
    metric: str
    winner: str

    def difference(self, candidate: str, metric: str) -> Interval | None:
        """Return the model interval of candidate minus baseline, from paired draws."""
        return interval_of(a - b for a, b in self.draws.pairs(candidate, self.baseline, metric))

    def change(self, candidate: str, metric: str) -> Interval | None:
        """Return the model interval of candidate / baseline - 1; None if the baseline is ever 0."""
        pairs = self.draws.pairs(candidate, self.baseline, metric)
        return interval_of(a / b - 1.0 for a, b in pairs) if all(b for _, b in pairs) else None

    def cells(self, candidate: str) -> list[str]:
        """Return the intervals of `TITLES` as texts: of the metric, and of its change."""
        in_points = self.metric == "attainment"
        moved = self.difference if in_points else self.change
        base = 0.0 if in_points else 1.0
        return [
            interval_text(self.draws.interval(candidate, self.metric), lambda v: cell(self.metric, v)),
            interval_text(moved(candidate, self.metric), lambda v: change(self.metric, base, base + v)),
        ]

    def tally(self, candidate: str, against: str) -> Tally:
        """Count the draws in which a candidate is better than another."""
        sign = -1.0 if lower_is_better(self.metric) else 1.0
        pairs = self.draws.pairs(candidate, against, self.metric)
        better, equal = sum(sign * a > sign * b for a, b in pairs), sum(a == b for a, b in pairs)
        return Tally(candidate, against, better, equal, len(pairs))

    def tallies(self) -> list[Tally]:
        """Count for the winner against every other candidate, in the order given."""
        return [self.tally(self.winner, name) for name in self.runs if name != self.winner]

    def words(self) -> list[str]:
        """Say how sure the winner is: against the baseline, and against its closest rival.

        That is whom it beats in the fewest draws; of several, the best by the profiles as they are.
        """
        tallies = self.tallies()
        if not tallies:
            return []
        sign = 1.0 if lower_is_better(self.metric) else -1.0
        plain = {name: metric_of(run, self.metric) for name, run in self.runs.items()}
        badness = {name: math.inf if value is None else sign * value for name, value in plain.items()}
        closest = min(tallies, key=lambda each: (each.better, badness[each.against]))
        told = [each for each in tallies if each.against == self.baseline or each is closest]
        sources = dict.fromkeys(self.draws.sources.values())
        apart = f"Drawn independently, as their times have sources of their own: {', '.join(sources)}"
        return [*(each.text() for each in told), *([apart] if len(sources) > 1 else [])]

    def to_dict(self, rows: list[dict[str, float | str | None]]) -> dict[str, object]:
        """Return the draws as JSON: rows of candidates with their intervals, and the tallies."""
        candidates = [{**row, **self._intervals(name)} for name, row in zip(self.runs, rows, strict=True)]
        return {
            "candidates": candidates,
            "model_draws": {
                **self.draws.to_dict(),
                "winner_against": [
                    {
                        "candidate": each.against,
                        "better": each.better,
                        "equal": each.equal,
                        "draws": each.draws,
                    }
                    for each in self.tallies()
                ],
            },
        }

    def rows(self) -> list[dict[str, float | str | None]]:
        """Return bounds of value and difference, a row per candidate and metric; None: there are none."""
        return [
            {
                "candidate": name,
                "metric": metric,
                "low": found.low,
                "high": found.high,
                "difference_low": None if (apart := self.difference(name, metric)) is None else apart.low,
                "difference_high": None if apart is None else apart.high,
            }
            for name in self.runs
            for metric, found in self.draws.intervals(name).items()
        ]

    def _intervals(self, name: str) -> dict[str, object]:
        ours, theirs = numbers(self.runs[name]), numbers(self.runs[self.baseline])
        found = self.draws.intervals(name)
        return {
            "model_interval": {metric: each.to_dict() for metric, each in found.items()},
            "sampling_interval": None,  # one run is one sample
            "difference": {metric: self._difference(name, metric, ours, theirs) for metric in found},
        }

    def _difference(self, name: str, metric: str, ours: Values, theirs: Values) -> dict[str, object]:
        both = metric in ours and metric in theirs
        absolute, relative = self.difference(name, metric), self.change(name, metric)
        return {
            "value": ours[metric] - theirs[metric] if both else None,
            "model_interval": None if absolute is None else absolute.to_dict(),
            "relative_model_interval": None if relative is None else relative.to_dict(),
            "sampling_interval": None,
        }


def interval_text(interval: Interval | None, show: Callable[[float], str]) -> str:
    """Return an interval as text, its bounds as `show` writes them."""
    return "n/a" if interval is None else f"{show(interval.low)} to {show(interval.high)}"
