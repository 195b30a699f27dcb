"""Trials as lines through their values and objectives (parallel coordinates; Inselberg, 1985).

Drawn with plain lines: plotly's own needs WebGL, which many a browser on a server lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.experiments.figure_style import GRID, INK, new_figure, text
from simulator.experiments.search.result import Found
from simulator.experiments.search.trials import Trial
from simulator.experiments.sweep.designs import Axis, Range
from simulator.experiments.sweep.plan import shown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

GROUPS = (
    ("the other half", "#C4C9CF", 0.5),
    ("best half", "#56B4E9", 0.25),
    ("best quarter", "#0072B2", 0.1),
    ("best tenth", "#D55E00", 0.0),
)
"""Names, colours and the share of better trials above which each group begins, worst first."""
TICKS = 5


def parallel(found: Found) -> Figure:
    """Draw each complete trial as a line through its values and objectives, the best on top."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=460)
    goal = found.search.objectives[0]
    sign = -1.0 if goal.maximize else 1.0
    ranked = sorted(found.complete, key=lambda trial: (sign * trial.values[goal.metric], trial.number))
    columns = [_setting(key, axis, ranked) for key, axis in found.search.space.items()]
    columns += [_metric([trial.values[name] for trial in ranked]) for name in found.search.goals]
    heights = np.array([places for places, _ in columns]).T
    begin = len(ranked)
    for name, color, share in GROUPS:
        first = int(np.ceil(share * len(ranked)))
        rows = heights[first:begin]
        begin = first
        if len(rows):
            x = [*range(len(columns)), None] * len(rows)
            y = [each for row in rows.tolist() for each in (*row, None)]
            fig.add_trace(
                Scatter(
                    x=x,
                    y=y,
                    mode="lines",
                    name=f"{name} by {text(goal.metric)}",
                    line={"color": color, "width": 1.5},
                    opacity=0.7,
                    hoverinfo="skip",
                )
            )
    names = [*(key.rpartition(".")[2] for key in found.search.space), *found.search.goals]
    _draw_axes(fig, names, [ticks for _, ticks in columns])
    return fig


def _draw_axes(fig: Figure, names: list[str], ticks: list[list[tuple[float, str]]]) -> None:
    for i, each in enumerate(ticks):
        fig.add_shape(type="line", x0=i, x1=i, y0=0, y1=1, line={"color": INK, "width": 1}, layer="below")
        for height, label in each:
            fig.add_annotation(
                x=i,
                y=height,
                text=label,
                showarrow=False,
                xanchor="left",
                xshift=4,
                font={"size": 11},
                bgcolor="rgba(255,255,255,0.75)",
            )
    fig.update_xaxes(
        tickvals=list(range(len(names))),
        ticktext=[text(name, 26) for name in names],
        range=[-0.15, len(names) - 0.6],
        gridcolor=GRID,
    )
    fig.update_yaxes(visible=False, range=[-0.04, 1.04])
    fig.update_layout(hovermode=False, margin={"l": 30, "r": 30})


Column = tuple[list[float], list[tuple[float, str]]]
"""Where the trials are between 0 and 1, and the ticks: where, and what they say."""


def _setting(key: str, axis: Axis, trials: list[Trial]) -> Column:
    values: list[Any] = [trial.point[key] for trial in trials]
    if not isinstance(axis, Range):
        known = [shown(key, each) for each in axis.values]
        last = max(len(known) - 1, 1)
        return [known.index(v) / last for v in values], [
            (i / last, text(name, 16)) for i, name in enumerate(known)
        ]
    low, high = (np.log(axis.low), np.log(axis.high)) if axis.log else (axis.low, axis.high)
    places = ((np.log(values) if axis.log else np.array(values)) - low) / (high - low)
    steps = np.linspace(0.0, 1.0, TICKS)
    at = low + (high - low) * steps
    labels = [_number(float(v)) for v in (np.exp(at) if axis.log else at)]
    return places.tolist(), list(zip(steps.tolist(), labels, strict=True))


def _metric(values: list[float]) -> Column:
    low, high = min(values), max(values)
    span = high - low or 1.0
    steps = np.linspace(0.0, 1.0, TICKS).tolist()
    ticks = [(step, _number(low + span * step)) for step in steps]
    return [(value - low) / span for value in values], ticks


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
