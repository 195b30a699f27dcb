"""A cache replay for notebooks: a frame, a figure, a page."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.experiments.cache_replay import CacheReplay
from simulator.experiments.cache_report import about, hit_rate_figure, save_replay, table_text, tables_html
from simulator.experiments.report_page import escape

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class CacheResult:
    """A trace's hit rates by eviction and capacity, replayed without timing."""

    def __init__(self, found: CacheReplay) -> None:
        self._found = found

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per eviction and capacity; rates and gaps as fractions, see `CacheReplay.rows`."""
        import pandas as pd

        return pd.DataFrame(self._found.rows())

    def plot(self) -> Figure:
        """Draw hit rate against capacity."""
        from simulator.experiments.private_figure import PrivateFigure

        return PrivateFigure(hit_rate_figure(self._found))

    def save(self, folder: str | Path) -> Path:
        """Write cache.json and cache.html."""
        save_replay(self._found, Path(folder))
        return Path(folder)

    def __str__(self) -> str:
        return table_text(self._found)

    def _repr_html_(self) -> str:
        return f"<p>{escape(about(self._found))}</p>{tables_html(self._found)}"
