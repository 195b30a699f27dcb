"""Sessions in numbers: how many turns, how long, how long users and tools think, what a session reuses.

Durations and gaps are those of the recorded arrivals; a session with one request lasts 0 s. The gap CV is
over all gaps between neighbours of one session. Think times are those of requests that wait for one. The
share of hits is that of prefix blocks that earlier requests had, with an unlimited cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from simulator.workload.replay import session_numbers

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Quantiles(TypedDict):
    """Linearly interpolated percentiles, mean and largest."""

    mean: float
    p25: float
    p50: float
    p90: float
    p99: float
    max: float


class SessionInfo(TypedDict):
    """See the module. Times in seconds; None where the workload says nothing."""

    sessions: int
    requests: Quantiles  # per session
    duration: Quantiles
    gap_cv: float | None
    think: Quantiles | None
    api_time: Quantiles | None
    hit_share: Quantiles | None  # of blocks, per session


def session_info(workload: Workload, hits: Ints | None) -> SessionInfo | None:
    """Describe the sessions; `hits` are the leading blocks of each request that were there before."""
    if workload.session is None:
        return None
    number = session_numbers(workload.session)
    order = np.argsort(number, kind="stable")
    arrival, same = workload.arrival[order], np.diff(number[order]) == 0
    starts = np.flatnonzero(np.append(True, ~same)) if len(order) else order
    ends = np.append(starts[1:], len(order)) - 1 if len(order) else order
    gaps = np.diff(arrival)[same]
    waits = np.zeros(0, np.int64) if workload.follows is None else np.unique(workload.follows[:, 1])
    think = None if workload.think is None else workload.think[waits]
    api = None if workload.api_time is None else workload.api_time[~np.isnan(workload.api_time)]
    return {
        "sessions": len(starts),
        "requests": _quantiles(np.bincount(number)) or _NOTHING,
        "duration": _quantiles(arrival[ends] - arrival[starts]) or _NOTHING,
        "gap_cv": float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else None,
        "think": _quantiles(think),
        "api_time": _quantiles(api),
        "hit_share": _quantiles(_shares(workload, number, hits)),
    }


def session_rows(info: SessionInfo) -> list[tuple[str, str]]:
    """Return the lines of a table for people."""
    rows = [
        ("sessions", f"{info['sessions']:,}"),
        ("requests per session", _line(info["requests"])),
        ("session, recorded, s", _line(info["duration"])),
    ]
    if info["gap_cv"] is not None:
        rows.append(("gap CV within sessions", f"{info['gap_cv']:.4g}"))
    for name, quantiles in (("think time, s", info["think"]), ("recorded server time, s", info["api_time"])):
        if quantiles is not None:
            rows.append((name, _line(quantiles)))
    if (share := info["hit_share"]) is not None:
        rows.append(("hits per session", f"mean {share['mean']:.1%}, p50 {share['p50']:.1%} of blocks"))
    return rows


_NOTHING: Quantiles = {"mean": 0.0, "p25": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def _quantiles(x: Floats | Ints | None) -> Quantiles | None:
    if x is None or not len(x):
        return None
    p25, p50, p90, p99 = np.percentile(x, [25, 50, 90, 99]).tolist()
    return {"mean": float(x.mean()), "p25": p25, "p50": p50, "p90": p90, "p99": p99, "max": float(x.max())}


def _shares(workload: Workload, number: Ints, hits: Ints | None) -> Floats | None:
    if hits is None or workload.blocks is None:
        return None
    blocks = np.bincount(number, workload.blocks.num_ids)
    shares: Floats = np.bincount(number, hits)[blocks > 0] / blocks[blocks > 0]
    return shares


def _line(q: Quantiles) -> str:
    parts = " / ".join(f"{q[key]:,.4g}" for key in ("p25", "p50", "p90", "p99"))
    return f"p25 / p50 / p90 / p99: {parts}; mean {q['mean']:,.4g}, max {q['max']:,.4g}"
