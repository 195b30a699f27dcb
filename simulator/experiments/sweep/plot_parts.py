"""What the pictures of a sweep have in common: a menu of metrics, names of values, their order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from simulator.experiments.figure_style import text
from simulator.experiments.metric_cells import COLUMNS
from simulator.experiments.sweep.table import Row

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SCALE = "Cividis"  # made for all kinds of colour vision: Nunez, Anderton and Renslow, PLoS ONE 13(7), 2018
_LONG_AXIS = 30  # an axis is logarithmic if its largest value is so many times the smallest


def with_menu(fig: Figure, metrics: Sequence[str], layout: Callable[[int], list[dict[str, Any]]]) -> Figure:
    """Let a menu choose the metric; its traces are equally many for each, in the order of the metrics."""
    if len(metrics) < 2:
        return fig
    each = len(fig.data) // len(metrics)
    buttons = [
        {
            "label": title(metric),
            "method": "update",
            "args": [{"visible": [j // each == i for j in range(len(fig.data))]}, *layout(i)],
        }
        for i, metric in enumerate(metrics)
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "pad": {"b": 8}}
    return fig.update_layout(updatemenus=[{**menu, "bgcolor": "white", "bordercolor": "#C4C9CF"}])


def axis_values(rows: Sequence[Row], key: str) -> list[str]:
    values = sorted((row.point.keys[key] for row in rows), key=rank)
    return list(dict.fromkeys(map(value_text, values)))


def rank(value: object) -> tuple[int, float, str]:
    """Sort numbers by size, before texts, which keep no order of their own."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, value_text(value))


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def hover(row: Row) -> str:
    words = "<br>".join(text(f"{key}: {value_text(value)}", 90) for key, value in row.point.keys.items())
    return f"point {row.point.number}<br>{words}"


def title(metric: str) -> str:
    return text(COLUMNS.get(metric, metric))


def gaps(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def axis_type(values: Sequence[object]) -> str:
    """Return plotly's type of an axis with these values."""
    sizes = [float(value) for value in values if is_number(value)]
    if len(sizes) < len(values):
        return "category"
    return "log" if min(sizes) > 0 and max(sizes) >= _LONG_AXIS * min(sizes) else "linear"
