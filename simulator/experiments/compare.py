"""Candidates side by side: the same requests, one change at a time, one table.

Every candidate is the base scenario with some keys changed, or with a policy of the user's own. All draw the
same requests (one random stream a component), so a difference is the candidate's doing and not the luck of
the draw. How far the latency model's error can move a difference is asked with `n_model_draws`. One run each:
how far other requests can needs replications, which are not built yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.config.axes import split_objects
from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine
from simulator.config.build_workload import build_workload
from simulator.config.loading import parse_value
from simulator.config.policies import files_named
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.config.tenants import tenant_limits
from simulator.errors import ConfigError, suggest
from simulator.experiments.compare_draws import TITLES, DrawnComparison
from simulator.experiments.metric_cells import COLUMNS, cell, change, lower_is_better, metric_of
from simulator.experiments.model_draws import ModelDraws, checked_draws, draw_models
from simulator.latency.uncertainty import error_terms
from simulator.schedulers import Scheduler
from simulator.workload.workload import Workload

Candidate = Mapping[str, object] | Callable[..., Any]

OTHER_REQUESTS = "The candidates were not sent the same requests: a difference may be the workload's."


@dataclass
class Comparison:
    """The runs by candidate, in the order given; `metric` decides, `baseline` is what changes refer to."""

    runs: dict[str, Run]
    metric: str
    baseline: str
    draws: ModelDraws | None = None  # the same requests under draws of the latency models' errors

    @property
    def winner(self) -> str:
        """The candidate with the best value of the metric; the first of equals, a missing value last."""
        return self.best[0]

    @property
    def best(self) -> list[str]:
        """The winner and whoever has exactly the same value, in the order given."""
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
        return {self.metric: COLUMNS.get(self.metric, self.metric)} | COLUMNS

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
        return found if self.drawn is None else found | self.drawn.to_dict(self.rows())

    def text(self) -> str:
        """Return the table, and what won."""
        titles, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in (titles, *rows)
        ]
        return "\n".join([*lines, self.outcome(), *self.certainty()])

    def certainty(self) -> list[str]:
        """Say what the models' errors and the requests leave of the outcome, a line each."""
        told = [] if self.drawn is None else self.drawn.words()
        return [*told, *([] if self.same_requests else [OTHER_REQUESTS])]

    def outcome(self) -> str:
        """Say what the changes refer to, who is best, and who is just as good."""
        winner, *equals = self.best
        value = cell(self.metric, metric_of(self.runs[winner], self.metric))
        tie = f"; just as good: {', '.join(equals)}" if equals else ""
        return f"change: {self.metric} against {self.baseline}. Best {self.metric}: {winner}, {value}{tie}"


def compare(
    scenario: Scenario,
    candidates: Mapping[str, Candidate],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    policies: Policies = NO_POLICIES,
    n_model_draws: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Run every candidate on the same requests. A callable candidate is a batching class or an order.

    With `n_model_draws` all run again under so many draws of the latency model's errors, common to all.
    `metric` is any number of the summary; None takes attainment if there is an SLO, else output throughput.
    Policy files that a candidate names are loaded: candidates are the user's own words.
    """
    if not candidates:
        raise ConfigError("compare: no candidates; vary at least one key")
    if metric is None:
        judged = scenario.slo.seconds() or any(tenant_limits(scenario).values())
        metric = "attainment" if judged else "output_throughput"
    if baseline is not None and baseline not in candidates:
        raise ConfigError(f"--baseline {baseline!r}: no such candidate{suggest(baseline, candidates)}")
    total = len(candidates) * (1 + checked_draws(n_model_draws))
    cache = _Shared()
    runs: dict[str, Run] = {}
    for done, (name, candidate) in enumerate(candidates.items()):
        changed, own = _apply(scenario, candidate, policies)
        machine = cache.machine(changed)
        if n_model_draws:
            error_terms(machine.latency)  # refused before anything runs
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
    return Comparison(runs, metric, baseline or next(iter(runs)), draws)


def candidates_of(vary: Iterable[str]) -> dict[str, dict[str, object]]:
    """Turn key=a,b items into named candidates, the product of all.

    >>> list(candidates_of(["scheduler.max_num_seqs=64,128"]))
    ['max_num_seqs=64', 'max_num_seqs=128']
    """
    axes: list[list[tuple[str, str]]] = []
    for item in vary:
        key, equals, values = item.partition("=")
        choices = [value.strip() for value in values.split(",")]
        if not equals or not key or not all(choices):
            raise ConfigError(f"--vary {item[:80]!r}: write key=value,value")
        if len(set(choices)) < len(choices) or any(key == axis[0][0] for axis in axes):
            raise ConfigError(f"--vary {item[:80]!r}: names a key or a value twice")
        axes.append([(key, value) for value in choices])
    found: dict[str, dict[str, object]] = {}
    for choice in itertools.product(*axes) if axes else ():
        name = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in choice)
        found[name] = {key: parse_value(value) for key, value in choice}
    return found


class _Shared:
    """Machines and workloads that several candidates have in common, built once."""

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        self._workloads: dict[str, Workload] = {}

    def machine(self, scenario: Scenario) -> Machine:
        key = repr((scenario.model, scenario.hardware, scenario.kv, scenario.latency))
        key += str(scenario.scheduler.async_scheduling)
        if key not in self._machines:
            self._machines[key] = build_machine(scenario)
        return self._machines[key]

    def workload(self, scenario: Scenario, max_model_len: int) -> Workload:
        key = repr((scenario.workload, scenario.seed, max_model_len))
        if key not in self._workloads:
            self._workloads[key] = build_workload(scenario, max_model_len)
        return self._workloads[key]


def _apply(scenario: Scenario, candidate: Candidate, policies: Policies) -> tuple[Scenario, Policies]:
    """Return the scenario and the policies with a candidate's changes; an object goes to its own axis."""
    if not isinstance(candidate, Mapping):
        is_batching = isinstance(candidate, type) and issubclass(candidate, Scheduler)
        candidate = {"scheduler.batching" if is_batching else "scheduler.order": candidate}
    changes, objects = split_objects({str(key): value for key, value in candidate.items()})
    trusted = files_named(changes.values()).union(policies.trusted)
    return scenario.with_(**changes), replace(policies, **objects, trusted=trusted)


def _metrics(run: Run) -> Sequence[str]:
    return [key for key in (*run.summary, *run.own) if metric_of(run, key) is not None]
