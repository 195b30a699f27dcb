"""Candidates side by side: the same requests, one change at a time, one table.

Every candidate is the base scenario with some keys changed, or with a policy of the user's own. All draw the
same requests (one random stream a component), so a difference is the candidate's doing and not the luck of
the draw. How far the latency model's error can move a difference is asked with `n_model_draws`, how far other
requests can with `replications`, which add verdicts (`tournament`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.config.tenants import tenant_limits
from simulator.errors import ConfigError, suggest
from simulator.experiments.candidates import Candidate, Shared, candidates_of, with_candidate
from simulator.experiments.compare_draws import TITLES, DrawnComparison
from simulator.experiments.metric_cells import ACCURACY, COLUMNS, cell, change, lower_is_better, metric_of
from simulator.experiments.model_draws import ModelDraws, check_drawable, checked_draws, draw_models
from simulator.experiments.tournament import tables
from simulator.experiments.tournament.rounds import checked_margin, checked_replications, checked_seconds
from simulator.experiments.tournament.standing import Standing, hold

__all__ = ["COLUMNS", "Candidate", "Comparison", "candidates_of", "compare", "lower_is_better"]

OTHER_REQUESTS = "The candidates were not sent the same requests: a difference may be the workload's."


@dataclass
class Comparison:
    """The runs by candidate, in the order given; `metric` decides, `baseline` is what changes refer to."""

    runs: dict[str, Run]
    metric: str
    baseline: str
    draws: ModelDraws | None = None  # the same requests under draws of the latency models' errors
    tournament: Standing | None = None  # other requests too: replications, intervals over them, verdicts

    @property
    def winner(self) -> str:
        """The candidate with the best value of the metric, in the mean over replications if there are any.

        The first of equals, a missing value last.
        """
        return self.best[0]

    @property
    def best(self) -> list[str]:
        """The winner and whoever has exactly the same value, in the order given."""
        if self.tournament is not None:
            return self.tournament.best
        sign = 1.0 if lower_is_better(self.metric) else -1.0
        values = {name: metric_of(run, self.metric) for name, run in self.runs.items()}
        badness = {name: sign * value for name, value in values.items() if value is not None}
        least = min(badness.values())
        return [name for name, value in badness.items() if value == least]

    @property
    def same_requests(self) -> bool:
        """Whether all candidates were sent the same requests: no key that shapes the workload was varied."""
        one, *others = (run.workload for run in self.runs.values())
        names = ("arrival", "num_prompt", "num_output")
        if any(one.tenants != each.tenants for each in others):
            return False
        return all(np.array_equal(getattr(one, n), getattr(each, n)) for each in others for n in names)

    @property
    def columns(self) -> dict[str, str]:
        """Titles of the columns by key: the metric, then the others of `COLUMNS`."""
        scored = any(metric_of(run, ACCURACY) is not None for run in self.runs.values())
        own = {ACCURACY: ACCURACY} if scored else {}
        return {self.metric: COLUMNS.get(self.metric, self.metric)} | COLUMNS | own

    def rows(self) -> list[dict[str, float | str | None]]:
        """Return one row per candidate: its name and the value of each column."""
        return [
            {"candidate": name, **{key: metric_of(run, key) for key in self.columns}}
            for name, run in self.runs.items()
        ]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table as titles and texts: candidate, metric, change against the baseline, the rest.

        With draws of the models' errors, the metric and its change are followed by their model intervals.
        """
        base = metric_of(self.runs[self.baseline], self.metric)
        metric, *rest = self.columns.values()
        drawn, rows = self.drawn, []
        for name, run in self.runs.items():
            shown, *others = (cell(key, metric_of(run, key)) for key in self.columns)
            moved = change(self.metric, base, metric_of(run, self.metric))
            intervals = [] if drawn is None else drawn.cells(name)
            rows.append([name, shown, *intervals[:1], moved, *intervals[1:], *others])
        titles = [] if drawn is None else TITLES
        return ["candidate", metric, *titles[:1], "change", *titles[1:], *rest], rows

    @property
    def drawn(self) -> DrawnComparison | None:
        """What the models' errors leave of it, None if none were drawn."""
        if self.draws is None:
            return None
        return DrawnComparison(self.draws, self.runs, self.baseline, self.metric, self.winner)

    def to_dict(self) -> dict[str, object]:
        found: dict[str, object] = {
            "metric": self.metric,
            "baseline": self.baseline,
            "winner": self.winner,
            "candidates": self.rows(),
        }
        if self.drawn is not None:
            found |= self.drawn.to_dict(self.rows())
        if self.tournament is None:
            return found
        rows = tables.with_sampling(self.tournament, found["candidates"])
        return found | {"candidates": rows, "tournament": tables.to_dict(self.tournament)}

    def text(self) -> str:
        """Return the table, and what won."""
        if self.tournament is not None:
            return "\n".join([tables.text(self.tournament, self.outcome()), *self.certainty()])
        return "\n".join([tables.aligned(*self.cells()), self.outcome(), *self.certainty()])

    def certainty(self) -> list[str]:
        """Say what the models' errors and the requests leave of the outcome, a line each."""
        told = [] if self.drawn is None else self.drawn.words()
        return [*told, *([] if self.same_requests else [OTHER_REQUESTS])]

    def outcome(self) -> str:
        """Say what the changes refer to, who is best, and who is just as good."""
        winner, *equals = self.best
        tie = f"; just as good: {', '.join(equals)}" if equals else ""
        if self.tournament is not None:
            value = cell(self.metric, self.tournament.mean(winner, self.metric))
            verdict = self.tournament.verdicts.get(winner)
            told = "the baseline" if verdict is None else f"against {self.baseline}: {verdict}"
            return f"Best mean {self.metric}: {winner}, {value} ({told}){tie}"
        value = cell(self.metric, metric_of(self.runs[winner], self.metric))
        return f"change: {self.metric} against {self.baseline}. Best {self.metric}: {winner}, {value}{tie}"

    def replicate(
        self,
        replications: int | str = "auto",
        *,
        max_seconds: float | None = None,
        margin: float | None = None,
        find_turning: bool = True,
        workers: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Standing:
        """Hold the tournament; it stays with the comparison.

        `margin` is the practical equivalence as a share of the baseline's mean, or, of a share such as
        attainment, absolute. `workers` are processes, 0 as many as are worth it; results do not depend on it.
        """
        first, *others = (run.scenario.seed for run in self.runs.values())
        _refuse_seeds(seed != first for seed in others)
        self.tournament = hold(
            self.runs,
            self.metric,
            self.baseline,
            replications=checked_replications(replications),
            max_seconds=checked_seconds(max_seconds),
            margin=checked_margin(margin),
            draws=self.draws,
            find_turning=find_turning,
            workers=workers,
            progress=progress,
        )
        return self.tournament


def compare(
    scenario: Scenario,
    candidates: Mapping[str, Candidate],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    policies: Policies = NO_POLICIES,
    n_model_draws: int = 0,
    replications: int | str | None = None,
    max_seconds: float | None = None,
    margin: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Run every candidate on the same requests. A callable candidate is a batching class or an order.

    With `n_model_draws` all run again under so many draws of the latency model's errors, common to all; with
    `replications`, a number or "auto", all serve so many other draws of the requests, for verdicts.
    `metric` is any number of the summary; None takes attainment if there is an SLO, else output throughput.
    Policy files that a candidate names are loaded: candidates are the user's own words.
    """
    if not candidates:
        raise ConfigError("compare: no candidates; vary at least one key")
    if metric is None:
        metric = "attainment" if _has_slo(scenario) else "output_throughput"
    if replications is not None:
        checked_replications(replications)
        _refuse_seeds("seed" in each for each in candidates.values() if isinstance(each, Mapping))
    checked_seconds(max_seconds)
    checked_margin(margin)
    if baseline is not None and baseline not in candidates:
        raise ConfigError(f"--baseline {baseline!r}: no such candidate{suggest(baseline, candidates)}")
    total = len(candidates) * (1 + checked_draws(n_model_draws))
    cache = Shared()
    runs: dict[str, Run] = {}
    for done, (name, candidate) in enumerate(candidates.items()):
        changed, own = with_candidate(scenario, candidate, policies)
        if metric == "attainment" and not _has_slo(changed):
            raise ConfigError(
                f"--metric attainment: {name[:80]} has no SLO; give one, such as --slo ttft:500"
            )
        machine = cache.machine(changed)
        if n_model_draws:
            check_drawable(machine)  # refused before anything runs
        run = runs[name] = run_scenario(
            changed, policies=own, machine=machine, workload=cache.workload(changed, machine.max_model_len)
        )
        if metric not in run.summary and metric not in run.own:
            raise ConfigError(f"--metric {metric!r:.80}: no such metric{suggest(metric, _metrics(run))}")
        if progress is not None:
            progress(done + 1, total)
    if all(metric_of(run, metric) is None for run in runs.values()):
        raise ConfigError(f"--metric {metric!r:.80}: has no number in any candidate's result")
    draws = None
    if n_model_draws:
        draws = draw_models(
            runs,
            n_model_draws,
            scenario.seed,
            progress=None if progress is None else lambda done, _: progress(len(runs) + done, total),
        )
    found = Comparison(runs, metric, baseline or next(iter(runs)), draws)
    if replications is not None:
        found.replicate(replications, max_seconds=max_seconds, margin=margin, progress=progress)
    return found


def _has_slo(scenario: Scenario) -> bool:
    return bool(scenario.slo.seconds()) or any(tenant_limits(scenario).values())


def _refuse_seeds(differ: Iterable[bool]) -> None:
    """Refuse replications of candidates that differ in their seeds."""
    if any(differ):
        raise ConfigError(
            "--vary seed: every replication has a seed of its own; leave out --replications or it"
        )


def _metrics(run: Run) -> Sequence[str]:
    return [key for key in (*run.summary, *run.own) if metric_of(run, key) is not None]
