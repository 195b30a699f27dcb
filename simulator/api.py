"""What a notebook imports: simulate, look, compare two runs, size memory, read traces.

Everything here is a thin call into the packages below; heavy libraries load when first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.batch import Batch, Chunk
from simulator.config.axes import split_objects
from simulator.config.build import NO_POLICIES, Policies
from simulator.config.loading import load_scenario
from simulator.config.policies import files_named
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.decisions import Decision
from simulator.errors import ConfigError, InputError, SimulatorError, suggest
from simulator.experiments.bounds import find_bounds
from simulator.experiments.bounds_result import Bounds
from simulator.experiments.cache_replay import replay_cache as _replay_cache
from simulator.experiments.cache_result import CacheResult
from simulator.experiments.compare import Candidate
from simulator.experiments.compare import Comparison as _Comparison
from simulator.experiments.compare import compare as _compare
from simulator.experiments.diff import Diff
from simulator.experiments.diff import diff as _diff
from simulator.experiments.explain import Explanation
from simulator.experiments.explain import explain as _explain
from simulator.experiments.judge import judge
from simulator.experiments.progress import ProgressBar
from simulator.experiments.run_folder import SavedRun, save_run, write_run_report
from simulator.experiments.run_folder import load_run as _load_run
from simulator.kv.cached_block import Block
from simulator.kv.eviction import EVICTIONS, Eviction
from simulator.kv.size import KvSize, kv_size
from simulator.latency.profile import Profile
from simulator.latency.profile_file import load_profile
from simulator.metrics.block import result_block
from simulator.metrics.tables import STATUS, RequestTable, StepTable
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.admission import ADMISSIONS, ADMIT, SHED, WAIT, Admission
from simulator.schedulers.context import Context
from simulator.schedulers.orders import ORDERS, Order
from simulator.schedulers.preemption import VICTIMS, Victim
from simulator.workload.traces import read_trace as load_trace
from simulator.workload.workload import Workload

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

__all__ = [
    "ADMISSIONS",
    "ADMIT",
    "BATCHING",
    "EVICTIONS",
    "ORDERS",
    "SHED",
    "VICTIMS",
    "WAIT",
    "Batch",
    "Block",
    "Bounds",
    "CacheResult",
    "Chunk",
    "Comparison",
    "ConfigError",
    "Context",
    "Diff",
    "InputError",
    "KvSize",
    "Profile",
    "Request",
    "Result",
    "Scenario",
    "Scheduler",
    "Sequence",
    "SimulatorError",
    "Workload",
    "bounds",
    "compare",
    "diff",
    "kv_size",
    "load_profile",
    "load_run",
    "load_scenario",
    "load_trace",
    "replay_cache",
    "simulate",
]


class Result:
    """What came of a run. `summary` has the keys of `vllm bench serve`, and ours under "servetwin"."""

    def __init__(self, saved: SavedRun, run: Run | None = None, policies: Policies = NO_POLICIES) -> None:
        self.scenario = saved.scenario
        self.summary = saved.summary
        self._saved = saved
        self._run = run
        self._policies = policies if run is None else run.policies

    @classmethod
    def of(cls, run: Run) -> Result:
        """Wrap a run that was just made."""
        decisions = None if run.log is None else run.log.lines
        return cls(SavedRun(run.scenario, run.summary, run.requests, run.steps, decisions), run)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request; times in seconds from the run's start."""
        table = _frame(self._saved.requests)
        table["status"] = [STATUS[code] for code in table["status"]]
        return table

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per engine step; a saved run without steps.csv is simulated again."""
        return _frame(self._step_table())

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """One row per step with what was decided; simulated again if the run kept no log."""
        import pandas as pd

        lines = self._saved.decisions
        if lines is None:
            log = self._again().log
            assert log is not None, "decisions were asked for"
            lines = log.lines
        columns = {name: None for line in lines for name in line} or Decision.__annotations__
        return pd.DataFrame(lines, columns=list(columns))

    def plot(self, kind: str = "latency") -> Figure:
        """Draw one figure; the kinds are the keys of `simulator.experiments.plots.PLOTS`."""
        from simulator.experiments.plots import PLOTS
        from simulator.experiments.private_figure import PrivateFigure

        if kind not in PLOTS:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, PLOTS)}")
        figure = PLOTS[kind](
            self._saved.requests,
            self._step_table(),
            num_blocks=self._own["usable_blocks"],
            slo=self._own["slo"],
        )
        return PrivateFigure(figure)

    @property
    def _own(self) -> dict[str, Any]:
        own = self.summary["servetwin"]
        assert isinstance(own, dict)
        return own

    def explain(self, request_id: str) -> Explanation:
        """Tell one request's story; the run is simulated again with an observer."""
        workload = None if self._run is None else self._run.workload
        return _explain(self.scenario, request_id, self._policies, workload)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the self-contained HTML report."""
        return write_run_report(self._run or self._again(), Path(path))

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, which every command takes in place of a scenario."""
        save_run(self._run or self._again(), Path(folder), logs=("decisions",))
        return Path(folder)

    def _step_table(self) -> StepTable:
        return self._saved.steps or self._again().steps

    def _again(self) -> Run:
        """Simulate the run again, its decisions logged; SimulatorError if something else comes out."""
        before = self._run
        run = run_scenario(
            self.scenario,
            policies=self._policies,
            machine=None if before is None else before.machine,
            workload=None if before is None else before.workload,
            decisions=True,
        )
        theirs = {name: value for name, value in self.summary.items() if name != "servetwin"}
        if theirs != {name: value for name, value in run.summary.items() if name != "servetwin"}:
            raise SimulatorError(
                f"{self.scenario.name}: simulated again, its scenario gives another result; the run was made "
                "by another version, or with a workload or a policy that the scenario does not hold"
            )
        run.summary = self.summary
        self._run, self._policies = run, run.policies
        return run

    def __str__(self) -> str:
        own = self._own
        return f"{result_block(self.summary)}\n{own['provenance']}\n{own.get('verdict') or ''}".rstrip()

    def _repr_html_(self) -> str:
        from simulator.experiments.report_page import cards_html, escape, pre_html
        from simulator.experiments.report_summary import key_figures

        own = self._own
        lead = f"<p><b>{escape(self.scenario.name)}</b>: {escape(own.get('verdict') or '')}</p>"
        note = f"<p><small>{escape(own['provenance'])}</small></p>"
        return (
            lead
            + cards_html(key_figures(self.summary, own["slo"]))
            + note
            + pre_html(result_block(self.summary))
        )


class Comparison:
    """Candidates that served the same requests. `results` are their runs, `winner` the best by `metric`."""

    def __init__(self, found: _Comparison) -> None:
        self.metric = found.metric
        self.winner = found.winner
        self.results = {name: Result.of(run) for name, run in found.runs.items()}
        self._found = found

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per candidate with the figures that matter."""
        import pandas as pd

        return pd.DataFrame(self._found.rows()).set_index("candidate")

    def plot(self, kind: str = "latency") -> Figure:
        """Draw the candidates over each other: `latency` or `queue`."""
        from simulator.experiments.compare_plots import COMPARE_PLOTS
        from simulator.experiments.private_figure import PrivateFigure

        if kind not in COMPARE_PLOTS:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, COMPARE_PLOTS)}")
        return PrivateFigure(COMPARE_PLOTS[kind](self._found.runs))

    def save(self, folder: str | Path) -> Path:
        """Write compare.json, report.html and winner/, which is a scenario."""
        from simulator.experiments.compare_report import save_comparison

        save_comparison(self._found, Path(folder), next(iter(self._found.runs.values())).scenario.name)
        return Path(folder)

    def __str__(self) -> str:
        return self._found.text()

    def _repr_html_(self) -> str:
        from simulator.experiments.report_page import escape, table_html

        titles, rows = self._found.cells()
        best = f"<p>Best {escape(self.metric)}: <b>{escape(self.winner)}</b></p>"
        return best + table_html(titles, rows)


def compare(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    candidates: Mapping[str, Candidate],
    *,
    metric: str | None = None,
    slo: Mapping[str, float] | None = None,
    trust: bool = False,
) -> Comparison:
    """Run candidates on the same requests, side by side.

    A candidate is a mapping of scenario keys to values, which may be policies of your own, or a batching
    class or order itself. `slo` maps ttft, tpot, e2el to ms. `trust` loads policy files that the scenario
    names. ConfigError says what cannot be used.
    """
    base = load_scenario(scenario)
    if slo is not None:
        limits: dict[str, object] = {"slo.ttft_ms": None, "slo.tpot_ms": None, "slo.e2el_ms": None}
        base = base.with_(**limits | {f"slo.{name}_ms": value for name, value in slo.items()})
    with ProgressBar(base.name, unit="candidates") as bar:
        policies = Policies(trust=trust)
        return Comparison(_compare(base, candidates, metric=metric, policies=policies, progress=bar))


def replay_cache(
    trace: str | Path | Workload,
    evictions: Iterable[str | Eviction] | Mapping[str, Eviction] = tuple(EVICTIONS),
    capacities: Iterable[int] | None = None,
    block_size: int | None = None,
    *,
    vllm_rules: bool = False,
) -> CacheResult:
    """Replay a trace's prefixes against caches of `capacities` blocks, without timing.

    An eviction is a name of `EVICTIONS`, `file.py:name`, or a function or class of your own; LRU and Belady,
    a bound for this replay alone, come along. ConfigError or InputError says what cannot be used.
    """
    workload = trace if isinstance(trace, Workload) else load_trace(trace)
    with ProgressBar("cache", unit="replays") as bar:
        return CacheResult(
            _replay_cache(workload, evictions, capacities, block_size, vllm_rules=vllm_rules, progress=bar)
        )


def simulate(
    scenario: str | Path | Mapping[str, Any] | Scenario = "chat-a100",
    *,
    workload: Workload | None = None,
    batching: str | type[Scheduler] | None = None,
    order: str | Order | None = None,
    victim: str | Victim | None = None,
    preemption: str | None = None,
    admission: Iterable[str | Mapping[str, Any] | Admission] | None = None,
    eviction: str | Eviction | None = None,
    profile: str | None = None,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    trust: bool = False,
    bottleneck: bool | None = None,
    progress: bool | None = None,
) -> Result:
    """Simulate a scenario and return its result.

    A policy is a table entry's name, `file.py:name`, or the function or class itself; `preemption` is
    recompute, swap or auto. `set` changes any scenario key by its dotted name. `trust` loads policy files
    that the scenario names by itself. `bottleneck=None` looks for it where the run was quick. ConfigError
    says what cannot be used.

    >>> simulate("tiny-cpu", order="fcfs").summary["completed"]
    40
    """
    resolved = load_scenario(scenario)
    given: dict[str, object] = {
        "scheduler.batching": batching,
        "scheduler.order": order,
        "scheduler.victim": victim,
        "kv.eviction": eviction,
        "scheduler.preemption": preemption,
        "scheduler.admission": None if admission is None else list(admission),
        "latency.profile": profile,
        "seed": seed,
    }
    given = {key: value for key, value in given.items() if value is not None} | dict(set or {})
    changes, objects = split_objects(given)
    resolved = resolved.with_(**changes)
    policies = Policies(**objects, trusted=files_named(changes.values()), trust=trust)
    with ProgressBar(resolved.name) as bar:
        run = run_scenario(
            resolved, policies=policies, workload=workload, progress=None if progress is False else bar
        )
    judge(run, bottleneck)
    return Result.of(run)


def bounds(
    scenario: str | Path | Mapping[str, Any] | Scenario | Result = "chat-a100",
    *,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Bounds:
    """Say how far a scenario's policy, or a result of `simulate`, is from the best possible.

    `set` and `seed` are those of `simulate`; a result is taken as it is. ConfigError says what is not usable.
    """
    if not isinstance(scenario, Result):
        scenario = simulate(scenario, set=set, seed=seed, bottleneck=False, progress=progress)
    elif set or seed is not None:
        raise ConfigError("bounds: a result is taken as it is; set and seed change a scenario")
    run = scenario._run or scenario._again()
    with ProgressBar(f"{run.scenario.name}, reference") as bar:
        return Bounds(find_bounds(run, progress=None if progress is False else bar))


def load_run(folder: str | Path, *, trust: bool = False) -> Result:
    """Load a run folder; with `trust` what must be simulated again loads the policy files that it holds."""
    return Result(_load_run(folder), policies=Policies(trust=trust))


def diff(a: Result | str | Path, b: Result | str | Path) -> Diff:
    """Compare two results or run folders."""
    one, other = (each if isinstance(each, Result) else load_run(each) for each in (a, b))
    return _diff(one._saved, other._saved)


def _frame(table: RequestTable | StepTable) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame({field.name: getattr(table, field.name) for field in fields(table)})
    return frame.astype(dict.fromkeys(frame.select_dtypes("int32"), "int64"))  # or products overflow
