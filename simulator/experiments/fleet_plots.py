"""A fleet in pictures: how busy each replica was, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from simulator.experiments.figure_style import new_figure
from simulator.experiments.plots import replica_load, span
from simulator.metrics.tables import Floats, RequestTable, StepTable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_ROWS = 64
"""Replicas drawn at most; more would be thinner than a line of text, so the first ones are."""
WINDOWS = 120


def replicas(requests: RequestTable, steps: StepTable, **_: object) -> Figure:
    """Draw a row for each replica: the requests in it over time, those that wait there included."""
    from plotly.graph_objects import Heatmap

    num = min(steps.num_replicas, MAX_ROWS)
    end = span(requests, steps)
    edges = np.linspace(0.0, end, WINDOWS + 1)
    load = np.stack([_mean_load(steps, i, edges) for i in range(num)])
    fig = new_figure(height=min(170 + 26 * num, 720), span=end)
    fig.add_trace(
        Heatmap(
            x=(edges[:-1] + edges[1:]) / 2,
            y=[f"replica {i}" for i in range(num)],
            z=load,
            colorscale="Viridis",
            zmin=0.0,
            colorbar={"title": {"text": "requests"}},
            hovertemplate="%{y}, %{x:.1f} s: %{z:.1f} requests<extra></extra>",
        )
    )
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    fig.update_layout(hovermode="closest")
    return fig


def _mean_load(steps: StepTable, replica: int, edges: Floats) -> Floats:
    """Return the mean number of requests in a replica in each window."""
    time, values = replica_load(steps, replica)
    if not len(time):
        return np.zeros(len(edges) - 1)
    held = np.append(0.0, np.cumsum(values[:-1, :2].sum(axis=1) * np.diff(time)))
    load: Floats = np.diff(np.interp(edges, time, held)) / np.diff(edges)
    return load


FLEET_PLOTS: dict[str, Callable[..., Figure]] = {"replicas": replicas}
