"""When the turns of a session arrive: after the answer before, or when they were recorded.

`think` is causal: a slower server makes the session longer, and no turn overtakes the answer that it needs.
`timestamp` is open loop, as if clients knew their questions beforehand: right for offered load, wrong for
sessions once the server differs from the recorded one. `scaled` is between: open loop, with the recorded
server's time stretched. Think times have a heavy tail (users go home): a cap of 60 s is what the
kv-cache-tester tool uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError, suggest

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HERE = "workload.sessions"


def replayed(workload: Workload, replay: str, think_cap_s: float | None, time_scale: float) -> Workload:
    """See `Workload.replayed`."""
    if replay not in REPLAYS:
        raise ConfigError(f"{HERE}.replay: unknown {replay!r}{suggest(replay, REPLAYS)}")
    if think_cap_s is not None and not think_cap_s >= 0:
        raise ConfigError(f"{HERE}.think_cap_s: must be >= 0, got {think_cap_s}")
    if not 0 <= time_scale < float("inf"):
        raise ConfigError(f"{HERE}.time_scale: must be >= 0 and finite, got {time_scale}")
    if workload.follows is None or workload.think is None:
        raise ConfigError(f"{HERE}: {workload.source or 'the workload'} has no sessions to replay")
    think = np.minimum(workload.think, np.inf if think_cap_s is None else think_cap_s)
    return REPLAYS[replay](replace(workload, think=think), time_scale)


def after_answers(workload: Workload, time_scale: float) -> Workload:
    """Wait for the predecessors, then think."""
    return workload


def as_recorded(workload: Workload, time_scale: float) -> Workload:
    """Arrive at the recorded times."""
    return replace(workload, follows=None, think=None)


def as_scaled(workload: Workload, time_scale: float) -> Workload:
    """Arrive when a server that takes `time_scale` times the recorded time would have answered."""
    assert workload.follows is not None
    assert workload.think is not None
    api = np.full(len(workload), np.nan) if workload.api_time is None else workload.api_time
    unknown = np.isnan(api)
    if unknown.all():
        raise ConfigError(f"{HERE}.replay: scaled needs recorded server times; {workload.source} has none")
    median = float(np.median(api[~unknown]))
    took = (np.where(unknown, median, api) * time_scale).tolist()
    arrival, think = workload.arrival.tolist(), workload.think.tolist()
    free: dict[int, float] = {}  # row -> when the last of its predecessors answered
    pairs = workload.follows[np.argsort(workload.follows[:, 1], kind="stable")]
    for before, row in pairs.tolist():  # by row, and predecessors come first: their arrivals are settled
        free[row] = max(free.get(row, 0.0), arrival[before] + took[before])
        arrival[row] = free[row] + think[row]
    notes = workload.notes
    if unknown.any():
        notes += (
            f"{unknown.sum():,} of {len(api):,} requests without a recorded server time take the median, "
            f"{median:g} s",
        )
    times = np.array(arrival)
    order = np.argsort(times, kind="stable")
    return replace(workload, follows=None, think=None, notes=notes).take(order, times[order])


def with_session_starts(workload: Workload, times: Floats) -> Workload:
    """See `Workload.with_session_starts`."""
    if workload.session is None:
        raise ConfigError(f"workload: {workload.source or 'the workload'} has no sessions to start")
    number = session_numbers(workload.session)
    if len(times) != workload.num_sessions:
        raise ValueError(f"needs one start per session, {workload.num_sessions}, got {len(times)}")
    first = np.unique(number, return_index=True)[1]  # rows are in order of arrival
    moved = workload.arrival + (np.asarray(times, np.float64) - workload.arrival[first])[number]
    order = np.argsort(moved, kind="stable")
    return replace(workload, needs_starts="").take(order, moved[order])


def session_numbers(session: list[str]) -> Ints:
    """Number the sessions by first appearance; each row without a name is one of its own.

    >>> session_numbers(["b", "", "b", "a", ""]).tolist()
    [0, 1, 0, 2, 3]
    """
    numbers: dict[str | int, int] = {}
    named = (numbers.setdefault(name or row, len(numbers)) for row, name in enumerate(session))
    return np.fromiter(named, np.int64, len(session))


def kept_pairs(follows: Ints, rows: Ints, num_rows: int) -> Ints:
    """Return the pairs among `rows`, by their new places."""
    place = np.full(num_rows, -1)
    place[rows] = np.arange(len(rows))
    pairs: Ints = place[follows.reshape(-1, 2)]
    return pairs[(pairs >= 0).all(axis=1)]


REPLAYS: dict[str, Callable[[Workload, float], Workload]] = {
    "think": after_answers,
    "timestamp": as_recorded,
    "scaled": as_scaled,
}
