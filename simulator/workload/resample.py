"""Other requests from the same trace: equal windows of it, or a circular block bootstrap.

Requests of a trace depend on each other (bursts, sessions, shared prefixes), so they are resampled in blocks
of time, not one by one: Politis and Romano, "A circular block-resampling procedure for stationary data"
(1992). A session stays whole and moves with its first request. A row that is drawn again gets an id of its
own, and prefix ids of its own, which it shares with the other rows drawn as often: a copy would otherwise hit
the cache for what only its original had asked.
Left out: slow drift of the rate over the day, which the bootstrap shuffles and windows keep.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.workload.replay import session_numbers
from simulator.workload.trace_blocks import TraceBlocks

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK_S = 60.0
"""Seconds of a trace that stay together in the bootstrap."""


def windows(workload: Workload, num: int) -> list[Workload]:
    """Cut a workload into `num` windows of equal length; a request belongs to where its session begins."""
    return [window(workload, num, i) for i in range(num)]


def window(workload: Workload, num: int, index: int) -> Workload:
    """Return one of `windows`."""
    edges = np.linspace(0.0, _span(workload), num + 1)
    places = np.clip(np.searchsorted(edges, _starts(workload), side="right") - 1, 0, num - 1)
    return _part(workload, np.flatnonzero(places == index), edges[index])


def block_bootstrap(workload: Workload, rng: np.random.Generator, block_s: float = BLOCK_S) -> Workload:
    """Draw blocks of `block_s` seconds with replacement, to the same span; after the end comes the start."""
    starts, span = _starts(workload), _span(workload)
    if span <= 0:
        return workload
    length = min(block_s, span)
    num = int(np.ceil(span / length))
    rows, times = [], []
    for i, begin in enumerate(rng.uniform(0.0, span, num).tolist()):
        since = np.mod(starts - begin, span)
        inside = np.flatnonzero(since < min(length, span - i * length))
        rows.append(inside)
        times.append(workload.arrival[inside] + (since[inside] - starts[inside]) + i * length)
    return _copied(workload, np.concatenate(rows), np.concatenate(times))


def _starts(workload: Workload) -> Floats:
    """Return when each row's session begins, from the first arrival on; its own arrival without one."""
    since = workload.arrival - workload.arrival[0] if len(workload) else workload.arrival
    if workload.session is None:
        return since
    number = session_numbers(workload.session)
    first = np.unique(number, return_index=True)[1]
    begins: Floats = since[first][number]
    return begins


def _span(workload: Workload) -> float:
    """Return the seconds that sessions begin within, a last gap of mean length included."""
    starts = _starts(workload)
    if not len(starts):
        return 0.0
    num = max(len(np.unique(starts)), 2)
    return float(starts.max()) * num / (num - 1)


def _part(workload: Workload, rows: Ints, begin: float) -> Workload:
    return workload.take(rows, np.maximum(workload.arrival[rows] - workload.arrival[0] - begin, 0.0))


def _copied(workload: Workload, rows: Ints, times: Floats) -> Workload:
    """Take rows, some more than once, at new times; copies wait for copies and share with copies."""
    times = times - workload.arrival[0]
    by_time = np.argsort(times, kind="stable")
    rows, times = rows[by_time], times[by_time]
    copy = _occurrence(rows)
    taken = replace(workload, follows=None).take(rows, times)
    ids = [f"{id}.{k}" if k else str(id) for id, k in zip(_ids(workload, rows), copy.tolist(), strict=True)]
    changed: dict[str, object] = {"ids": ids}
    if workload.session is not None:
        pairs = zip(taken.session or [], copy.tolist(), strict=True)
        changed["session"] = [f"{name}.{k}" if name and k else name for name, k in pairs]
    if taken.blocks is not None:
        changed["blocks"] = _apart(taken.blocks, copy)
    if workload.follows is not None:
        changed["follows"], changed["think"] = _followed(workload, rows, copy)
    return replace(taken, **changed)  # type: ignore[arg-type]  # columns by name


def _ids(workload: Workload, rows: Ints) -> list[object]:
    ids: list[object] = list(range(len(workload))) if workload.ids is None else list(workload.ids)
    return [ids[row] for row in rows.tolist()]


def _occurrence(rows: Ints) -> Ints:
    """Count for each entry how often it occurred before.

    >>> _occurrence(np.array([3, 1, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.searchsorted(ordered, ordered, side="left")
    count = np.empty(len(rows), np.int64)
    count[order] = np.arange(len(rows)) - first
    return count


def _apart(blocks: TraceBlocks, copy: Ints) -> TraceBlocks:
    """Give the prefix ids of the k-th copies a range of their own."""
    shift = np.repeat(copy, np.diff(blocks.offsets)) * int(blocks.hi.max(initial=0))
    return replace(blocks, lo=blocks.lo + shift, hi=blocks.hi + shift)


def _followed(workload: Workload, rows: Ints, copy: Ints) -> tuple[Ints, Floats]:
    """Return the pairs within each copy of a session, and think times, 0 for who waits for nobody."""
    assert workload.follows is not None
    assert workload.think is not None
    place = {key: i for i, key in enumerate(zip(rows.tolist(), copy.tolist(), strict=True))}
    pairs = [
        (place[before, k], place[after, k])
        for before, after in workload.follows.reshape(-1, 2).tolist()
        for k in range(int(copy.max(initial=-1)) + 1)
        if (before, k) in place and (after, k) in place
    ]
    found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    waits = np.isin(np.arange(len(rows)), found[:, 1])
    return found, np.where(waits, workload.think[rows], 0.0)
