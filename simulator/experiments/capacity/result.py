"""Capacity for notebooks: the rate, frames, figures, a slider."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.report import save_capacity, to_dict
from simulator.experiments.capacity.words import candidate_cells, details, headline, rate_cells, text
from simulator.experiments.report_page import escape, table_html

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class Capacity:
    """The highest rates within the SLO. `rate`, `interval` and `scenario` are the winner's."""

    def __init__(self, found: Found) -> None:
        self._found = found

    @property
    def winner(self) -> str | None:
        """The candidate with the highest capacity; None if no rate meets the SLO."""
        return self._found.winner

    @property
    def rate(self) -> float | None:
        """The winner's capacity, as `summary["rate_unit"]` counts."""
        return None if self.winner is None else self._found.answers[self.winner].rate

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval over replications; None of one replication."""
        found = None if self.winner is None else self._found.answers[self.winner].interval
        if found is None or found.low is None or found.high is None:
            return None
        return found.low, found.high

    @property
    def scenario(self) -> Scenario | None:
        """The winner's scenario at its capacity."""
        return None if self.winner is None else self._found.answers[self.winner].scenario

    @cached_property
    def summary(self) -> dict[str, object]:
        """Everything in numbers and words, with the keys of capacity.json."""
        return to_dict(self._found)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per candidate: its capacity, interval, difference to the first, knee and cost."""
        import pandas as pd

        rows = []
        for name, answer in self._found.answers.items():
            found, apart = answer.interval, self._found.difference(name)
            price = None if answer.at is None else answer.cost(answer.at)
            rows.append(
                {
                    "candidate": name,
                    "rate": answer.rate,
                    "low": None if found is None else found.low,
                    "high": None if found is None else found.high,
                    "difference": None if apart is None else apart.value,
                    "difference_low": None if apart is None else apart.low,
                    "difference_high": None if apart is None else apart.high,
                    "knee": answer.knee,
                    "cost_per_million_output_tokens": None if price is None else price.value,
                    "verdict": self._found.verdict(name),
                }
            )
        return pd.DataFrame(rows).set_index("candidate")

    @cached_property
    def curve(self) -> pd.DataFrame:
        """One row per candidate and rate tested: attainment and goodput with intervals, percentiles in ms."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for name, answer in self._found.answers.items():
            for point in answer.points:
                row: dict[str, object] = {
                    "candidate": name,
                    "rate": point.rate,
                    "meets": answer.met[point.rate],
                }
                estimates = {"attainment": point.attainment, "goodput": point.goodput}
                estimates |= {n: point.mean(n) for n in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")}
                for key, each in estimates.items():
                    found = (None, None, None) if each is None else each
                    row |= dict(zip((key, f"{key}_low", f"{key}_high"), found, strict=True))
                rows.append(row)
        return pd.DataFrame(rows).set_index(["candidate", "rate"])

    def plot(self, kind: str = "goodput") -> Figure:
        """Draw `goodput`, `latency`, `cost` or `difference`."""
        from simulator.experiments.capacity.plots import CAPACITY_PLOTS
        from simulator.experiments.private_figure import PrivateFigure

        if kind not in CAPACITY_PLOTS:
            raise ConfigError(f"plot: unknown kind {kind!r:.80}{suggest(kind, CAPACITY_PLOTS)}")
        return PrivateFigure(CAPACITY_PLOTS[kind](self._found))

    def widget(self) -> Any:
        """Return a slider over the rates tested and, beside the curves, what each gave; needs a notebook.

        ConfigError where ipywidgets or anywidget is missing.
        """
        from simulator.experiments.capacity.widget import capacity_widget

        return capacity_widget(self._found)

    def save(self, folder: str | Path) -> Path:
        """Write capacity.json, report.html and winner/, which is a scenario."""
        save_capacity(self._found, Path(folder))
        return Path(folder)

    def __str__(self) -> str:
        return text(self._found)

    def _repr_html_(self) -> str:
        answers = list(self._found.answers.values())
        lines = [headline(self._found, each) for each in answers]
        lines += details(answers[0]) if len(answers) == 1 else []
        cells = rate_cells(answers[0]) if len(answers) == 1 else candidate_cells(self._found)
        return "".join(f"<p>{escape(line)}</p>" for line in lines) + table_html(*cells)
