"""A search's outcome in Python and in notebooks."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.experiments.search.result import Found

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class SearchResult:
    """What a search found. `best` are the winning values by key, `scenario` is the base with them."""

    def __init__(self, found: Found) -> None:
        self.best = dict(found.winner.point)
        self.scenario: Scenario = found.scenario
        self._found = found

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial: its values, metrics, whether it meets the constraints and is on the front."""
        import pandas as pd

        return pd.DataFrame(self._found.rows()).set_index("trial")

    @cached_property
    def front(self) -> pd.DataFrame:
        """The rows of the Pareto front, of one objective the best; best in the first objective first."""
        return self.trials.loc[[trial.number for trial in self._found.front]]

    def plot(self, kind: str | None = None) -> Figure:
        """Draw `history`, `parallel` or, of several objectives, `pareto`, which is then the default."""
        from simulator.experiments.private_figure import PrivateFigure
        from simulator.experiments.search.search_plots import figures

        known = figures(self._found)
        kind = kind or next(iter(known))
        if kind not in known:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, known)}")
        return PrivateFigure(known[kind](self._found))

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as search.json has it."""
        return self._found.to_dict()

    def save(self, folder: str | Path) -> Path:
        """Write search.json, results.csv, report.html and winner/, which is a scenario."""
        from simulator.experiments.search.search_folder import open_folder, save_search

        open_folder(self._found.search, Path(folder), fresh=True).rewrite(self._found.trials)
        save_search(self._found, Path(folder))
        return Path(folder)

    def __str__(self) -> str:
        return "\n".join(self._found.outcome())

    def _repr_html_(self) -> str:
        from simulator.experiments.report_page import escape

        return "".join(f"<p>{escape(line)}</p>" for line in self._found.outcome())
