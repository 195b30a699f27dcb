"""A model's error in two figures: its step times against the measured ones, and its parts by metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.experiments.figure_style import (
    DECODE,
    FAINT,
    INK,
    MEMORY,
    NEUTRAL,
    PREFILL,
    RUNNING,
    TROUBLE,
    WAITING,
    empty_note,
    new_figure,
)
from simulator.experiments.step_errors import KINDS, StepTimes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from simulator.experiments.diff_result import MetricChange

COLORS = dict(zip(KINDS, (DECODE, PREFILL, RUNNING, MEMORY, WAITING), strict=True))
SHOWN = (
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "median_e2el_ms",
    "p99_e2el_ms",
    "output_throughput",
)
MOST = 2000  # points of a kind; more would cover each other


def step_scatter(times: StepTimes) -> Figure:
    """Draw the predicted time of every measured step over the measured one, on logarithmic axes."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=460)
    if not len(times.measured):
        return empty_note(fig, "The measured run made no step.")
    ends = 1e3 * np.array(
        [min(times.measured.min(), times.model.min()), max(times.measured.max(), times.model.max())]
    )
    ends *= (0.9, 1.1)
    equal = {"color": FAINT, "width": 1, "dash": "dash"}
    fig.add_scatter(x=ends, y=ends, mode="lines", line=equal, name="equal", hoverinfo="skip")
    for i, kind in enumerate(KINDS):
        rows = np.flatnonzero(times.kind == i)
        if not len(rows):
            continue
        kept = rows[np.unique(np.linspace(0, len(rows) - 1, MOST).round().astype(np.int64))]
        points = Scatter(
            x=1e3 * times.measured[kept],
            y=1e3 * times.model[kept],
            name=f"{kind} ({len(rows):,})",
            mode="markers",
            marker={"color": COLORS[kind], "size": 6, "opacity": 0.6},
            hovertemplate="measured %{x:,.3f} ms, model %{y:,.3f} ms",
        )
        fig.add_trace(points)
    axis = {"type": "log", "range": np.log10(ends).tolist(), "dtick": "D2", "tickformat": ",.3~g"}
    fig.update_xaxes(title_text="measured step time (ms, log scale)", **axis)
    fig.update_yaxes(title_text="model's step time (ms, log scale)", **axis)
    fig.update_layout(hovermode="closest")
    return fig


def error_parts(changes: Sequence[MetricChange]) -> Figure:
    """Draw each metric's error as its part from decisions and then its part from timing, in percent."""
    known = {change.name: change for change in changes}
    shown = [known[name] for name in SHOWN if name in known and known[name].percent is not None][::-1]
    shown = [change for change in shown if change.share(change.timing) is not None]
    fig = new_figure(height=100 + 40 * max(len(shown), 4))
    if not shown:
        return empty_note(fig, "The error was not split.")
    names = [change.name for change in shown]
    decisions = [change.share(change.decisions) or 0.0 for change in shown]
    timing = [change.share(change.timing) or 0.0 for change in shown]
    noise = [change.noise or 0.0 for change in shown]
    bar = {"y": names, "orientation": "h", "hovertemplate": "%{x:+.2f} %"}
    if any(noise):
        band = bar | {"hovertemplate": "within %{customdata:.2f} %", "customdata": noise}
        fig.add_bar(
            x=[2 * each for each in noise],
            base=[-each for each in noise],
            name="noise of the machine",
            width=0.9,
            marker={"color": NEUTRAL, "opacity": 0.3},
            **band,
        )
    lane = {"width": 0.3} | bar  # two lanes: parts of opposite signs would cover each other
    fig.add_bar(x=decisions, base=0, name="decisions", offset=0.03, marker={"color": TROUBLE}, **lane)
    fig.add_bar(x=timing, base=decisions, name="timing", offset=-0.33, marker={"color": DECODE}, **lane)
    mark = {"symbol": "diamond", "size": 9, "color": INK}
    total = [change.percent for change in shown]
    fig.add_scatter(
        x=total, y=names, mode="markers", name="model - measured", marker=mark, hovertemplate="%{x:+.2f} %"
    )
    fig.add_vline(x=0, line={"color": INK, "width": 1})
    fig.update_xaxes(title_text="part of the error, in percent of the measured value", ticksuffix=" %")
    fig.update_layout(barmode="overlay", hovermode="closest", margin={"l": 140})
    return fig
