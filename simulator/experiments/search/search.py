"""The loop of a search: ask for a batch, try it, tell what came out.

A search that goes on after a kill asks the same points again and tells what the file of trials remembers,
so that it is where an undisturbed one would be; only what is missing is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from simulator.config.build import Policies
from simulator.config.policies import files_named
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, InputError
from simulator.experiments.jobs import SETTINGS
from simulator.experiments.metric_cells import COLUMNS
from simulator.experiments.search.evaluate import Evaluator
from simulator.experiments.search.goals import check_metrics, missing
from simulator.experiments.search.result import Found, shown
from simulator.experiments.search.search_file import Search
from simulator.experiments.search.space import size
from simulator.experiments.search.study import BATCH, Point, Study
from simulator.experiments.search.trials import Outcome, Trial, TrialFile, point_key
from simulator.experiments.sweep.backends import Pool
from simulator.experiments.sweep.designs import Range

PROBE_REQUESTS = 20
"""A run of so many tells which metrics there are."""

Report = Callable[[int, int, str], None]
"""Called with what is done, what there is, and the best so far."""


def run_search(
    search: Search,
    *,
    policies: Policies,
    pool: Pool,
    file: TrialFile | None = None,
    progress: Report | None = None,
) -> Found:
    """Search; trials of `file` are not run again, new ones are put there. ConfigError if none succeeds."""
    metrics = metrics_of(search, policies)
    evaluator = Evaluator(search.base, search.space, policies, pool, search.replications, metrics)
    found = _Searching(search, evaluator, file, progress).run()
    if not found.complete:
        first = found.trials[0]
        raise ConfigError(f"search: all {len(found.trials)} trials failed; the first: {first.error:.300}")
    return replace(found, policies=evaluator.candidate(found.winner.point)[1])


def metrics_of(search: Search, policies: Policies) -> list[str]:
    """Return the metrics that are kept; ConfigError for one that no run has, and for code without trust."""
    for key, each in search.space.items():
        code = () if isinstance(each, Range) else files_named(each.values)
        for value in sorted(code):
            if not policies.allows(value):
                raise ConfigError(
                    f"vary.{key}: {value} is code; to run it pass --trust (in Python trust=True)"
                )
    known = _known_metrics(search.base, policies)
    check_metrics([each.metric for each in search.objectives], known, "objectives")
    check_metrics([each.metric for each in search.constraints], known, "constraints")
    check_metrics(search.metrics, known, "metrics")
    usual = [name for name in COLUMNS if name in known]
    return list(dict.fromkeys([*search.goals, *search.metrics, *usual]))


def _known_metrics(base: Scenario, policies: Policies) -> list[str]:
    """Return what numbers a run of the base has, those without a value in it too."""
    key, most = ("limit", base.workload.limit) if base.workload.trace else ("num_requests", None)
    most = most or (PROBE_REQUESTS if base.workload.trace else base.workload.num_requests)
    run = run_scenario(base.with_(**{f"workload.{key}": min(PROBE_REQUESTS, most)}), policies=policies)
    both = {**run.own, **run.summary}
    return [
        name
        for name, value in both.items()
        if (value is None or (isinstance(value, int | float) and not isinstance(value, bool)))
        and name not in (*SETTINGS, "date")
    ]


class _Searching:
    def __init__(
        self, search: Search, evaluator: Evaluator, file: TrialFile | None, progress: Report | None
    ) -> None:
        self.search = search
        self.evaluator = evaluator
        self.file = file
        self.progress = progress
        self.study = Study(search.space, search.objectives, search.sampler, search.seed)
        self.kept = file.read() if file else {}
        self.trials: list[Trial] = []
        self.known: dict[str, Trial] = {}

    def run(self) -> Found:
        most = size(self.search.space)
        while len(self.trials) < self.search.trials and (most is None or len(self.known) < most):
            asked = self.study.ask(min(BATCH, self.search.trials - len(self.trials)))
            done = self._batch([point for _, point in asked])
            for (trial, _), made in zip(asked, done, strict=True):
                scores = made.scores(self.search.objectives) if made.is_complete else None
                missed = made.violations(self.search.constraints) if made.is_complete else []
                self.study.tell(trial, scores, missed)
                self.known.setdefault(point_key(made.point), made)
            self.trials += done
        if self.file:
            self.file.rewrite(self.trials)
        return Found(self.search, self.trials)

    def _batch(self, points: Sequence[Point]) -> list[Trial]:
        """Return the trials of a batch: remembered, copied from an equal point, or tried now."""
        first = len(self.trials)
        done: dict[int, Trial] = {}
        remembered: dict[str, Trial] = {}
        to_try: dict[str, list[int]] = {}
        for number, point in enumerate(points, start=first):
            if number in self.kept:
                done[number] = remembered[point_key(point)] = self._remembered(number, point)
            elif point_key(point) in self.known:
                done[number] = self._keep(replace(self.known[point_key(point)], number=number))
            else:
                to_try.setdefault(point_key(point), []).append(number)
        for key in [key for key in to_try if key in remembered]:  # the half of a pair that a kill left
            done |= {i: self._keep(replace(remembered[key], number=i)) for i in to_try.pop(key)}
        groups = list(to_try.values())
        for i, outcome in self.evaluator.tried([points[group[0] - first] for group in groups]):
            for number in groups[i]:
                done[number] = self._keep(self._trial(number, points[number - first], outcome))
            self._tell_progress(done)
        return [done[number] for number in sorted(done)]

    def _remembered(self, number: int, point: Point) -> Trial:
        trial = self.kept[number]
        if point_key(trial.point) != point_key(point):
            place = self.file.path if self.file else "trials"
            raise InputError(
                f"{place}: trial {number} is not the point this search asks for (another Optuna "
                "or servetwin?); --fresh begins anew"
            )
        return trial

    def _trial(self, number: int, point: Point, outcome: Outcome) -> Trial:
        lacks = [] if outcome.error else missing(outcome.values, self.search.goals)
        error = f"no value of {', '.join(lacks)}" if lacks else outcome.error
        return Trial(number, point, outcome.values, outcome.errors, error, outcome.trace)

    def _keep(self, trial: Trial) -> Trial:
        if self.file:
            self.file.append(trial)
        return trial

    def _tell_progress(self, batch: dict[int, Trial]) -> None:
        if self.progress is None:
            return
        trials = [*self.trials, *batch.values()]
        so_far = Found(self.search, trials)
        best = ""
        if so_far.front:
            best = (
                f"best {shown(so_far.winner, self.search.objectives[0].metric)}"
                if len(self.search.objectives) == 1
                else f"{len(so_far.front)} on the front"
            )
        self.progress(len(trials), self.search.trials, best)
