"""A search in pictures: how it came on, the front, and which values lead where."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.experiments.figure_style import DECODE, NEUTRAL, RUNNING, TROUBLE, new_figure, text
from simulator.experiments.search.parallel_plot import parallel
from simulator.experiments.search.result import Found, shown, words
from simulator.experiments.search.trials import Trial
from simulator.experiments.search.volume import trace

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MISSES, MEETS, BEST = NEUTRAL, DECODE, TROUBLE
LONG_RANGE = 20  # a positive axis is logarithmic if its ends differ by more


def history(found: Found) -> Figure:
    """Draw the best value so far, or the share of the final hypervolume, over the trials."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=360)
    goal = found.search.objectives[0]
    count = len(found.trials)
    feasible = found.feasible
    if len(found.search.objectives) > 1:
        numbers = [trial.number for trial in feasible]
        shares = trace(found.costs(feasible), numbers, count) if feasible else np.zeros(count)
        line = {"color": RUNNING, "width": 2, "shape": "hv"}
        fig.add_trace(
            Scatter(x=np.arange(count), y=shares, mode="lines", line=line, name="hypervolume so far")
        )
        fig.update_yaxes(title_text="share of the final hypervolume", range=[0, 1.03], tickformat=".0%")
    else:
        _add_points(fig, found, lambda trial: trial.number, lambda trial: trial.values[goal.metric])
        best = np.maximum.accumulate if goal.maximize else np.minimum.accumulate
        if feasible:
            y = best(np.array([trial.values[goal.metric] for trial in feasible]))
            x = [*(trial.number for trial in feasible), count - 1]
            line = {"color": RUNNING, "width": 2, "shape": "hv"}
            fig.add_trace(Scatter(x=x, y=[*y, y[-1]], mode="lines", line=line, name="best so far"))
        fig.update_yaxes(title_text=text(goal.metric), **_scale(found, goal.metric))
    fig.update_xaxes(title_text="trial")
    fig.update_layout(hovermode="closest")
    return fig


def pareto(found: Found) -> Figure:
    """Draw trials by their first two objectives; the front's steps, the knee, and what misses a limit."""
    from plotly.graph_objects import Scatter

    first, second = found.search.objectives[:2]
    fig = new_figure(height=460)
    _add_points(fig, found, lambda t: t.values[first.metric], lambda t: t.values[second.metric])
    front = found.front
    style: dict[str, Any] = {"color": RUNNING, "size": 9, "symbol": "diamond"}
    mode = "markers" if len(found.search.objectives) > 2 else "lines+markers"
    fig.add_trace(
        Scatter(
            x=[trial.values[first.metric] for trial in front],
            y=[trial.values[second.metric] for trial in front],
            mode=mode,
            name="Pareto front",
            marker=style,
            line={
                "color": RUNNING,
                "width": 1.5,
                "shape": "hv" if first.maximize == second.maximize else "vh",
            },
            hovertext=[_hover(found, trial) for trial in front],
            hoverinfo="text",
        )
    )
    knee = found.winner
    fig.add_trace(
        Scatter(
            x=[knee.values[first.metric]],
            y=[knee.values[second.metric]],
            mode="markers",
            name="knee: the winner" if front else "nearest to the limits",
            marker={"color": BEST, "size": 15, "symbol": "star"},
            hovertext=[_hover(found, knee)],
            hoverinfo="text",
        )
    )
    for axis, goal in ((fig.update_xaxes, first), (fig.update_yaxes, second)):
        better = "more is better" if goal.maximize else "less is better"
        axis(title_text=f"{text(goal.metric)} ({better})", **_scale(found, goal.metric))
    fig.update_layout(hovermode="closest")
    return fig


def _add_points(fig: Figure, found: Found, x: Callable[[Trial], float], y: Callable[[Trial], float]) -> None:
    from plotly.graph_objects import Scatter

    meets = {trial.number for trial in found.feasible}
    groups = {
        "misses a limit": ([t for t in found.complete if t.number not in meets], MISSES, "x-thin-open"),
        "meets the limits" if found.search.constraints else "trials": (found.feasible, MEETS, "circle"),
    }
    for name, (trials, color, symbol) in groups.items():
        if trials:
            fig.add_trace(
                Scatter(
                    x=[x(trial) for trial in trials],
                    y=[y(trial) for trial in trials],
                    mode="markers",
                    name=name,
                    marker={"color": color, "size": 7, "symbol": symbol, "opacity": 0.75},
                    hovertext=[_hover(found, trial) for trial in trials],
                    hoverinfo="text",
                )
            )


def _scale(found: Found, metric: str) -> dict[str, Any]:
    values = [trial.values[metric] for trial in found.complete]
    low, high = min(values), max(values)
    return {"type": "log"} if low > 0 and high > LONG_RANGE * low else {}


def _hover(found: Found, trial: Trial) -> str:
    lines = [f"trial {trial.number}", *(f"{name}: {shown(trial, name)}" for name in found.search.goals)]
    lines += [
        f"{key}={value}"
        for key, value in ((k, words({k: v}).partition("=")[2]) for k, v in trial.point.items())
    ]
    return "<br>".join(text(line, 80) for line in lines)


def figures(found: Found) -> dict[str, Callable[[Found], Figure]]:
    """Return the pictures that a search has, by name."""
    several = len(found.search.objectives) > 1
    return {**({"pareto": pareto} if several else {}), "history": history, "parallel": parallel}
