"""What a search found: the best point, or the front, and how it got there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.scenario import Scenario
from simulator.experiments.metric_cells import cell
from simulator.experiments.pareto import pareto_front
from simulator.experiments.search.search_file import Search
from simulator.experiments.search.trials import Trial, point_key
from simulator.metrics.tables import Floats


@dataclass(frozen=True)
class Found:
    """A search and its trials by number; at least one of them is complete."""

    search: Search
    trials: list[Trial]
    policies: Policies = NO_POLICIES  # the winner's, with the code as it was when it was tried

    @cached_property
    def complete(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.is_complete]

    @cached_property
    def feasible(self) -> list[Trial]:
        """Complete trials that meet every constraint."""
        return [trial for trial in self.complete if trial.is_feasible(self.search.constraints)]

    @cached_property
    def distinct(self) -> list[Trial]:
        """Feasible trials, each point once: as it was first tried."""
        return list({point_key(trial.point): trial for trial in reversed(self.feasible)}.values())[::-1]

    @cached_property
    def front(self) -> list[Trial]:
        """Feasible trials that no other feasible one beats, best in the first objective first."""
        if not self.distinct:
            return []
        first = self.search.objectives[0]
        mask = pareto_front(-self.costs(self.distinct))
        kept = [trial for trial, is_best in zip(self.distinct, mask, strict=True) if is_best]
        sign = -1.0 if first.maximize else 1.0
        return sorted(kept, key=lambda trial: (sign * trial.values[first.metric], trial.number))

    @cached_property
    def winner(self) -> Trial:
        """The best point; of a front the knee; where no point is feasible, the one that misses least."""
        if not self.front:
            return min(self.complete, key=lambda trial: (self._missed(trial), trial.number))
        if len(self.search.objectives) == 1:
            return min(self.front, key=lambda trial: trial.number)
        costs = self.costs(self.front)
        spans = costs.max(axis=0) - costs.min(axis=0)
        scaled = (costs - costs.min(axis=0)) / np.where(spans > 0, spans, 1.0)
        away = np.sqrt((scaled**2).sum(axis=1))
        return min(zip(away.tolist(), self.front, strict=True), key=lambda each: (each[0], each[1].number))[1]

    @property
    def scenario(self) -> Scenario:
        """The base with the winner's values."""
        return self.search.base.with_(**self.winner.point)

    @property
    def num_tried(self) -> int:
        """How many points were really run; the sampler may ask for one again."""
        return len({point_key(trial.point) for trial in self.trials})

    def scores(self, trials: list[Trial]) -> Floats:
        """Return the objectives' values, (trials, objectives)."""
        return np.array([trial.scores(self.search.objectives) for trial in trials], dtype=np.float64)

    def costs(self, trials: list[Trial]) -> Floats:
        """Return the objectives with the sign with which less is better."""
        return self.scores(trials) * [-1.0 if each.maximize else 1.0 for each in self.search.objectives]

    def _missed(self, trial: Trial) -> float:
        return sum(max(0.0, missed) for _, missed in trial.violations(self.search.constraints))

    def outcome(self) -> list[str]:
        """Say what was found, a line each."""
        search, winner = self.search, self.winner
        scores = ", ".join(f"{each.metric} {shown(winner, each.metric)}" for each in search.objectives)
        who = f"trial {winner.number} ({words(winner.point)}): {scores}"
        failed = len(self.trials) - len(self.complete)
        limits = ", ".join(map(str, search.constraints))
        lines = []
        if not self.front:
            lines.append(f"No point meets {limits}. Nearest to it: {who}")
        elif len(search.objectives) == 1:
            equals = len(self.front) - 1
            lines.append(f"Best: {who}" + (f"; {equals} other points are as good" if equals else ""))
        else:
            lines.append(f"Pareto front: {len(self.front)} points. Knee, nearest to the ideal: {who}")
        if limits:
            whose = " (the scenario's SLO)" if search.is_default else ""
            lines.append(f"{len(self.feasible)} of {len(self.complete)} complete trials meet {limits}{whose}")
        tried = f"{len(self.trials)} trials of {search.sampler}, {self.num_tried} different points"
        if failed:
            first = next(trial for trial in self.trials if not trial.is_complete)
            tried += f"; {failed} failed, first trial {first.number}: {first.error:.200}"
        return [*lines, tried]

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        search = self.search
        return {
            "name": search.base.name,
            "objectives": list(map(str, search.objectives)),
            "constraints": list(map(str, search.constraints)),
            "sampler": search.sampler,
            "replications": search.replications,
            "seed": search.seed,
            "trials": len(self.trials),
            "points": self.num_tried,
            "failed": len(self.trials) - len(self.complete),
            "feasible": len(self.feasible),
            "is_feasible": bool(self.front),
            "winner": _entry(self.winner),
            "front": [_entry(trial) for trial in self.front],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per trial: number, state, the values of its point, its metrics and their errors."""
        on_front = {trial.number for trial in self.front}
        names = list(dict.fromkeys(name for trial in self.complete for name in trial.values))
        spread = list(dict.fromkeys(name for trial in self.complete for name in trial.errors))
        return [
            {
                "trial": trial.number,
                "state": "complete" if trial.is_complete else "failed",
                "feasible": trial.is_feasible(self.search.constraints),
                "front": trial.number in on_front,
                **trial.point,
                **{name: trial.values.get(name) for name in names},
                **{f"{name}_se": trial.errors.get(name) for name in spread},
                "error": trial.error,
            }
            for trial in self.trials
        ]


def shown(trial: Trial, metric: str) -> str:
    """Return a trial's metric as text, with its standard error over replications if there is one."""
    text = cell(metric, trial.values.get(metric))
    error = trial.errors.get(metric)
    return text if error is None else f"{text} ± {cell(metric, error)}"


def words(point: dict[str, Any]) -> str:
    """Return a point in short.

    >>> words({"scheduler.max_num_seqs": 64, "kv.watermark": 0.012345678})
    'max_num_seqs=64 watermark=0.0123457'
    """
    return " ".join(
        f"{key.rpartition('.')[2]}={f'{value:.6g}' if isinstance(value, float) else value}"
        for key, value in point.items()
    )


def _entry(trial: Trial) -> dict[str, Any]:
    return {"trial": trial.number, "point": trial.point, "values": trial.values, "errors": trial.errors}
