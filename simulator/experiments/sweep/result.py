"""What a sweep found, for notebooks and for its folder: a frame, figures, the best point, a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError, InputError, suggest
from simulator.experiments.metric_cells import COLUMNS, cell, lower_is_better
from simulator.experiments.run_folder import default_folder
from simulator.experiments.sweep.journal import Journal, Key, write_whole
from simulator.experiments.sweep.points import Sweep
from simulator.experiments.sweep.table import Row, best_row, columns, csv_text, rows_of
from simulator.experiments.sweep.tasks import Outcome

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

RESULTS, REPORT = "results.csv", "report.html"


class SweepResult:
    """The points of a sweep with their metrics: means over replications, with 95 % intervals."""

    def __init__(self, sweep: Sweep, found: Mapping[Key, Outcome]) -> None:
        self.sweep = sweep
        self.metrics = sweep.plan.metrics
        self.rows: list[Row] = rows_of(sweep.points, found)
        self._found = found

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The table of results.csv: a row per point, its keys, then the metrics of the sweep file."""
        import pandas as pd

        return pd.DataFrame(self._columns()).set_index("point")

    @property
    def front(self) -> pd.DataFrame:
        """The rows on the Pareto front of tokens per user and per GPU, in the order of the points."""
        from simulator.experiments.sweep.trade_off import pareto_rows

        return self.frame.loc[[row.point.number for row in pareto_rows(self.rows)]]

    def best(self, metric: str | None = None) -> pd.Series[Any]:
        """Return the row of the frame with the best mean; None takes the sweep's first metric."""
        row = self.best_row(metric or self.metrics[0])
        if row is None:
            raise ConfigError(f"best: no point has a value of {metric or self.metrics[0]!r:.80}")
        return self.frame.iloc[self.rows.index(row)]

    def best_row(self, metric: str) -> Row | None:
        """Return the row with the best mean of any metric, None if none has it."""
        return best_row(self.rows, metric)

    def outcomes(self) -> list[tuple[Key, Outcome]]:
        """Return every run by point and replication."""
        return sorted(self._found.items())

    @property
    def failed(self) -> list[Row]:
        """The points of which a run failed."""
        return [row for row in self.rows if row.failed]

    def plot(self, kind: str | None = None) -> Figure:
        """Draw `pareto`, `line` (one key), `heatmap` (two) or `scatter` (any number); None: what fits."""
        from simulator.experiments.private_figure import PrivateFigure
        from simulator.experiments.sweep.plots import SWEEP_PLOTS, checked_kind, fitting

        kind = kind or fitting(self.rows)
        if kind not in SWEEP_PLOTS:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, SWEEP_PLOTS)}")
        return PrivateFigure(SWEEP_PLOTS[checked_kind(self.rows, kind)](self.rows, self.metrics))

    def save(self, folder: str | Path) -> Path:
        """Write points.jsonl, results.csv and report.html; the folder can be resumed like a command's."""
        folder = Path(folder)
        with Journal(folder, self.sweep, fresh=True) as journal:
            journal.found.update(self._found)
            journal.finish()
        self.write(folder)
        return folder

    def write(self, folder: Path) -> list[Path]:
        """Write results.csv and report.html into a folder that has the runs; InputError if it cannot be."""
        from simulator.experiments.sweep.report import sweep_html

        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror}") from None
        write_whole(folder / RESULTS, csv_text(self._columns()).encode(errors="backslashreplace"))
        write_whole(folder / REPORT, sweep_html(self).encode(errors="backslashreplace"))
        return [folder / RESULTS, folder / REPORT]

    def _columns(self) -> dict[str, list[object]]:
        return columns(self.rows, self.metrics, self.sweep.plan.replications)

    def size(self) -> str:
        """Say how large the sweep is."""
        num, runs = len(self.sweep.points), self.sweep.plan.replications
        return f"{num:,} points" if runs == 1 else f"{num:,} points x {runs} replications"

    def outcome(self) -> list[str]:
        """Say, a line each, which point is best in each metric, how wide the front is, and what failed."""
        from simulator.experiments.sweep.trade_off import pareto_rows

        lines = []
        for metric in self.metrics:
            row = self.best_row(metric) if any(metric in each.estimates for each in self.rows) else None
            if row is None:
                continue
            which = "Lowest" if lower_is_better(metric) else "Highest"
            title = COLUMNS.get(metric, metric)
            value = cell(metric, row.value(metric))
            equal = sum(each.value(metric) == row.value(metric) for each in self.rows) - 1
            others = f" and {equal} more" if equal else ""
            lines.append(
                f"{which} {title}: {value} at point {row.point.number} ({row.point.label()}){others}"
            )
        front = pareto_rows(self.rows)
        if front:
            numbers = ", ".join(str(row.point.number) for row in front[:12]) + ", .." * (len(front) > 12)
            lines.append(f"Pareto front of tokens per user and per GPU: points {numbers}")
        return lines + [
            f"point {row.point.number} failed ({row.point.label()}): {row.error}" for row in self.failed
        ]

    def text(self) -> str:
        """Return what the command prints."""
        return "\n".join([f"{self.sweep.plan.name}: {self.size()}", *self.outcome()])

    def to_dict(self) -> dict[str, object]:
        """Return the table as JSON, a row per point."""
        from simulator.experiments.sweep.trade_off import pareto_rows

        table = self._columns()
        return {
            "sweep": self.sweep.digest,
            "points": len(self.sweep.points),
            "replications": self.sweep.plan.replications,
            "metrics": list(self.metrics),
            "notes": self.sweep.notes,
            "pareto_front": [row.point.number for row in pareto_rows(self.rows)],
            "failed": [{"point": row.point.number, "error": row.error} for row in self.failed],
            "rows": [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)],
        }

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from simulator.experiments.report_page import escape
        from simulator.experiments.sweep.report import table_of

        lines = "".join(f"<p>{escape(line)}</p>" for line in self.outcome())
        return (
            f"<p><b>{escape(self.sweep.plan.name)}</b>: {escape(self.size())}</p>{lines}{table_of(self, 20)}"
        )


def sweep_folder(sweep: Sweep) -> Path:
    """Return runs/sweep-<name>-<digest>."""
    first = default_folder(sweep.plan.base.with_(name=f"sweep-{sweep.plan.name}"[:200]))
    return first.with_name(f"{first.name.rpartition('-')[0]}-{sweep.digest[:8]}")


def result_text(found: Mapping[str, object]) -> str:
    """Return strict JSON."""
    return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False, default=str) + "\n"
