"""Curves with bands, and differences with intervals: figures that several experiments have in common.

Plain functions of arrays. A band is drawn pale under its line, colour and dash tell the lines apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from simulator.experiments.compare_plots import line_style
from simulator.experiments.figure_style import FAINT, INK, new_figure, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PAD = 0.04
"""Free space beside the longest interval, as a share of the axis."""
ALPHA = 0.18
"""How much of its colour a band keeps."""
Values = Sequence[float | None]


class Mark(NamedTuple):
    """A dashed upright at x: named, or, with a `style`, in the colour of the curves of that style."""

    name: str
    x: float
    style: int | None = None


class Curve(NamedTuple):
    """A line over x and, where `low` and `high` are given, its band. None in y leaves a gap.

    `style` chooses colour and dash; `unit` is plotly's hover text of one value.
    """

    name: str
    x: Sequence[float]
    y: Values
    low: Values | None = None
    high: Values | None = None
    style: int = 0
    unit: str = "%{y:,.3~g}"


def add_curve(fig: Figure, curve: Curve, *, row: int = 1, col: int = 1, legend: bool = True) -> None:
    """Draw a curve and its band; curves of one name share an entry of the legend."""
    from plotly.graph_objects import Scatter

    look = line_style(curve.style)
    shared = {"legendgroup": curve.name}
    if curve.low is not None and curve.high is not None:
        bounds = [
            (x, a, b) for x, a, b in zip(curve.x, curve.low, curve.high, strict=True) if None not in (a, b)
        ]
        around = [*bounds, *reversed(bounds)]
        edge = [b for _, _, b in bounds] + [a for _, a, _ in reversed(bounds)]
        band = Scatter(
            x=[x for x, _, _ in around],
            y=edge,
            fill="toself",
            fillcolor=pale(str(look["color"])),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            **shared,
        )
        fig.add_trace(band, row=row, col=col)
    line = Scatter(
        x=list(curve.x),
        y=list(curve.y),
        name=text(curve.name),
        mode="lines+markers",
        line=look,
        marker={"size": 6},
        showlegend=legend,
        hovertemplate=curve.unit,
        **shared,
    )
    fig.add_trace(line, row=row, col=col)


def add_marks(fig: Figure, marks: Sequence[Mark], *, row: int = 1, col: int = 1, log: bool = False) -> None:
    """Draw the uprights; `log` says that the x axis is logarithmic."""
    import math

    for mark in marks:
        color = INK if mark.style is None else str(line_style(mark.style)["color"])
        fig.add_vline(x=mark.x, line={"color": color, "width": 1.4, "dash": "dash"}, row=row, col=col)
        if mark.style is not None:
            continue
        fig.add_annotation(
            x=math.log10(mark.x) if log else mark.x,
            y=0.02,
            yref="y domain",
            xanchor="left",
            xshift=4,
            yanchor="bottom",
            text=text(mark.name),
            showarrow=False,
            bgcolor="rgba(255,255,255,0.8)",
            font={"size": 11.5, "color": INK},
            row=row,
            col=col,
        )


def band_figure(
    curves: Sequence[Curve],
    *,
    x_title: str,
    y_title: str,
    marks: Sequence[Mark] = (),
    log_x: bool = False,
    log_y: bool = False,
    height: int = 380,
) -> Figure:
    """Draw curves with their bands over one x axis."""
    fig = new_figure(height=height)
    for curve in curves:
        add_curve(fig, curve)
    add_marks(fig, marks, log=log_x)
    axis(fig, "x", x_title, log=log_x)
    axis(fig, "y", y_title, log=log_y)
    fig.update_layout(showlegend=len(curves) > 1)
    return fig


def axis(fig: Figure, which: str, title: str, *, log: bool = False, row: int = 1, col: int = 1) -> None:
    """Title an axis; a logarithmic one says so and has ticks at 1, 2 and 5."""
    update = fig.update_xaxes if which == "x" else fig.update_yaxes
    scale = {"type": "log", "dtick": "D2", "tickformat": ",.3~r"} if log else {"rangemode": "tozero"}
    update(title_text=f"{title}, log scale" if log else title, row=row, col=col, **scale)


def difference_figure(
    names: Sequence[str],
    values: Sequence[float],
    lows: Values,
    highs: Values,
    *,
    title: str,
    unit: str = ".3~g",
) -> Figure:
    """Draw differences as points with their intervals, one a row from the top, beside a line at 0.

    `unit` is a d3 format of the values.
    """
    from plotly.graph_objects import Scatter

    fig = new_figure(height=140 + 34 * len(names))
    for i, (name, value, low, high) in enumerate(zip(names, values, lows, highs, strict=True)):
        color = str(line_style(i)["color"])
        if low is not None and high is not None:
            whisker = {"color": color, "width": 3}
            ends = Scatter(
                x=[low, high],
                y=[text(name)] * 2,
                mode="lines",
                line=whisker,
                hoverinfo="skip",
                showlegend=False,
            )
            fig.add_trace(ends)
        point = Scatter(
            x=[value],
            y=[text(name)],
            mode="markers",
            marker={"color": color, "size": 10},
            showlegend=False,
            hovertemplate=f"%{{x:{unit}}}<extra></extra>",
        )
        fig.add_trace(point)
    fig.add_vline(x=0, line={"color": FAINT, "width": 1.2})
    ends = [0.0, *(bound for bound in (*values, *lows, *highs) if bound is not None)]
    edge = PAD * (max(ends) - min(ends) or 1.0)
    fig.update_xaxes(title_text=title, range=[min(ends) - edge, max(ends) + edge])
    fig.update_yaxes(range=[len(names) - 0.5, -0.5], showgrid=False, automargin=True)
    fig.update_layout(hovermode="closest")
    return fig


def pale(color: str, alpha: float = ALPHA) -> str:
    """Return a colour of the form #RRGGBB with an opacity.

    >>> pale("#0072B2", 0.5)
    'rgba(0,114,178,0.5)'
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
