"""Bounds for notebooks: frames, a summary, figures, a page."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import ConfigError, suggest
from simulator.experiments.bounds import Found
from simulator.experiments.bounds_gap import METRICS, rows, verdict
from simulator.experiments.bounds_report import save_bounds, summary, table_text, tables_html
from simulator.experiments.report_page import escape

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class Bounds:
    """How far a run is from the best possible. `summary` has the keys of bounds.json."""

    def __init__(self, found: Found) -> None:
        self._found = found

    @cached_property
    def summary(self) -> dict[str, object]:
        """Everything in numbers and words."""
        return summary(self._found)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per metric: the run, its bound, their ratio, the reference order and its change."""
        import pandas as pd

        return pd.DataFrame(rows(self._found)).set_index("metric")

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per completed request that counts: ttft and e2el, and the least of each, in seconds."""
        import pandas as pd

        own = self._found.own
        ids = [own.run.requests.id[i] for i in own.measured.rows.tolist()]
        columns: dict[str, object] = {"id": ids}
        for metric in METRICS:
            columns[metric] = getattr(own.measured, metric)
            columns[f"least_{metric}"] = None if own.alone is None else own.least(metric)
        return pd.DataFrame(columns)

    def plot(self, kind: str = "slowdown") -> Figure:
        """Draw `slowdown` or `makespan`."""
        from simulator.experiments.bounds_plots import BOUNDS_PLOTS
        from simulator.experiments.private_figure import PrivateFigure

        if kind not in BOUNDS_PLOTS:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, BOUNDS_PLOTS)}")
        return PrivateFigure(BOUNDS_PLOTS[kind](self._found))

    def save(self, folder: str | Path) -> Path:
        """Write bounds.json and bounds.html."""
        save_bounds(self._found, Path(folder))
        return Path(folder)

    def __str__(self) -> str:
        return table_text(self._found)

    def _repr_html_(self) -> str:
        return f"<p>{escape(' '.join(verdict(self._found)))}</p>{''.join(tables_html(self._found).values())}"
