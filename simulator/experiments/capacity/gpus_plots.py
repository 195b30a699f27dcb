"""The fewest GPUs in figures: attainment, latencies and cost over the number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_words import count_words
from simulator.experiments.capacity.point import Estimate
from simulator.experiments.compare_plots import LONG_TAIL
from simulator.experiments.curves import Curve, Mark, add_curve, add_marks, axis, band_figure
from simulator.experiments.figure_style import FAINT, empty_note, new_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def is_log(found: Fewest) -> bool:
    """Whether the numbers tested span so much that a logarithmic axis helps."""
    gpus = [n * each.gpus_each for each in found.answers.values() for n in each.tested]
    return max(gpus) > LONG_TAIL * min(gpus)


def curve_of(
    answer: FleetAnswer, take: Callable[[int], Estimate | None], style: int, unit: str, name: str = ""
) -> Curve:
    """Return one estimate over the candidate's GPUs; `take` gets the number of replicas."""
    found = [take(n) for n in answer.points]
    return Curve(
        name or answer.name,
        [n * answer.gpus_each for n in answer.points],
        [None if e is None else e.value for e in found],
        [None if e is None else e.low for e in found],
        [None if e is None else e.high for e in found],
        style,
        unit,
    )


def marks_of(answers: Mapping[str, FleetAnswer]) -> list[Mark]:
    """Return the answers: of one candidate with its number, of several in the colours of their curves."""
    several = len(answers) > 1
    return [
        Mark(count_words(each.gpus, "GPU"), each.gpus, i if several else None)
        for i, each in enumerate(answers.values())
        if each.gpus is not None
    ]


def attainment(found: Fewest) -> Figure:
    """Draw the share within the SLO, and the requests within it per second, over the GPUs."""
    titles = ("Requests within the SLO", "Goodput")
    fig = new_figure(1, 2, height=420, subplot_titles=titles, horizontal_spacing=0.09)
    for i, answer in enumerate(found.answers.values()):
        tested = answer.points
        add_curve(fig, curve_of(answer, lambda n, t=tested: t[n].attainment, i, "%{y:.2%}"))  # type: ignore[misc]
        good = curve_of(answer, lambda n, t=tested: t[n].goodput, i, "%{y:,.4~g} requests/s")  # type: ignore[misc]
        add_curve(fig, good, col=2, legend=False)
    fig.add_hline(y=found.target, line={"color": FAINT, "width": 1.2, "dash": "dot"}, row=1, col=1)
    _over_gpus(found, fig)
    axis(fig, "y", "share of injected requests", col=1)
    axis(fig, "y", "requests within the SLO per second", col=2)
    fig.update_yaxes(tickformat=".0%", range=[0, 1.03], col=1)
    fig.update_layout(showlegend=len(found.answers) > 1)
    return fig


def latencies(found: Fewest) -> Figure:
    """Draw percentiles of TTFT and TPOT over the GPUs: of one candidate three, of several p99."""
    fig = new_figure(1, 2, height=420, subplot_titles=("TTFT", "TPOT"), horizontal_spacing=0.09)
    several = len(found.answers) > 1
    first = next(iter(found.answers.values()))
    curves = [(a, 99, i, a.name) for i, a in enumerate(found.answers.values())]
    if not several:
        curves = [(first, rank, i, f"p{rank}") for i, rank in enumerate((50, 90, 99))]
    for col, metric in enumerate(("ttft", "tpot"), start=1):
        for answer, rank, style, name in curves:
            tested, key = answer.points, f"{metric}_p{rank}"
            curve = curve_of(answer, lambda n, t=tested, k=key: t[n].mean(k), style, "%{y:,.1f} ms", name)  # type: ignore[misc]
            floor = [None if low is None or low <= 0 else low for low in curve.low or ()]
            add_curve(fig, curve._replace(low=floor), col=col, legend=col == 1)
        limit = getattr(found.base.slo, f"{metric}_ms")
        if limit is not None:
            fig.add_hline(y=limit, line={"color": FAINT, "width": 1.2, "dash": "dot"}, row=1, col=col)
        what = f"{metric.upper()} p99 (ms)" if several else f"{metric.upper()} (ms)"
        axis(fig, "y", what, log=True, col=col)
    _over_gpus(found, fig)
    return fig


def _over_gpus(found: Fewest, fig: Figure) -> None:
    """Give both panels their axis and the answers."""
    log = is_log(found)
    for col in (1, 2):
        add_marks(fig, marks_of(found.answers), col=col, log=log)
        axis(fig, "x", "GPUs", log=log, col=col)
    fig.update_layout(margin={"t": 84}, legend={"y": 1.12})


def cost(found: Fewest) -> Figure:
    """Draw what a million output tokens cost over the GPUs."""
    if all(each.cost(n) is None for each in found.answers.values() for n in each.tested):
        return empty_note(new_figure(height=200), "No price: set hardware.price_per_gpu_hour.")
    curves = [
        curve_of(a, a.cost, i, "%{y:,.3~g} a million output tokens")
        for i, a in enumerate(found.answers.values())
    ]
    return band_figure(
        curves,
        x_title="GPUs",
        y_title="price of a million output tokens",
        marks=marks_of(found.answers),
        log_x=is_log(found),
    )


def model_error(found: Fewest) -> Figure:
    """Draw how many draws of the latency model's error ask for how many GPUs."""
    from plotly.graph_objects import Bar

    from simulator.experiments.compare_plots import line_style

    fig = new_figure(height=320)
    for i, answer in enumerate(found.answers.values()):
        if answer.drawn:
            bar = Bar(
                x=[n * answer.gpus_each for n in answer.counts],
                y=[count / len(answer.drawn) for count in answer.counts.values()],
                name=answer.name,
                marker={"color": line_style(i)["color"]},
                hovertemplate="%{x} GPUs in %{y:.0%} of the draws",
            )
            fig.add_trace(bar)
    if not fig.data:
        return empty_note(fig, "No draws of the latency model's error: ask with --model-draws 20.")
    add_marks(fig, marks_of(found.answers))
    axis(fig, "x", "fewest GPUs under a draw")
    axis(fig, "y", "share of the draws")
    fig.update_yaxes(tickformat=".0%")
    fig.update_layout(showlegend=len(found.answers) > 1, barmode="group")
    return fig


GPUS_PLOTS: dict[str, Callable[[Fewest], Figure]] = {
    "goodput": attainment,
    "latency": latencies,
    "cost": cost,
    "model": model_error,
}
