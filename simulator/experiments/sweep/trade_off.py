"""What users and owners of GPUs trade: the Pareto picture of `vllm bench sweep plot_pareto`.

Output tokens per second and user (1000 / mean TPOT in ms) against output tokens per second and GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.experiments.figure_style import DECODE, NEUTRAL, empty_note, new_figure
from simulator.experiments.pareto import pareto_front
from simulator.experiments.sweep.plot_parts import hover
from simulator.experiments.sweep.table import Row, numbers
from simulator.metrics.tables import Floats

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def tokens_per_user_and_gpu(rows: Sequence[Row]) -> Floats:
    """Return output tokens per second, per user and per GPU; shape (rows, 2), nan where there are none."""
    tpot, output = np.array(numbers(rows, "mean_tpot_ms")), np.array(numbers(rows, "output_throughput"))
    gpus = np.array([row.point.scenario.parallel.num_gpus for row in rows], dtype=np.float64)
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
                text=[hover(good[i]) for i in chosen],
                hovertemplate="%{text}<br>%{x:.1f} tok/s a user, %{y:,.0f} tok/s a GPU<extra></extra>",
            )
        )
    fig.update_layout(hovermode="closest")
    fig.update_xaxes(title_text="output tokens per second and user (1000 / mean TPOT in ms)")
    fig.update_yaxes(title_text="output tokens per second and GPU", rangemode="tozero")
    return fig
