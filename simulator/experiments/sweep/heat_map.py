"""A metric over two axes of a sweep, as cells or as coloured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.experiments.figure_style import new_figure, text
from simulator.experiments.metric_cells import cell
from simulator.experiments.sweep.plot_parts import (
    SCALE,
    axis_type,
    axis_values,
    gaps,
    hover,
    title,
    value_text,
    with_menu,
)
from simulator.experiments.sweep.table import Row, numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MOST_CELLS = 60  # of a side of a heat map; more values than these are drawn as points
_MOST_LABELS = 12  # cells of a row that have room for their numbers


def heat_map(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw each metric over two axes: cells where points form a grid, else points in colour."""
    first, second = list(rows[0].point.keys)[:2]
    ys, xs = axis_values(rows, first), axis_values(rows, second)
    is_grid = len(xs) * len(ys) == len(rows) and max(len(xs), len(ys)) <= _MOST_CELLS
    fig = _cells(rows, metrics, xs, ys) if is_grid else _dots(rows, metrics, first, second)
    fig.update_layout(hovermode="closest", margin={"l": 110, "r": 24, "t": 56, "b": 56})
    fig.update_yaxes(title_text=text(first), showgrid=not is_grid)
    fig.update_xaxes(title_text=text(second), showgrid=not is_grid)
    return with_menu(fig, metrics, lambda i: [{}])


def _cells(rows: Sequence[Row], metrics: Sequence[str], xs: list[str], ys: list[str]) -> Figure:
    from plotly.graph_objects import Heatmap

    fig = new_figure(height=max(320, min(40 * len(ys) + 160, 900)))
    first, second = list(rows[0].point.keys)[:2]
    places = [
        (ys.index(value_text(r.point.keys[first])), xs.index(value_text(r.point.keys[second]))) for r in rows
    ]
    for i, metric in enumerate(metrics):
        grid: list[list[float | None]] = [[None] * len(xs) for _ in ys]
        shown = [[""] * len(xs) for _ in ys]
        for (y, x), row, value in zip(places, rows, numbers(rows, metric), strict=True):
            grid[y][x] = None if math.isnan(value) else value
            shown[y][x] = "failed" if row.failed and not row.runs else cell(metric, row.value(metric))
        fig.add_trace(
            Heatmap(
                x=[text(x) for x in xs],
                y=[text(y) for y in ys],
                z=grid,
                text=shown,
                texttemplate="%{text}" if len(xs) <= _MOST_LABELS else None,
                colorscale=SCALE,
                colorbar={"title": {"text": title(metric), "side": "top"}},
                visible=i == 0,
                xgap=1,
                ygap=1,
                hovertemplate="%{y}, %{x}: %{text}<extra></extra>",
            )
        )
    fig.update_xaxes(type="category")
    fig.update_yaxes(type="category")
    return fig


def _dots(rows: Sequence[Row], metrics: Sequence[str], first: str, second: str) -> Figure:
    from plotly.graph_objects import Scatter

    fig = new_figure(height=480)
    kinds = {}
    places: dict[str, list[Any]] = {}
    for key in (first, second):
        values = [row.point.keys[key] for row in rows]
        kinds[key] = axis_type(values)
        is_text = kinds[key] == "category"
        places[key] = [text(value_text(value)) for value in values] if is_text else values
    for i, metric in enumerate(metrics):
        fig.add_trace(
            Scatter(
                x=places[second],
                y=places[first],
                mode="markers",
                marker={
                    "size": 13,
                    "color": gaps(numbers(rows, metric)),
                    "colorscale": SCALE,
                    "line": {"color": "white", "width": 1},
                    "colorbar": {"title": {"text": title(metric), "side": "top"}},
                },
                visible=i == 0,
                showlegend=False,
                text=[f"{hover(row)}<br>{cell(metric, row.value(metric))}" for row in rows],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    fig.update_xaxes(type=kinds[second])
    fig.update_yaxes(type=kinds[first])
    return fig
