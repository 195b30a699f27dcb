"""Bounds in figures: what the makespan is made of, and how much slower than alone requests were."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from simulator.experiments.bounds import REFERENCE, Found
from simulator.experiments.bounds_gap import METRICS, slowdowns
from simulator.experiments.figure_style import (
    BUCKETS,
    DECODE,
    INK,
    NEUTRAL,
    TROUBLE,
    WAITING,
    empty_note,
    log_axis,
    new_figure,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NOTHING = "No request completed."
PALE = "#C9DCEB"


def makespan(found: Found) -> Figure:
    """Draw the run's makespan under the reference's, over every limit: its work and the rest of it."""
    from plotly.graph_objects import Bar

    fig = new_figure(height=120 + 36 * (len(found.limits) + 2))
    if not found.limits:
        return empty_note(fig, NOTHING)
    limits = sorted(found.limits, key=lambda limit: limit.seconds)
    names = [f"limit: {limit.name}" for limit in limits]
    work = [limit.work or 0.0 for limit in limits]
    rest = [limit.seconds - part for limit, part in zip(limits, work, strict=True)]
    runs = {REFERENCE: found.reference.makespan, "this run": found.own.makespan}
    bars = (
        ("work", names, work, DECODE),
        ("until all can be done", names, rest, PALE),
        ("taken", list(runs), list(runs.values()), NEUTRAL),
    )
    for name, y, x, color in bars:
        look = {"marker": {"color": color}, "orientation": "h", "hovertemplate": "%{x:,.2f} s"}
        fig.add_trace(Bar(x=x, y=y, name=name, **look))
    bound = max(limit.seconds for limit in limits)
    fig.add_vline(x=bound, line={"color": INK, "width": 1.5, "dash": "dash"})
    fig.update_xaxes(title_text="seconds from the first arrival", rangemode="tozero")
    fig.update_yaxes(showgrid=False, automargin=True)
    fig.update_layout(barmode="stack", hovermode="closest")
    return fig


def slowdown(found: Found) -> Figure:
    """Draw the distributions of TTFT and E2E over the least, of the run and of the reference."""
    titles = {"ttft": "TTFT / alone", "e2el": "E2E latency / alone"}
    fig = new_figure(1, 2, height=340, subplot_titles=list(titles.values()), horizontal_spacing=0.08)
    if found.own.alone is None:
        return empty_note(fig, NOTHING)
    curves = (("this run", found.own, DECODE, "solid"), (REFERENCE, found.reference, TROUBLE, "dash"))
    for col, metric in enumerate(METRICS, start=1):
        longest = 1.0
        for name, served, color, dash in curves:
            ratio = np.sort(slowdowns(served, metric))
            if len(ratio):
                longest = max(longest, float(ratio[-1]))
                _curve(fig, col, name, ratio, {"color": color, "width": 2, "dash": dash, "shape": "hv"})
        ends = [-0.01, np.log10(longest) + 0.05]
        scale = log_axis(1.0, longest) if longest > 2 else {"type": "log", "nticks": 6}
        fig.update_xaxes(range=ends, title_text="times the least (log scale)", col=col, **scale)
        fig.add_vline(x=1.0, line={"color": WAITING, "width": 1, "dash": "dot"}, row=1, col=col)
    fig.update_yaxes(range=[0, 1.02], tickformat=".0%")
    fig.update_yaxes(title_text="share of requests", col=1)
    fig.update_layout(hovermode="closest", margin={"t": 76}, legend={"y": 1.1})
    return fig


def _curve(fig: Figure, col: int, name: str, ratio: np.ndarray, line: dict[str, object]) -> None:
    from plotly.graph_objects import Scatter

    keep = np.unique(np.linspace(0, len(ratio) - 1, BUCKETS).round().astype(np.int64))
    curve = Scatter(
        x=ratio[keep],
        y=(keep + 1) / len(ratio),
        name=name,
        legendgroup=name,
        showlegend=col == 1,
        mode="lines",
        line=line,
        hovertemplate="%{y:.1%} at most %{x:,.2f} times",
    )
    fig.add_trace(curve, row=1, col=col)


BOUNDS_PLOTS: dict[str, Callable[[Found], Figure]] = {"makespan": makespan, "slowdown": slowdown}
