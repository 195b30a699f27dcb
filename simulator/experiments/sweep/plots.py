"""Pictures of a sweep: a metric over one axis, two, or more, and what users and owners of GPUs trade.

The last is the Pareto picture of `vllm bench sweep plot_pareto`: output tokens per second and user (1000 /
mean TPOT in ms) against output tokens per second and GPU. A metric is chosen in a menu of the figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.errors import ConfigError
from simulator.experiments.figure_style import DECODE, NEUTRAL, TROUBLE, empty_note, new_figure, text
from simulator.experiments.metric_cells import COLUMNS, cell
from simulator.experiments.pareto import pareto_front
from simulator.experiments.sweep.table import Row, numbers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SCALE = "Cividis"  # made for all kinds of colour vision: Nunez, Anderton and Renslow, PLoS ONE 13(7), 2018
_LONG_AXIS = 30  # an axis is logarithmic if its largest value is so many times the smallest
_MOST_CELLS = 60  # of a side of a heat map; more values than these are drawn as points


def tokens_per_user_and_gpu(rows: Sequence[Row]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return output tokens per second, per user and per GPU; shape (rows, 2), nan where there are none."""
    tpot, output = np.array(numbers(rows, "mean_tpot_ms")), np.array(numbers(rows, "output_throughput"))
    gpus = np.array([row.point.scenario.parallel.tensor_parallel_size for row in rows], dtype=np.float64)
    tpot[tpot <= 0] = math.nan
    return np.column_stack([1000.0 / tpot, output / gpus]) if len(rows) else np.empty((0, 2))


def pareto_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows on the front of tokens per user and per GPU, those with a failed run left out."""
    good = [row for row in rows if not row.failed]
    marks = pareto_front(tokens_per_user_and_gpu(good))
    return [row for row, mark in zip(good, marks, strict=True) if mark]


def pareto(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw all points, the front as a line through those that nothing else beats in both respects."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=460)
    good = [row for row in rows if not row.failed]
    values = tokens_per_user_and_gpu(good)
    if not len(values) or np.isnan(values).any(axis=1).all():
        return empty_note(fig, "no point has both a TPOT and a throughput")
    front = pareto_front(values)
    order = np.argsort(values[front][:, 0])
    for name, marks, color, size in (
        ("other points", ~front, NEUTRAL, 7),
        ("Pareto front", front, DECODE, 10),
    ):
        chosen = np.flatnonzero(marks)
        chosen = chosen[order] if name == "Pareto front" else chosen
        fig.add_trace(
            Scatter(
                x=values[chosen, 0],
                y=values[chosen, 1],
                mode="lines+markers" if name == "Pareto front" else "markers",
                line={"color": color, "width": 1.4, "shape": "linear"},
                marker={"color": color, "size": size},
                name=name,
                text=[_hover(good[i]) for i in chosen],
                hovertemplate="%{text}<br>%{x:.1f} tok/s a user, %{y:,.0f} tok/s a GPU<extra></extra>",
            )
        )
    fig.update_layout(hovermode="closest")
    fig.update_xaxes(title_text="output tokens per second and user (1000 / mean TPOT in ms)")
    fig.update_yaxes(title_text="output tokens per second and GPU", rangemode="tozero")
    return fig


def line(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw each metric over the one axis, with the interval over replications where there is one."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=420)
    key = next(iter(rows[0].point.keys))
    ordered = sorted(rows, key=lambda row: _rank(row.point.keys[key]))
    xs = [row.point.keys[key] for row in ordered]
    is_number = all(map(_is_number, xs))
    for i, metric in enumerate(metrics):
        ys = numbers(ordered, metric)
        fig.add_trace(
            Scatter(
                x=xs if is_number else [_name(x) for x in xs],
                y=_json(ys),
                mode="lines+markers" if is_number else "markers",
                line={"color": DECODE, "width": 1.6},
                marker={"color": DECODE, "size": 8},
                error_y=_error(ordered, metric),
                visible=i == 0,
                showlegend=False,
                text=[_hover(row) for row in ordered],
                hovertemplate="%{text}<br>%{y:,.4g}<extra></extra>",
            )
        )
    fig.update_layout(hovermode="closest")
    sizes = [float(x) for x in xs if isinstance(x, int | float)]
    is_log = is_number and min(sizes) > 0 and max(sizes) >= _LONG_AXIS * min(sizes)
    fig.update_xaxes(title_text=text(key), type="log" if is_log else "linear" if is_number else "category")
    titles = [_title(metric) for metric in metrics]
    fig.update_yaxes(title_text=titles[0])
    return _with_menu(fig, metrics, lambda i: [{"yaxis.title.text": titles[i]}])


def heat_map(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw each metric over two axes: cells where points form a grid, else points in colour."""
    first, second = list(rows[0].point.keys)[:2]
    ys, xs = _axis_values(rows, first), _axis_values(rows, second)
    is_grid = len(xs) * len(ys) == len(rows) and max(len(xs), len(ys)) <= _MOST_CELLS
    fig = _cells(rows, metrics, xs, ys) if is_grid else _dots(rows, metrics, first, second)
    fig.update_layout(hovermode="closest", margin={"l": 110, "r": 24, "t": 56, "b": 56})
    fig.update_yaxes(title_text=text(first), showgrid=not is_grid)
    fig.update_xaxes(title_text=text(second), showgrid=not is_grid)
    return _with_menu(fig, metrics, lambda i: [{}])


def _cells(rows: Sequence[Row], metrics: Sequence[str], xs: list[str], ys: list[str]) -> Figure:
    from plotly.graph_objects import Heatmap

    fig = new_figure(height=max(320, min(40 * len(ys) + 160, 900)))
    first, second = list(rows[0].point.keys)[:2]
    places = [(ys.index(_name(r.point.keys[first])), xs.index(_name(r.point.keys[second]))) for r in rows]
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
                texttemplate="%{text}" if len(xs) <= 12 else None,
                colorscale=SCALE,
                colorbar={"title": {"text": _title(metric), "side": "right"}},
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
        kinds[key] = "linear" if all(map(_is_number, values)) else "category"
        places[key] = values if kinds[key] == "linear" else [text(_name(value)) for value in values]
    for i, metric in enumerate(metrics):
        fig.add_trace(
            Scatter(
                x=places[second],
                y=places[first],
                mode="markers",
                marker={
                    "size": 13,
                    "color": _json(numbers(rows, metric)),
                    "colorscale": SCALE,
                    "line": {"color": "white", "width": 1},
                    "colorbar": {"title": {"text": _title(metric), "side": "right"}},
                },
                visible=i == 0,
                showlegend=False,
                text=[f"{_hover(row)}<br>{cell(metric, row.value(metric))}" for row in rows],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    fig.update_xaxes(type=kinds[second])
    fig.update_yaxes(type=kinds[first])
    return fig


def parallel(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw a line per point through all its keys and the chosen metric, which gives the colour."""
    from plotly.graph_objects import Parcoords

    fig = new_figure(height=480)
    keys = [_dimension(key, [row.point.keys[key] for row in rows]) for key in rows[0].point.keys]
    for i, metric in enumerate(metrics):
        values = np.array(numbers(rows, metric))
        known = ~np.isnan(values)
        if not known.any():
            values, known = np.zeros(len(rows)), np.ones(len(rows), dtype=bool)
        chosen = [
            {**each, "values": [v for v, k in zip(each["values"], known, strict=True) if k]} for each in keys
        ]
        fig.add_trace(
            Parcoords(
                dimensions=[*chosen, {"label": _title(metric), "values": values[known].tolist()}],
                line={
                    "color": values[known].tolist(),
                    "colorscale": SCALE,
                    "showscale": True,
                    "colorbar": {"title": {"text": _title(metric), "side": "right"}},
                },
                labelfont={"size": 12},
                visible=i == 0,
            )
        )
    fig.update_layout(margin={"l": 90, "r": 60, "t": 110, "b": 32})
    return _with_menu(fig, metrics, lambda i: [{}])


def _dimension(key: str, values: list[Any]) -> dict[str, Any]:
    """Return an axis of the parallel coordinates; texts become numbers with labels."""
    label = text(key.rpartition(".")[2])
    if all(map(_is_number, values)):
        return {"label": label, "values": [float(value) for value in values]}
    names = sorted(dict.fromkeys(map(_name, values)), key=_rank)
    return {
        "label": label,
        "values": [names.index(_name(value)) for value in values],
        "tickvals": list(range(len(names))),
        "ticktext": [text(name, 30) for name in names],
    }


def by_axes(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw the metrics over what was varied: a line, a heat map or parallel coordinates."""
    return SWEEP_PLOTS[fitting(rows)](rows, metrics)


def fitting(rows: Sequence[Row]) -> str:
    """Return the kind of figure that fits the number of axes."""
    num = len(rows[0].point.keys) if rows else 1
    return "line" if num == 1 else "heatmap" if num == 2 else "parallel"


def checked_kind(rows: Sequence[Row], kind: str) -> str:
    """Return the kind if these rows can be drawn so; ConfigError else."""
    axes = len(rows[0].point.keys) if rows else 0
    needs = {"line": axes == 1, "heatmap": axes == 2}
    if not rows or not needs.get(kind, True):
        raise ConfigError(f"plot: {kind} does not fit a sweep of {axes} keys; {fitting(rows)} does")
    return kind


def _with_menu(fig: Figure, metrics: Sequence[str], layout: Callable[[int], list[dict[str, Any]]]) -> Figure:
    """Let a menu choose which trace, one a metric, is seen."""
    if len(metrics) < 2:
        return fig
    buttons = [
        {
            "label": _title(metric),
            "method": "update",
            "args": [{"visible": [j == i for j in range(len(metrics))]}, *layout(i)],
        }
        for i, metric in enumerate(metrics)
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "pad": {"b": 8}}
    if "parcoords" in {trace.type for trace in fig.data}:
        menu["pad"] = {"b": 52}
    return fig.update_layout(updatemenus=[{**menu, "bgcolor": "white", "bordercolor": "#C4C9CF"}])


def _error(rows: Sequence[Row], metric: str) -> dict[str, Any] | None:
    found = [row.estimates.get(metric) for row in rows]
    if not any(each is not None and each.high is not None for each in found):
        return None
    ups = [0.0 if each is None or each.high is None else each.high - each.mean for each in found]
    return {"type": "data", "array": ups, "color": TROUBLE, "thickness": 1.2, "width": 5}


def _axis_values(rows: Sequence[Row], key: str) -> list[str]:
    values = sorted((row.point.keys[key] for row in rows), key=_rank)
    return list(dict.fromkeys(map(_name, values)))


def _rank(value: object) -> tuple[int, float, str]:
    """Sort numbers by size, before texts, which keep no order of their own."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, _name(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _hover(row: Row) -> str:
    words = "<br>".join(text(f"{key}: {_name(value)}", 90) for key, value in row.point.keys.items())
    return f"point {row.point.number}<br>{words}"


def _title(metric: str) -> str:
    return text(COLUMNS.get(metric, metric))


def _json(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


SWEEP_PLOTS: dict[str, Callable[[Sequence[Row], Sequence[str]], Figure]] = {
    "pareto": pareto,
    "line": line,
    "heatmap": heat_map,
    "parallel": parallel,
}
