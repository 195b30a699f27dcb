"""Capacity in figures: attainment and goodput, latencies and cost, each over the request rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from simulator.experiments.capacity.answer import Answer
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.point import Estimate, Point
from simulator.experiments.compare_plots import LONG_TAIL
from simulator.experiments.curves import (
    Curve,
    Mark,
    add_curve,
    add_marks,
    axis,
    band_figure,
    difference_figure,
)
from simulator.experiments.figure_style import FAINT, empty_note, new_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def is_log(found: Found) -> bool:
    """Whether the rates tested span so much that a logarithmic axis helps."""
    rates = [rate for each in found.answers.values() for rate in each.tested]
    return max(rates) > LONG_TAIL * min(rates)


def unit_of(found: Found) -> str:
    """What rates count."""
    return next(iter(found.answers.values())).loads.unit


def curve_of(
    answer: Answer, take: Callable[[Point], Estimate | None], style: int, unit: str, name: str = ""
) -> Curve:
    """Return one estimate over the candidate's rates."""
    found = [take(point) for point in answer.points]
    return Curve(
        name or answer.name,
        [point.rate for point in answer.points],
        [None if e is None else e.value for e in found],
        [None if e is None else e.low for e in found],
        [None if e is None else e.high for e in found],
        style,
        unit,
    )


def marks_of(answers: Iterable[Answer]) -> list[Mark]:
    """Return the capacities: of one candidate with its number, of several in the colours of their curves."""
    answers = list(answers)
    return [
        Mark(f"{answer.rate:.4g} {answer.loads.unit}", answer.rate, i if len(answers) > 1 else None)
        for i, answer in enumerate(answers)
        if answer.rate is not None
    ]


def attainment_and_goodput(found: Found) -> Figure:
    """Draw the share within the SLO, and the requests within it per second, over the rate."""
    titles = ("Requests within the SLO", "Goodput")
    fig = new_figure(1, 2, height=420, subplot_titles=titles, horizontal_spacing=0.09)
    log = is_log(found)
    for i, answer in enumerate(found.answers.values()):
        share = curve_of(answer, lambda p: p.attainment, i, "%{y:.2%}")
        good = curve_of(answer, lambda p: p.goodput, i, "%{y:,.4~g} requests/s")
        add_curve(fig, share, col=1)
        add_curve(fig, good, col=2, legend=False)
    fig.add_hline(y=found.target, line={"color": FAINT, "width": 1.2, "dash": "dot"}, row=1, col=1)
    for col in (1, 2):
        add_marks(fig, marks_of(found.answers.values()), col=col, log=log)
        axis(fig, "x", f"offered rate ({unit_of(found)})", log=log, col=col)
    axis(fig, "y", "share of injected requests", col=1)
    axis(fig, "y", "requests within the SLO per second", col=2)
    fig.update_yaxes(tickformat=".0%", range=[0, 1.03], col=1)
    fig.update_layout(margin={"t": 84}, legend={"y": 1.12}, showlegend=len(found.answers) > 1)
    return fig


def latencies(found: Found) -> Figure:
    """Draw percentiles of TTFT and TPOT over the rate: of one candidate three, of several p99."""
    fig = new_figure(1, 2, height=420, subplot_titles=("TTFT", "TPOT"), horizontal_spacing=0.09)
    log, several = is_log(found), len(found.answers) > 1
    first = next(iter(found.answers.values()))
    curves = [(a, 99, i, a.name) for i, a in enumerate(found.answers.values())]
    if not several:
        curves = [(first, rank, i, f"p{rank}") for i, rank in enumerate((50, 90, 99))]
    for col, metric in enumerate(("ttft", "tpot"), start=1):
        for answer, rank, style, name in curves:
            key = f"{metric}_p{rank}"
            curve = curve_of(answer, lambda p, key=key: p.mean(key), style, "%{y:,.1f} ms", name)  # type: ignore[misc]
            floor = [None if low is None or low <= 0 else low for low in curve.low or ()]
            add_curve(fig, curve._replace(low=floor), col=col, legend=col == 1)
        limit = getattr(found.base.slo, f"{metric}_ms")
        if limit is not None:
            fig.add_hline(y=limit, line={"color": FAINT, "width": 1.2, "dash": "dot"}, row=1, col=col)
        add_marks(fig, marks_of(found.answers.values()), col=col, log=log)
        axis(fig, "x", f"offered rate ({unit_of(found)})", log=log, col=col)
        what = f"{metric.upper()} p99 (ms)" if several else f"{metric.upper()} (ms)"
        axis(fig, "y", what, log=True, col=col)
    fig.update_layout(margin={"t": 84}, legend={"y": 1.12})
    return fig


def cost(found: Found) -> Figure:
    """Draw what a million output tokens cost over the rate."""
    if found.base.hardware.price_per_gpu_hour is None:
        return empty_note(new_figure(height=200), "No price: set hardware.price_per_gpu_hour.")
    curves = [
        curve_of(a, a.cost, i, "%{y:,.3~g} a million output tokens")
        for i, a in enumerate(found.answers.values())
    ]
    return band_figure(
        curves,
        x_title=f"offered rate ({unit_of(found)})",
        y_title="price of a million output tokens",
        marks=marks_of(found.answers.values()),
        log_x=is_log(found),
        log_y=True,
    )


def differences(found: Found) -> Figure:
    """Draw how much higher each candidate's capacity is than the first one's, with intervals."""
    rows = [(name, d) for name in found.answers if (d := found.difference(name)) is not None]
    fig = difference_figure(
        [name for name, _ in rows],
        [d.value for _, d in rows],
        [d.low for _, d in rows],
        [d.high for _, d in rows],
        title=f"capacity minus that of {found.baseline[:60]} ({unit_of(found)})",
    )
    return fig if rows else empty_note(fig, "There is no other candidate whose capacity was found.")


CAPACITY_PLOTS: dict[str, Callable[[Found], Figure]] = {
    "goodput": attainment_and_goodput,
    "latency": latencies,
    "cost": cost,
    "difference": differences,
}
