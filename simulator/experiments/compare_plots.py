"""Candidates in one figure: latency distributions over each other, and the queue over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from simulator.config.run import Run
from simulator.experiments.figure_style import BUCKETS, new_figure, text
from simulator.metrics.summary import latencies
from simulator.metrics.tables import Floats

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colour-blind-safe colours, in an order that keeps neighbours apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_DASHES = ("solid", "dash", "dot", "dashdot")


def compare_latency(runs: Mapping[str, Run]) -> Figure:
    """Draw the distributions of TTFT, TPOT and E2E latency of every candidate, as shares of all injected."""
    from plotly.graph_objects import Scatter

    titles = {"ttft": "Time to first token", "tpot": "Time per output token", "e2el": "End-to-end latency"}
    fig = new_figure(1, 3, height=380, subplot_titles=list(titles.values()), horizontal_spacing=0.06)
    for i, (name, run) in enumerate(runs.items()):
        measured = latencies(run.requests)
        for col, metric in enumerate(titles, start=1):
            values: Floats = getattr(measured, metric)
            ms = np.sort(values[~np.isnan(values)]) * 1e3
            if not len(ms):
                continue
            keep = np.unique(np.linspace(0, len(ms) - 1, BUCKETS).round().astype(np.int64))
            fig.add_trace(
                Scatter(
                    x=ms[keep],
                    y=(keep + 1) / len(run.requests),
                    name=text(name),
                    legendgroup=str(i),
                    showlegend=col == 1,
                    mode="lines",
                    line=line_style(i),
                    hovertemplate="%{y:.1%} within %{x:,.1f} ms",
                ),
                row=1,
                col=col,
            )
            fig.update_xaxes(type="log", title_text=f"{metric.upper()} (ms, log scale)", col=col)
    fig.update_yaxes(range=[0, 1.02], tickformat=".0%")
    fig.update_yaxes(title_text="share of injected requests", col=1)
    fig.update_layout(hovermode="closest", margin={"t": 84}, legend={"y": 1.12})
    return fig


def compare_queue(runs: Mapping[str, Run]) -> Figure:
    """Draw how many requests wait over time, for every candidate."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=320)
    for i, (name, run) in enumerate(runs.items()):
        start, waiting = run.steps.start, run.steps.num_waiting
        step = max(1, len(start) // (2 * BUCKETS))
        cut = len(start) // step * step
        worst = waiting[:cut].reshape(-1, step).max(axis=1)
        fig.add_trace(Scatter(x=start[:cut:step], y=worst, name=text(name), mode="lines", line=line_style(i)))
    fig.update_xaxes(title_text="time since the run's start (s)")
    fig.update_yaxes(title_text="num_requests_waiting")
    return fig


def line_style(i: int) -> dict[str, object]:
    """Return colour and dash of the i-th candidate."""
    return {"color": COLORS[i % len(COLORS)], "width": 2, "dash": _DASHES[i // len(COLORS) % len(_DASHES)]}


COMPARE_PLOTS: dict[str, Callable[[Mapping[str, Run]], Figure]] = {
    "latency": compare_latency,
    "queue": compare_queue,
}
