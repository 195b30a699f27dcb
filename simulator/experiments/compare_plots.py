"""Candidates in one figure: latency distributions over each other, and the queue over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from simulator.config.run import Run
from simulator.experiments.figure_style import BUCKETS, log_axis, new_figure, text
from simulator.metrics.summary import latencies
from simulator.metrics.tables import Floats

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colour-blind-safe colours, in an order that keeps neighbours apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_DASHES = ("solid", "dash", "dot", "dashdot")
LONG_TAIL = 10  # an axis is logarithmic if the longest is so many times the median


def compare_latency(runs: Mapping[str, Run]) -> Figure:
    """Draw the distributions of TTFT, TPOT and E2E latency of every candidate, as shares of all injected."""
    titles = {"ttft": "Time to first token", "tpot": "Time per output token", "e2el": "End-to-end latency"}
    fig = new_figure(1, 3, height=380, subplot_titles=list(titles.values()), horizontal_spacing=0.06)
    measured = {name: latencies(run.requests) for name, run in runs.items()}
    for col, metric in enumerate(titles, start=1):
        curves = {name: 1e3 * getattr(each, metric) for name, each in measured.items()}
        curves = {name: np.sort(ms[~np.isnan(ms)]) for name, ms in curves.items()}
        for i, (name, ms) in enumerate(curves.items()):
            if len(ms):
                _add_curve(fig, col, i, name, ms, len(runs[name].requests))
        pooled = np.concatenate(list(curves.values()))
        is_long = len(pooled) > 0 and pooled.max() > LONG_TAIL * np.median(pooled) > 0
        axis = log_axis(pooled[pooled > 0].min(), pooled.max()) if is_long else {"rangemode": "tozero"}
        unit = "ms, log scale" if is_long else "ms"
        fig.update_xaxes(**axis, title_text=f"{metric.upper()} ({unit})", col=col)
    fig.update_yaxes(range=[0, 1.02], tickformat=".0%")
    fig.update_yaxes(title_text="share of injected requests", col=1)
    fig.update_layout(hovermode="closest", margin={"t": 84}, legend={"y": 1.12})
    return fig


def _add_curve(fig: Figure, col: int, i: int, name: str, ms: Floats, injected: int) -> None:
    from plotly.graph_objects import Scatter

    keep = np.unique(np.linspace(0, len(ms) - 1, BUCKETS).round().astype(np.int64))
    curve = Scatter(
        x=ms[keep],
        y=(keep + 1) / injected,
        name=text(name),
        legendgroup=str(i),
        showlegend=col == 1,
        mode="lines",
        line=line_style(i),
        hovertemplate="%{y:.1%} within %{x:,.1f} ms",
    )
    fig.add_trace(curve, row=1, col=col)


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
