"""A tournament's figures: differences with their intervals side by side, and metrics with theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from simulator.experiments.figure_style import DECODE, INK, NEUTRAL, TROUBLE, new_figure, text
from simulator.experiments.metric_cells import COLUMNS, lower_is_better
from simulator.experiments.tournament.paired import Difference
from simulator.experiments.tournament.standing import Standing
from simulator.experiments.tournament.words import difference_text, points

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

KINDS = {
    "sampling": ("sampling: other requests", DECODE, "circle"),
    "model": ("model: the profile's own error", TROUBLE, "square"),
    "combined": ("both together: the verdict", INK, "diamond"),
}
SHOWN = ("request_goodput", "median_ttft_ms", "p99_ttft_ms")
_ROW = 64  # pixels a candidate
FAR = 6
"""A difference so many times as large as the next is told at the edge; drawn, it would squeeze the others."""
_TICKS = 3  # of a quarter of the page
_PAD = 0.06  # free space at each end of the axis, as a share of it


def difference_plot(standing: Standing) -> Figure:
    """Draw every candidate's difference to the baseline: one interval over requests, one over models."""
    from plotly.graph_objects import Scatter

    metric, base = standing.metric, standing.mean(standing.contest.baseline, standing.metric)
    scale, unit = _scale(standing), COLUMNS.get(metric, metric)
    if points(metric):
        unit = f"percentage points of {unit}"
    elif base:
        unit = f"% of the baseline's {unit}"
    found = {name: each for name, each in standing.differences.items() if each is not None}
    kinds = KINDS if standing.draws is not None else {"sampling": KINDS["sampling"]}
    fig = new_figure(height=150 + _ROW * max(len(found), 1))
    for i, (kind, (title, color, symbol)) in enumerate(kinds.items()):
        shift = 0.22 * ((len(kinds) - 1) / 2 - i)
        rows = [(k, each, bounds) for k, each in enumerate(found.values()) if (bounds := getattr(each, kind))]
        fig.add_trace(
            Scatter(
                x=[scale * each.mean for _, each, _ in rows],
                y=[k + shift for k, _, _ in rows],
                error_x={
                    "array": [scale * (bounds.high - each.mean) for _, each, bounds in rows],
                    "arrayminus": [scale * (each.mean - bounds.low) for _, each, bounds in rows],
                    "thickness": 2,
                    "width": 6,
                },
                customdata=[[scale * b.low, scale * b.high, 100 * b.level] for _, _, b in rows],
                hovertemplate="%{x:+,.3g}, %{customdata[0]:+,.3g} to %{customdata[1]:+,.3g} "
                "(%{customdata[2]:.0f} %)",
                mode="markers",
                marker={"color": color, "size": 9, "symbol": symbol},
                name=title,
            )
        )
    near = _near([_ends(each, scale, kinds) for each in found.values()])
    if near is not None:
        _tell_far(fig, standing, found, near)
    labels = [f"{text(name, 40)}<br><b>{standing.verdicts[name]}</b>" for name in found]
    fig.update_yaxes(tickvals=list(range(len(found))), ticktext=labels, range=[len(found) - 0.5, -0.5])
    _add_margin(fig, [scale * each.margin for each in found.values()])
    better = "left" if lower_is_better(metric) else "right"
    fig.update_xaxes(
        title_text=f"difference to {text(standing.contest.baseline, 40)} ({unit}); {better} is better"
    )
    fig.update_layout(hovermode="closest", margin={"l": 230, "b": 60})
    return fig


def _ends(each: Difference, scale: float, kinds: Iterable[str]) -> tuple[float, float]:
    """Return where a candidate's dots and bars end, the band of equivalence included."""
    bounds = [bound for kind in kinds if (bound := getattr(each, kind)) is not None]
    lows = [each.mean, -each.margin, *(bound.low for bound in bounds)]
    highs = [each.mean, each.margin, *(bound.high for bound in bounds)]
    return scale * min(lows), scale * max(highs)


def _near(ends: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the axis on which all but a few far candidates are readable; None if none is far."""
    by_reach = sorted(ends, key=lambda pair: max(map(abs, pair)))
    for i in range(1, len(by_reach)):
        reach, following = (max(map(abs, pair)) for pair in by_reach[i - 1 : i + 1])
        if following > FAR * reach > 0:
            low, high = min(a for a, _ in by_reach[:i]), max(b for _, b in by_reach[:i])
            return low - _PAD * (high - low), high + _PAD * (high - low)
    return None


def _tell_far(
    fig: Figure, standing: Standing, found: Mapping[str, Difference], axis: tuple[float, float]
) -> None:
    """Cut the axis, and write the difference of who lies beyond it at the edge."""
    base = standing.mean(standing.contest.baseline, standing.metric)
    fig.update_xaxes(range=list(axis))
    scale = _scale(standing)
    for k, each in enumerate(found.values()):
        at = scale * each.mean
        if axis[0] <= at <= axis[1]:
            continue
        words = difference_text(standing.metric, each.mean, base)
        fig.add_annotation(
            x=axis[at > axis[1]],
            y=k,
            text=f"{words} \u2192" if at > axis[1] else f"\u2190 {words}",
            xanchor="right" if at > axis[1] else "left",
            showarrow=False,
            font={"size": 13, "color": INK},
            bgcolor="white",
        )


def _scale(standing: Standing) -> float:
    """Return what a difference is multiplied with: to points, to percent of the baseline, or not."""
    if points(standing.metric):
        return 100.0
    base = standing.mean(standing.contest.baseline, standing.metric)
    return 100.0 / abs(base) if base else 1.0


def _add_margin(fig: Figure, margins: list[float]) -> None:
    """Mark 0 and the band of practical equivalence."""
    fig.add_vline(x=0, line={"color": NEUTRAL, "width": 1})
    if margins and max(margins) > 0:
        fig.add_vrect(x0=-max(margins), x1=max(margins), fillcolor=NEUTRAL, opacity=0.14, line_width=0)


def means_plot(standing: Standing) -> Figure:
    """Draw goodput and TTFT of every candidate, each with its interval over replications."""
    from plotly.graph_objects import Scatter

    metrics = [m for m in dict.fromkeys([standing.metric, *SHOWN]) if _has(standing, m)]
    titles = [COLUMNS.get(metric, metric) for metric in metrics]
    names = standing.names
    fig = new_figure(1, max(len(metrics), 1), height=150 + 34 * len(names), subplot_titles=titles)
    for col, metric in enumerate(metrics, start=1):
        scale = 100.0 if points(metric) else 1.0
        rows = [(i, each) for i, name in enumerate(names) if (each := standing.estimate(name, metric))]
        fig.add_trace(
            Scatter(
                x=[scale * each.mean for _, each in rows],
                y=[i for i, _ in rows],
                error_x={"array": [scale * (each.high - each.mean) for _, each in rows], "thickness": 2},
                hovertemplate="%{x:,.4g}",
                mode="markers",
                marker={"color": DECODE, "size": 9},
                name=text(titles[col - 1]),
                showlegend=False,
            ),
            row=1,
            col=col,
        )
        unit = (
            "%"
            if points(metric)
            else "requests/s"
            if "goodput" in metric
            else "ms"
            if "_ms" in metric
            else ""
        )
        fig.update_xaxes(title_text=unit or text(titles[col - 1]), nticks=_TICKS, tickangle=0, row=1, col=col)
    fig.update_yaxes(tickvals=[], range=[len(names) - 0.5, -0.5])
    fig.update_yaxes(tickvals=list(range(len(names))), ticktext=[text(name, 30) for name in names], col=1)
    fig.update_layout(hovermode="closest", margin={"l": 230, "b": 60})
    return fig


def _has(standing: Standing, metric: str) -> bool:
    return any(standing.estimate(name, metric) is not None for name in standing.names)


TOURNAMENT_PLOTS = {"difference": difference_plot, "means": means_plot}
HOW = {
    "difference": "A dot is the mean difference. A bar that crosses 0 leaves open who is better; "
    "the grey band is what counts as equal. An arrow points to who lies beyond the axis.",
    "means": "Dots are means over replications, bars their 95 % intervals. Where bars overlap the "
    "difference may still be sure: the candidates served the same requests, so look at the differences.",
}
