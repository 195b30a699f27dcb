"""A run's result and a comparison, as a notebook holds them: tables as frames, figures, reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.config.server import one_replica
from simulator.engine.decisions import Decision
from simulator.errors import ConfigError, SimulatorError, suggest
from simulator.experiments.compare import Comparison as _Comparison
from simulator.experiments.explain import Explanation, explain_measured
from simulator.experiments.explain import explain as _explain
from simulator.experiments.model_interval import interval_html, interval_text_of
from simulator.experiments.run_folder import SavedRun, save_run, write_run_report
from simulator.metrics.block import result_block
from simulator.metrics.tables import STATUS, Floats, Ints, RequestTable, StepTable, columns_of

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from simulator.experiments.tournament.standing import Standing


class Result:
    """What came of a run. `summary` has the keys of `vllm bench serve`, and ours under "servetwin"."""

    def __init__(self, saved: SavedRun, run: Run | None = None, policies: Policies = NO_POLICIES) -> None:
        self.summary = saved.summary
        self._saved = saved
        self._run = run
        self._policies = policies if run is None else run.policies

    @classmethod
    def of(cls, run: Run) -> Result:
        """Wrap a run that was just made."""
        decisions = None if run.log is None else run.log.lines
        return cls(SavedRun(run.scenario, run.summary, run.requests, run.steps, decisions), run)

    @property
    def scenario(self) -> Scenario:
        """What defines the run; InputError for an imported result, of which nobody knows it."""
        return self._saved.scenario

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
            one_replica(self.scenario, "decisions")
            log = self._again().log
            assert log is not None, "decisions were asked for"
            lines = log.lines
        columns = {name: None for line in lines for name in line} or Decision.__annotations__
        return pd.DataFrame(lines, columns=list(columns))

    def plot(self, kind: str = "latency") -> Figure:
        """Draw one figure: a key of `simulator.experiments.plots.PLOTS`; of a cluster also `replicas`."""
        from simulator.experiments.fleet_plots import FLEET_PLOTS
        from simulator.experiments.plots import PLOTS
        from simulator.experiments.private_figure import PrivateFigure

        kinds = PLOTS | (FLEET_PLOTS if "replicas" in self._own else {})
        if kind not in kinds:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, kinds)}")
        figure = kinds[kind](
            self._saved.requests,
            self._step_table(),
            num_blocks=self._own["usable_blocks"],
            slo=self._own["slo"],
            gaps=self._gaps() if kind == "itl" else None,
        )
        return PrivateFigure(figure)

    def _gaps(self) -> tuple[Floats, Ints] | None:
        """Return exact inter-token latencies, None where the steps of a saved run give their shape."""
        run = self._run
        if run is None and ("pipeline" in self._own or "transfers" in self._own):
            run = self._again()  # tokens of a request come from steps that overlap
        return None if run is None else run.gaps

    @property
    def _own(self) -> dict[str, Any]:
        own = self.summary["servetwin"]
        assert isinstance(own, dict)
        return own

    def explain(self, request_id: str) -> Explanation:
        """Tell one request's story; the run is simulated again, a measured one at its recorded times."""
        one_replica(self.scenario, "explain")
        workload = None if self._run is None else self._run.workload
        if self._saved.is_measured:
            return explain_measured(self._saved, request_id, self._policies, workload)
        return _explain(self.scenario, request_id, self._policies, workload)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the self-contained HTML report."""
        return write_run_report(self._run or self._again(), Path(path))

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, which every command takes in place of a scenario.

        A measured run keeps its steps there: they cannot be simulated again.
        """
        logs = ("steps", "decisions") if self._saved.is_measured else ("decisions",)
        save_run(self._run or self._again(), Path(folder), logs=logs)
        return Path(folder)

    def _logged(self) -> SavedRun:
        """Return the run with its decisions, simulated again if it was made here and kept no log."""
        if self._saved.decisions is None and self._run is not None and self.scenario.cluster is None:
            log = self._again().log
            assert log is not None, "decisions were asked for"
            self._saved = replace(self._saved, decisions=log.lines)
        return self._saved

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
            decisions=self.scenario.cluster is None,
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
        intervals = interval_text_of(self.summary)
        lines = [result_block(self.summary), own["provenance"], intervals, own.get("verdict") or ""]
        if own.get("unfinished"):
            lines += own["notes"]  # they say why
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        from simulator.experiments.report_page import cards_html, escape, pre_html
        from simulator.experiments.report_summary import key_figures

        own = self._own
        known = self._saved.known_scenario
        name = own["source"] if known is None else known.name
        lead = f"<p><b>{escape(name)}</b>: {escape(own.get('verdict') or '')}</p>"
        note = f"<p><small>{escape(own['provenance'])}</small></p>"
        return (
            lead
            + cards_html(key_figures(self.summary, own["slo"]))
            + note
            + interval_html(self.summary)
            + pre_html(result_block(self.summary))
        )


ONCE = "One run each: .verdicts serves replications of the requests and says what is chance."


class Comparison:
    """Candidates that served the same requests. `results` are their runs, `winner` the best by `metric`.

    `verdicts`, `frame`, `replications`, `latex` and the plots `difference` and `means` need replications:
    the first of them that is asked for makes them, unless `compare` did or was told not to.
    """

    def __init__(self, found: _Comparison, replicate: Callable[[], object] | None = None) -> None:
        self.metric = found.metric
        self._replicate = replicate
        self.results = {name: Result.of(run) for name, run in found.runs.items()}
        self._found = found

    @property
    def winner(self) -> str:
        """The best by `metric`: in the plain run, or, once there are replications, in their mean."""
        return self._found.winner

    @property
    def verdicts(self) -> dict[str, str]:
        """Win, loss, tie, identical or needs more runs: each candidate against the baseline."""
        return self._standing().verdicts

    @property
    def frame(self) -> pd.DataFrame:
        """One row per candidate: mean over replications, difference, intervals, verdict, turning factor."""
        from simulator.experiments.tournament.tables import frame

        return frame(self._standing())

    @property
    def replications(self) -> pd.DataFrame:
        """One row per candidate and replication with every number of its summary; NaN where it has none."""
        from simulator.experiments.tournament.tables import replications

        return replications(self._standing())

    def latex(self) -> str:
        """Return the table of verdicts as LaTeX (booktabs)."""
        from simulator.experiments.tournament.tables import latex

        return latex(self._standing())

    def _standing(self) -> Standing:
        if self._found.tournament is None and self._replicate is not None:
            self._replicate()
        if self._found.tournament is None:
            raise ConfigError("verdicts: need replications; compare with replications='auto' or a number")
        return self._found.tournament

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per candidate with the figures that matter, of the plain runs."""
        import pandas as pd

        return pd.DataFrame(self._found.rows()).set_index("candidate")

    @cached_property
    def intervals(self) -> pd.DataFrame:
        """One row per candidate and metric: model intervals of value and difference to the baseline.

        Every metric that the draws gave; ConfigError without `n_model_draws`.
        """
        import pandas as pd

        drawn = self._found.drawn
        if drawn is None:
            raise ConfigError("intervals: none were drawn; compare with n_model_draws=20")
        return pd.DataFrame(drawn.rows()).set_index(["candidate", "metric"])

    def plot(self, kind: str = "latency") -> Figure:
        """Draw the candidates over each other, `latency` or `queue`, or `difference` and `means`."""
        from simulator.experiments.compare_plots import COMPARE_PLOTS
        from simulator.experiments.private_figure import PrivateFigure
        from simulator.experiments.tournament.figures import TOURNAMENT_PLOTS

        if kind in TOURNAMENT_PLOTS:
            return PrivateFigure(TOURNAMENT_PLOTS[kind](self._standing()))
        if kind not in COMPARE_PLOTS:
            known = [*COMPARE_PLOTS, *TOURNAMENT_PLOTS]
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, known)}")
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
        certain = "".join(f"<p>{escape(line)}</p>" for line in self._found.certainty())
        if self._found.tournament is None:
            more = "" if self._replicate is None else f"<p><small>{escape(ONCE)}</small></p>"
            return best + table_html(titles, rows) + certain + more
        from simulator.experiments.tournament.page import table_of
        from simulator.experiments.tournament.tables import cells
        from simulator.experiments.tournament.words import lead, verdict_lines

        standing = self._found.tournament
        told = "".join(f"<p>{escape(line)}</p>" for line in [*lead(standing), *verdict_lines(standing)])
        return best + table_of(*cells(standing)) + told + certain


def _frame(table: RequestTable | StepTable) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame({name: getattr(table, name) for name in columns_of(table)})
    return frame.astype(dict.fromkeys(frame.select_dtypes("int32"), "int64"))  # or products overflow
