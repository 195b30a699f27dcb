"""How long users waited: distributions of TTFT, TPOT, end-to-end latency and ITL.

Definitions are those of `vllm bench serve`: TPOT is (latency - TTFT) / (output tokens - 1) per request, 0 for
a single token; ITL is one gap between two tokens, pooled over all requests. Curves climb to the share of
*injected* requests that completed, so a curve read at the SLO is the attainment of that SLO.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.experiments.figure_style import (
    BUCKETS,
    FAINT,
    LATENCY,
    TROUBLE,
    empty_note,
    log_axis,
    new_figure,
    slo_ms,
)
from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable, StepTable, of_replica

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LONG_TAIL = 30  # times the median; beyond it a linear axis would squeeze the body into a few pixels
METRICS = {"ttft": "Time to first token", "tpot": "Time per output token", "e2el": "End-to-end latency"}


def latencies(requests: RequestTable) -> dict[str, Floats]:
    """Return "queue", "ttft", "tpot" and "e2el" of each request, in seconds; NaN unless it completed."""
    done = requests.status == COMPLETED
    e2el = np.where(done, requests.finish - requests.arrival, np.nan)
    ttft = np.where(done, requests.first_token - requests.arrival, np.nan)
    return {
        "queue": np.where(done, requests.scheduled - requests.arrival, np.nan),
        "ttft": ttft,
        "tpot": (e2el - ttft) / np.maximum(requests.num_output - 1, 1),
        "e2el": e2el,
    }


def _alone(steps: StepTable, replica: int) -> StepTable:
    """Return a replica's steps as those of an only one."""
    own = of_replica(steps, replica)
    return replace(own, replica=np.zeros(len(own), np.int64))


def token_gaps(steps: StepTable) -> tuple[Floats, Floats]:
    """Return the gaps between consecutive tokens, in seconds, and how many tokens came after each.

    Two gaps per step at most: from the last step that decoded, for sequences that were decoding then, and
    from the step before, for sequences that got their first token since. Preempted ones are counted with
    the first, so this is the shape of ITL; the printed numbers are exact.
    """
    if steps.num_replicas > 1:
        parts = [token_gaps(_alone(steps, i)) for i in range(steps.num_replicas)]
        return np.concatenate([gaps for gaps, _ in parts]), np.concatenate([weights for _, weights in parts])
    index = np.arange(len(steps))
    decodes = steps.num_decodes > 0
    previous = np.maximum.accumulate(np.where(decodes, index, -1))
    last_decode = np.concatenate(([-1], previous[:-1])) if len(index) else previous
    sampling = steps.num_sampled - steps.draft_tokens
    firsts = np.concatenate(([0], np.cumsum(np.maximum(sampling - steps.num_decodes, 0))))
    joined = np.minimum(firsts[index] - firsts[last_decode + 1], steps.num_decodes)
    stayed = np.where(last_decode >= 0, steps.num_decodes - joined, 0)
    long = steps.end - steps.end[last_decode]
    short = np.diff(steps.end, prepend=steps.end[:1])
    gaps, weights = np.concatenate((long, short)), np.concatenate((stayed, joined)).astype(float)
    return gaps[weights > 0], weights[weights > 0]


def latency(
    requests: RequestTable,
    steps: StepTable,
    *,
    slo: Mapping[str, float | None] | None = None,
    **_: object,
) -> Figure:
    """Draw the cumulative distributions of TTFT, TPOT and end-to-end latency with their SLOs."""
    fig = new_figure(
        1, 3, height=340, subplot_titles=list(METRICS.values()), horizontal_spacing=0.06, shared_yaxes=True
    )
    values = latencies(requests)
    if not np.any(requests.status == COMPLETED):
        return empty_note(fig, "No request completed.")
    for col, (metric, title) in enumerate(METRICS.items(), start=1):
        ms = np.sort(values[metric][~np.isnan(values[metric])]) * 1000
        _curve(fig, col, ms, len(requests), title, slo_ms(slo, metric))
    fig.update_yaxes(range=[0, 1.02], tickformat=".0%")
    fig.update_yaxes(title_text="share of injected requests", col=1)
    fig.update_layout(showlegend=False, hovermode="closest", margin={"t": 56})
    return fig


def itl(
    requests: RequestTable, steps: StepTable, *, gaps: tuple[Floats, Ints] | None = None, **_: object
) -> Figure:
    """Draw the distribution of the gaps between two tokens of one request, pooled over all tokens.

    Without the `gaps` (s, and how often each occurs) they are found from the steps, to their shape.
    """
    fig = new_figure(height=300)
    seconds, weights = token_gaps(steps) if gaps is None else gaps
    if not len(seconds):
        return empty_note(fig, "No request produced a second token.")
    order = np.argsort(seconds, kind="stable")
    ms, share = seconds[order] * 1000, np.cumsum(weights[order]) / weights.sum()
    keep = np.unique(np.searchsorted(share, np.linspace(0, 1, BUCKETS)).clip(max=len(ms) - 1))
    _distribution(fig, 1, ms[keep], share[keep], "Inter-token latency")
    for level in (0.5, 0.99):
        at = float(ms[np.searchsorted(share, level).clip(max=len(ms) - 1)])
        _mark(fig, 1, at, f"P{level * 100:g} {at:,.1f} ms", FAINT, "dot", low=level == 0.5)
    fig.update_yaxes(range=[0, 1.02], tickformat=".0%", title_text="share of token gaps")
    fig.update_layout(showlegend=False, hovermode="closest")
    return fig


def _curve(fig: Figure, col: int, ms: Floats, injected: int, title: str, limit: float | None) -> None:
    keep = np.unique(np.linspace(0, len(ms) - 1, BUCKETS).round().astype(np.int64))
    _distribution(fig, col, ms[keep], (keep + 1) / injected, title, limit or 0.0)
    if limit is not None:
        within = float(np.searchsorted(ms, limit, side="right")) / injected
        _mark(fig, col, limit, f"SLO {limit:g} ms: {within:.1%} within", TROUBLE, "dash", low=True)


def _distribution(fig: Figure, col: int, ms: Floats, share: Floats, title: str, show: float = 0.0) -> None:
    """Add a distribution; the axis reaches to its end and to `show` ms, in log where the tail is long."""
    from plotly.graph_objects import Scatter

    hover = f"%{{y:.1%}} within %{{x:,.1f}} ms<extra>{title}</extra>"
    line = {"color": LATENCY, "width": 2, "shape": "hv"}
    fig.add_trace(Scatter(x=ms, y=share, mode="lines", line=line, hovertemplate=hover), row=1, col=col)
    words, longest = f"{title[0].lower()}{title[1:]}", max(float(ms[-1]), show)
    positive = ms[ms > 0]
    if len(positive) and longest > LONG_TAIL * np.median(positive):
        ends = [math.log10(float(positive[0])) - 0.1, math.log10(longest) + 0.1]
        axis = log_axis(10 ** ends[0], 10 ** ends[1])
        fig.update_xaxes(range=ends, title_text=f"{words} (ms, log scale)", col=col, **axis)
    else:
        fig.update_xaxes(range=[0, 1.06 * longest or 1.0], title_text=f"{words} (ms)", col=col)


def _mark(fig: Figure, col: int, x: float, label: str, color: str, dash: str, *, low: bool) -> None:
    """Add a labelled vertical line at x ms, labelled near the bottom or the top."""
    from plotly.graph_objects import Scatter

    line = {"color": color, "width": 1.5, "dash": dash}
    mode = {"mode": "lines", "line": line, "hoverinfo": "skip"}
    fig.add_trace(Scatter(x=[x, x], y=[0, 1.02], **mode), row=1, col=col)
    axis = fig.layout["xaxis" if col == 1 else f"xaxis{col}"]
    at, middle = math.log10(x) if axis.type == "log" else x, sum(axis.range) / 2
    fig.add_annotation(
        x=at,
        y=0.07 if low else 0.3,
        xanchor="right" if at > middle else "left",
        xshift=-3 if at > middle else 3,
        text=label,
        font={"size": 12, "color": color},
        showarrow=False,
        row=1,
        col=col,
    )
