"""How every figure looks, and how a long series becomes a small one.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), which stay apart for colour-blind
readers and in grey print; one meaning keeps one colour in all figures. A long series keeps the lowest and
the highest value of each pixel-wide stretch, so that no spike is lost however long the run was.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simulator.metrics.tables import Floats, Ints

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

WAITING, PREFILL, DECODE, RUNNING = "#E69F00", "#56B4E9", "#0072B2", "#009E73"
MEMORY, TROUBLE, NEUTRAL = "#CC79A7", "#D55E00", "#8A8F98"
LATENCY = DECODE
INK, FAINT, GRID = "#1F2328", "#59636E", "#E7E9EC"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MANY_DECADES = 2.2  # more have no room for ticks between the powers of ten in a third of a page
BUCKETS = 1000  # a figure is about as many pixels wide


def text(name: object, limit: int = 60) -> str:
    """Make a name from outside safe to show in a figure, where plotly reads a few HTML tags.

    >>> text("<b>run</b>")
    '&lt;b&gt;run&lt;/b&gt;'
    """
    raw = str(name)
    return html.escape(raw if len(raw) <= limit else raw[: limit - 1] + "…", quote=False)


def slo_ms(slo: Mapping[str, float | None] | None, metric: str) -> float | None:
    """Return the limit of "ttft", "tpot" or "e2el" in ms, under that key or with `_ms`; None if not set."""
    limits = slo or {}
    value = limits.get(metric, limits.get(f"{metric}_ms"))
    return None if value is None else float(value)


class Stretches(NamedTuple):
    """A long series by equal stretches of x: where each begins, and its lowest, mean and highest value."""

    x: Floats
    low: Floats
    mean: Floats
    high: Floats


def stretches(x: Floats, y: Floats | Ints, count: int = BUCKETS) -> Stretches:
    """Shorten a series that holds each value until the next x; x must not fall.

    At most `count` stretches come back, those without a row are left out. Means are weighted by how long
    each value held. The last value has no length and counts only for low and high.
    """
    share = (x - x[0]) / (float(x[-1] - x[0]) or 1.0)
    bucket = np.minimum(share * count, count - 1).astype(np.int64)
    first = np.flatnonzero(np.diff(bucket, prepend=-1))
    held = np.maximum(np.diff(x, append=x[-1]), 1e-12)
    mean = np.add.reduceat(y * held, first) / np.add.reduceat(held, first)
    values = np.asarray(y, dtype=np.float64)
    return Stretches(x[first], np.minimum.reduceat(values, first), mean, np.maximum.reduceat(values, first))


def new_figure(
    rows: int = 1, cols: int = 1, *, height: int, span: float | None = None, **grid: object
) -> Figure:
    """Return an empty figure in the house style; `span` marks a time axis of that many seconds."""
    from plotly.subplots import make_subplots

    fig = make_subplots(rows=rows, cols=cols, shared_xaxes=span is not None, **grid)
    axis = {
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": "#C4C9CF",
        "ticks": "outside",
        "tickcolor": "#C4C9CF",
        "ticklen": 4,
        "separatethousands": True,
        "exponentformat": "none",
        "title": {"standoff": 8, "font": {"color": FAINT, "size": 12}},
        "tickfont": {"color": FAINT},
    }
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "title": ""}
    fig.update_layout(
        template={"layout": {"xaxis": axis, "yaxis": axis, "legend": legend}},
        height=height,
        margin={"l": 76, "r": 24, "t": 40, "b": 48},
        font={"family": FONT, "size": 12.5, "color": INK},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hoverlabel={"bgcolor": "white", "bordercolor": "#C4C9CF", "font": {"color": INK}},
        hovermode="x unified",
        dragmode="zoom",
    )
    fig.update_annotations(font={"size": 13, "color": INK})
    if span is not None:
        fig.update_layout(meta={"time_axis": True})
        fig.update_xaxes(range=[0, span], hoverformat=".3f", showspikes=False)
        fig.update_xaxes(title_text="time since the run's start (s)", row=rows)
    return fig


def add_line(
    fig: Figure,
    x: Floats,
    y: Floats | Ints,
    *,
    name: str,
    color: str,
    value: str,
    row: int = 1,
    fill: bool = False,
    detail: int = 2 * BUCKETS,
) -> None:
    """Add a series that holds each value until the next, thinned where it is long.

    `value` is plotly's hover text of one point, e.g. "%{y:,.0f} tokens". A series of more than `detail`
    rows is drawn by stretches: the range from lowest to highest in pale, the mean in full colour.
    """
    from plotly.graph_objects import Scatter

    if len(x) == 0:
        return
    line = {"color": color, "width": 1.6, "shape": "hv"}
    words = {"name": name, "legendgroup": name, "hovertemplate": value}
    if len(x) <= detail:
        area = {"fill": "tozeroy", "fillcolor": _pale(color, 0.18)} if fill else {}
        fig.add_trace(Scatter(x=x, y=y, mode="lines", line=line, **area, **words), row=row, col=1)
        return
    parts = stretches(x, y, min(detail, BUCKETS))
    silent = {"mode": "lines", "legendgroup": name, "showlegend": False, "hoverinfo": "skip"}
    edge = {"width": 0, "shape": "hv"}
    fig.add_trace(Scatter(x=parts.x, y=parts.low, line=edge, **silent), row=row, col=1)
    band = {"fill": "tonexty", "fillcolor": _pale(color, 0.25)}
    fig.add_trace(Scatter(x=parts.x, y=parts.high, line=edge, **band, **silent), row=row, col=1)
    fig.add_trace(Scatter(x=parts.x, y=parts.mean, mode="lines", line=line, **words), row=row, col=1)


def log_axis(low: float, high: float) -> dict[str, object]:
    """Return a logarithmic axis for values from `low` to `high`: ticks at 1, 2, 5 unless there were too many.

    >>> log_axis(20, 400)["dtick"], log_axis(1, 50_000)["dtick"]
    ('D2', 1)
    """
    decades = np.log10(high / low)
    return {"type": "log", "dtick": "D2" if decades < MANY_DECADES else 1, "tickformat": ",~r"}


def empty_note(fig: Figure, message: str) -> Figure:
    """Say in the middle of a figure why it shows nothing."""
    fig.add_annotation(text=message, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False)
    fig.update_annotations(font={"size": 14, "color": FAINT})
    return fig


def _pale(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
