"""Pictures of a sweep: a metric over one axis, two (`heat_map`), or more; and the `trade_off`.

A metric is chosen in a menu of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError
from simulator.experiments.figure_style import DECODE, TROUBLE, new_figure, text
from simulator.experiments.sweep.heat_map import heat_map
from simulator.experiments.sweep.plot_parts import (
    axis_type,
    gaps,
    hover,
    is_number,
    rank,
    title,
    value_text,
    with_menu,
)
from simulator.experiments.sweep.table import Row, numbers
from simulator.experiments.sweep.trade_off import pareto

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PANELS = 3  # side by side


def line(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw each metric over the one axis, with the interval over replications where there is one."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=420)
    key = next(iter(rows[0].point.keys))
    ordered = sorted(rows, key=lambda row: rank(row.point.keys[key]))
    xs = [row.point.keys[key] for row in ordered]
    kind = axis_type(xs)
    for i, metric in enumerate(metrics):
        ys = numbers(ordered, metric)
        fig.add_trace(
            Scatter(
                x=_places(xs),
                y=gaps(ys),
                mode="markers" if kind == "category" else "lines+markers",
                line={"color": DECODE, "width": 1.6},
                marker={"color": DECODE, "size": 8},
                error_y=_error(ordered, metric),
                visible=i == 0,
                showlegend=False,
                text=[hover(row) for row in ordered],
                hovertemplate="%{text}<br>%{y:,.4g}<extra></extra>",
            )
        )
    fig.update_layout(hovermode="closest")
    fig.update_xaxes(title_text=text(key), type=kind)
    titles = [title(metric) for metric in metrics]
    fig.update_yaxes(title_text=titles[0])
    return with_menu(fig, metrics, lambda i: [{"yaxis.title.text": titles[i]}])


def scatter(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draw each metric over every key: a dot per point, and the mean of all that share a listed value."""
    from plotly.graph_objects import Scatter

    keys = list(rows[0].point.keys)
    cols = min(_PANELS, len(keys))
    lines = -(-len(keys) // cols)
    fig = new_figure(
        lines,
        cols,
        height=300 * lines + 60,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.3 / lines,
    )
    for i, metric in enumerate(metrics):
        ys = numbers(rows, metric)
        for place, key in enumerate(keys):
            values = [row.point.keys[key] for row in rows]
            xs = _places(values)
            at = {"row": place // cols + 1, "col": place % cols + 1}
            words = {"visible": i == 0, "showlegend": i == 0 and not place}
            dots = {"color": DECODE, "size": 7, "opacity": 0.55}
            fig.add_trace(
                Scatter(
                    x=xs,
                    y=gaps(ys),
                    mode="markers",
                    marker=dots,
                    name="a point",
                    text=[hover(row) for row in rows],
                    hovertemplate="%{text}<br>%{y:,.4g}<extra></extra>",
                    **words,
                ),
                **at,
            )
            means = _means(values, xs, ys)
            mark = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": TROUBLE}}
            fig.add_trace(
                Scatter(
                    x=list(means),
                    y=list(means.values()),
                    mode="markers",
                    marker=mark,
                    name="mean of the points with this value",
                    hovertemplate="mean %{y:,.4g}<extra></extra>",
                    **words,
                ),
                **at,
            )
            kind = axis_type(values)
            fig.update_xaxes(
                title_text=text(key), type=kind, tickangle=0 if kind != "category" else None, **at
            )
    fig.update_layout(hovermode="closest", margin={"l": 76, "r": 24, "t": 70, "b": 60})
    fig.update_layout(legend={"x": 1, "xanchor": "right", "y": 1.02})
    titled = [f"yaxis{place * cols + 1 if place else ''}.title.text" for place in range(lines)]
    fig.update_layout({name: title(metrics[0]) for name in titled})
    return with_menu(fig, metrics, lambda i: [dict.fromkeys(titled, title(metrics[i]))])


def _means(values: Sequence[object], xs: Sequence[object], ys: Sequence[float]) -> dict[object, float]:
    """Return a metric's mean at each place that several points share; none where there are many places."""
    shared: dict[object, list[float]] = {}
    for x, y in zip(xs, ys, strict=True):
        if y == y:
            shared.setdefault(x, []).append(y)
    if len(shared) > len(values) / 2:
        return {}
    return {x: fmean(ys) for x, ys in shared.items()}


def _places(values: Sequence[object]) -> list[object]:
    """Return where values stand on an axis: numbers as they are, else all as texts."""
    return list(values) if all(map(is_number, values)) else [text(value_text(value), 30) for value in values]


def fitting(rows: Sequence[Row]) -> str:
    """Return the kind of figure that fits the number of axes."""
    num = len(rows[0].point.keys) if rows else 1
    return "line" if num == 1 else "heatmap" if num == 2 else "scatter"


def checked_kind(rows: Sequence[Row], kind: str) -> str:
    """Return the kind if these rows can be drawn so; ConfigError else."""
    axes = len(rows[0].point.keys) if rows else 0
    needs = {"line": axes == 1, "heatmap": axes == 2}
    if not rows or not needs.get(kind, True):
        raise ConfigError(f"plot: {kind} does not fit a sweep of {axes} keys; {fitting(rows)} does")
    return kind


def _error(rows: Sequence[Row], metric: str) -> dict[str, Any] | None:
    found = [row.estimates.get(metric) for row in rows]
    if not any(each is not None and each.high is not None for each in found):
        return None
    ups = [0.0 if each is None or each.high is None else each.high - each.mean for each in found]
    return {"type": "data", "array": ups, "color": TROUBLE, "thickness": 1.2, "width": 5}


SWEEP_PLOTS: dict[str, Callable[[Sequence[Row], Sequence[str]], Figure]] = {
    "pareto": pareto,
    "line": line,
    "heatmap": heat_map,
    "scatter": scatter,
}
