"""The figures of one run: what the server did over time, and who waited for what.

Every figure is a function `(requests, steps, *, num_blocks, slo) -> plotly Figure` in the table `PLOTS`.
Series carry the names of vLLM's metrics (`num_requests_running`, `kv_cache_usage_perc`), so that a reader
finds the same words in Grafana. A step's counters hold from its start until the next step's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from simulator.experiments.figure_style import (
    DECODE,
    FAINT,
    MEMORY,
    NEUTRAL,
    PREFILL,
    RUNNING,
    TROUBLE,
    WAITING,
    add_line,
    empty_note,
    new_figure,
    text,
)
from simulator.experiments.latency_plots import itl, latency
from simulator.metrics.tables import STATUS, Floats, Ints, RequestTable, StepTable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_MARKS = 150  # moments of preemption; more would be one thick line
MAX_BARS = 400  # requests in the timeline; more would be thinner than a pixel


def span(requests: RequestTable, steps: StepTable) -> float:
    """Return the moment of the last thing that happened, in seconds; 1.0 when nothing did."""
    times = np.concatenate((steps.end, requests.finish, requests.arrival))
    return float(np.nanmax(times, initial=0.0)) or 1.0


def with_idle(requests: RequestTable, steps: StepTable) -> tuple[Floats, Ints, Ints, Ints]:
    """Return time, running, waiting and used blocks, with a row wherever the engine falls idle.

    An idle engine runs nothing; who waits then has arrived and not been scheduled. Of several replicas the
    sums are returned, and who waits at the router is left out.
    """
    if steps.num_replicas > 1:
        return _summed(steps)
    idle = np.flatnonzero(np.append(steps.start[1:] > steps.end[:-1], len(steps) > 0))
    moments = steps.end[idle]
    left = np.sort(np.where(np.isnan(requests.scheduled), requests.finish, requests.scheduled))
    arrived = np.searchsorted(np.sort(requests.arrival), moments, side="right")
    queued = np.maximum(arrived - np.searchsorted(left, moments, side="right"), 0)
    nothing = np.zeros_like(queued)
    at = idle + 1
    return (
        np.insert(steps.start, at, moments),
        np.insert(steps.num_running, at, nothing),
        np.insert(steps.num_waiting, at, queued),
        np.insert(steps.used_blocks, at, nothing),
    )


def _summed(steps: StepTable) -> tuple[Floats, Ints, Ints, Ints]:
    """Return the same, summed over replicas: each counts with its last step's until it falls idle."""
    moments, changes = [], []
    for replica in range(steps.num_replicas):
        time, values = replica_load(steps, replica)
        moments.append(time)
        changes.append(np.diff(values, axis=0, prepend=np.zeros((1, 3), values.dtype)))
    time = np.concatenate(moments)
    order = np.argsort(time, kind="stable")
    running, waiting, used = np.cumsum(np.concatenate(changes)[order], axis=0).T
    return time[order], running, waiting, used


def replica_load(steps: StepTable, replica: int) -> tuple[Floats, Ints]:
    """Return times and, a row each, who runs and waits on one replica and its used blocks; 0 when idle."""
    rows = np.flatnonzero(steps.replica == replica)
    start, end = steps.start[rows], steps.end[rows]
    idle = np.flatnonzero(np.append(start[1:] > end[:-1], len(rows) > 0))
    columns = [getattr(steps, name)[rows] for name in ("num_running", "num_waiting", "used_blocks")]
    values = np.stack([np.insert(column, idle + 1, 0) for column in columns], axis=1)
    return np.insert(start, idle + 1, end[idle]), values


def queue(requests: RequestTable, steps: StepTable, **_: object) -> Figure:
    """Draw how many requests run and how many wait."""
    fig = new_figure(height=300, span=span(requests, steps))
    if not len(steps):
        return empty_note(fig, "The engine made no step.")
    time, running, waiting, _used = with_idle(requests, steps)
    unit = "%{y:,.0f} requests"
    add_line(fig, time, waiting, name="num_requests_waiting", color=WAITING, value=unit, fill=True)
    add_line(fig, time, running, name="num_requests_running", color=RUNNING, value=unit)
    fig.update_yaxes(title_text="requests", rangemode="tozero")
    return fig


def kv(requests: RequestTable, steps: StepTable, *, num_blocks: int = 0, **_: object) -> Figure:
    """Draw the share of KV blocks that running sequences hold, preemptions, and evicted cached blocks."""
    evicts = bool(steps.evicted_blocks.any())
    rows = [0.72, 0.28] if evicts else [1.0]
    height = 400 if evicts else 300
    fig = new_figure(
        len(rows), height=height, span=span(requests, steps), row_heights=rows, vertical_spacing=0.06
    )
    if not len(steps):
        return empty_note(fig, "The engine made no step.")
    time, _running, _waiting, used = with_idle(requests, steps)
    share, value = used / (num_blocks or 1), "%{y:.1%} of the blocks" if num_blocks else "%{y:,.0f} blocks"
    add_line(fig, time, share, name="kv_cache_usage_perc", color=MEMORY, value=value, fill=True)
    _preemptions(fig, steps, 1.04 if num_blocks else float(share.max(initial=1.0)) * 1.04)
    if num_blocks:
        fig.update_yaxes(range=[0, 1.1], tickformat=".0%", title_text="KV blocks in use", row=1)
    else:
        fig.update_yaxes(rangemode="tozero", title_text="KV blocks in use (blocks)", row=1)
    if evicts:
        edges = _windows(requests, steps)
        evicted = _per_second(edges, steps.start, steps.evicted_blocks)
        name, value = "evicted cached blocks", "%{y:,.1f} blocks/s evicted"
        add_line(fig, edges, evicted, name=name, color=NEUTRAL, value=value, row=2, fill=True)
        fig.update_yaxes(title_text="blocks/s", rangemode="tozero", row=2)
    return fig


def batch(requests: RequestTable, steps: StepTable, **_: object) -> Figure:
    """Draw what each step computed, in tokens, and how long it took."""
    fig = new_figure(2, height=440, span=span(requests, steps), vertical_spacing=0.06)
    if not len(steps):
        return empty_note(fig, "The engine made no step.")
    lines: tuple[tuple[str, str, Floats | Ints, str], ...] = (
        ("prefill tokens", PREFILL, steps.prefill_tokens, "%{y:,.0f} tokens"),
        ("decode tokens", DECODE, steps.num_decodes, "%{y:,.0f} tokens"),
        ("step time", FAINT, (steps.end - steps.start) * 1000, "%{y:,.2f} ms"),
    )
    for name, color, values, unit in lines:
        row = 2 if name == "step time" else 1
        add_line(fig, steps.start, values, name=name, color=color, value=unit, row=row, detail=200)
    fig.update_yaxes(title_text="tokens per step", rangemode="tozero", row=1)
    fig.update_yaxes(title_text="step time (ms)", rangemode="tozero", row=2)
    return fig


def throughput(requests: RequestTable, steps: StepTable, **_: object) -> Figure:
    """Draw tokens computed and requests arriving and completing, per second."""
    fig = new_figure(2, height=440, span=span(requests, steps), vertical_spacing=0.06)
    if not len(steps):
        return empty_note(fig, "The engine made no step.")
    edges, one = _windows(requests, steps), np.ones(len(requests))
    done = requests.status == STATUS.index("completed")
    lines = (
        ("prefill tokens", PREFILL, 1, steps.end, steps.prefill_tokens),
        ("output tokens", DECODE, 1, steps.end, steps.output_tokens),
        ("requests arriving", WAITING, 2, requests.arrival, one),
        ("requests completed", RUNNING, 2, requests.finish[done], one[done]),
    )
    for name, color, row, when, amount in lines:
        rate = _per_second(edges, when, amount)
        value = "%{y:,.0f} tok/s" if row == 1 else "%{y:,.2f} req/s"
        add_line(fig, edges, rate, name=name, color=color, value=value, row=row)
    fig.update_yaxes(title_text="tokens/s", rangemode="tozero", row=1)
    fig.update_yaxes(title_text="requests/s", rangemode="tozero", row=2)
    return fig


def timeline(requests: RequestTable, steps: StepTable, **_: object) -> Figure:
    """Draw requests as bars over time: waiting, prefill, decode; evenly chosen if there are many.

    A request takes the uppermost lane that is free when it arrives, so the lanes in use are the requests
    in the system.
    """
    from plotly.graph_objects import Bar

    end = span(requests, steps)
    n = len(requests)
    rows = np.unique(np.linspace(0, n - 1, min(n, MAX_BARS)).round().astype(np.int64)) if n else np.arange(0)
    finish = np.where(np.isnan(requests.finish), end, requests.finish)
    scheduled = np.where(np.isnan(requests.scheduled), finish, requests.scheduled)
    first = np.where(np.isnan(requests.first_token), finish, requests.first_token)
    phases = (
        ("waiting", WAITING, requests.arrival, scheduled),
        ("prefill", PREFILL, scheduled, first),
        ("decode", DECODE, first, finish),
    )
    lane = lanes(requests.arrival[rows], finish[rows])
    fig = new_figure(height=min(150 + 14 * (int(lane.max(initial=0)) + 1), 640), span=end)
    hover = [_describe(requests, int(i)) for i in rows]
    for name, color, start, stop in phases:
        look = {"marker": {"color": color, "line": {"width": 0}}, "orientation": "h", "width": 0.86}
        words = {
            "name": name,
            "customdata": hover,
            "hovertemplate": f"{name} %{{x:.3f}} s<br>%{{customdata}}",
        }
        fig.add_trace(Bar(x=(stop - start)[rows], base=start[rows], y=lane, **look, **words))
    shown = f"all {n:,} requests" if len(rows) == n else f"{len(rows)} of {n:,} requests, evenly chosen"
    fig.update_yaxes(title_text=shown, autorange="reversed", showgrid=False, showticklabels=False, ticks="")
    fig.update_layout(barmode="overlay", hovermode="closest", bargap=0)
    return fig


def lanes(start: Floats, stop: Floats) -> Ints:
    """Give each interval the lowest lane that is free at its start; starts must not fall.

    >>> lanes(np.array([0.0, 1.0, 2.0]), np.array([5.0, 2.0, 3.0])).tolist()
    [0, 1, 1]
    """
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    result = np.zeros(len(start), dtype=np.int64)
    for i, (begin, end) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        result[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, int(result[i])))
    return result


def _describe(requests: RequestTable, i: int) -> str:
    reason = f" ({text(requests.reason[i])})" if requests.reason[i] else ""
    cached = f", {requests.num_cached[i]:,} cached" if requests.num_cached[i] else ""
    return (
        f"<b>{text(requests.id[i])}</b>: {STATUS[int(requests.status[i])]}{reason}"
        f"<br>arrived at {requests.arrival[i]:.3f} s"
        f"<br>{requests.num_prompt[i]:,} prompt tokens{cached}, {requests.num_output[i]:,} output tokens"
        f"<br>preempted {requests.num_preemptions[i]:,} times<extra></extra>"
    )


def _preemptions(fig: Figure, steps: StepTable, y: float) -> None:
    """Mark the moments of preemptions, at most `MAX_MARKS`, each with its count."""
    from plotly.graph_objects import Scatter

    when = np.flatnonzero(steps.num_preempted)
    if not len(when):
        return
    slots = (steps.start[when] / steps.end[-1] * (MAX_MARKS - 1)).astype(np.int64)
    _, first = np.unique(slots, return_index=True)
    count = np.add.reduceat(steps.num_preempted[when], first)
    marker = {"color": TROUBLE, "symbol": "triangle-down", "size": 8}
    words = {"name": "preemptions", "customdata": count, "hovertemplate": "%{customdata} sequences preempted"}
    x = steps.start[when][first]
    fig.add_trace(Scatter(x=x, y=np.full(len(x), y), mode="markers", marker=marker, **words), row=1, col=1)


def _per_second(edges: Floats, when: Floats, amount: Floats | Ints) -> Floats:
    """Return the amount per second in each window, its last value twice so that a line can end there."""
    rate = np.histogram(when, bins=edges, weights=amount)[0] / np.diff(edges)
    return np.append(rate, rate[-1:])


def _windows(requests: RequestTable, steps: StepTable) -> Floats:
    """Return the edges of 10 to 100 equal windows, about ten requests in each."""
    return np.linspace(0.0, span(requests, steps), min(max(len(requests) // 10, 10), 100) + 1)


PLOTS: dict[str, Callable[..., Figure]] = {
    "latency": latency,
    "itl": itl,
    "throughput": throughput,
    "queue": queue,
    "kv": kv,
    "batch": batch,
    "timeline": timeline,
}
