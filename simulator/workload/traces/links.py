"""Who waits for whom in a trace with sessions, and for how long it thinks then.

A format says it in one of three ways: rows name their session (each follows the one before in time), rows
name their predecessor, or the reader walks a tree of forks and joins. Where a format gives no think time, it
is what the stamps leave: from the end of the last predecessor (its arrival plus the server's time, if
known) to the arrival, and never below 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.workload.replay import session_numbers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Links(NamedTuple):
    """The workload's columns of that name, and what a reader of the result must know."""

    session: list[str]
    follows: Ints
    think: Floats
    api_time: Floats | None
    notes: list[str]


def chains(session: list[str]) -> Ints:
    """Let each row follow the row before of the same session."""
    number = session_numbers(session)
    order = np.argsort(number, kind="stable")
    same = number[order][1:] == number[order][:-1]
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def link(arrival: Floats, session: list[str], pairs: Ints, think: Floats, api_time: Floats) -> Links:
    """Settle pairs (p, r) and think times, NaN where unknown. Rows are in order of arrival."""
    notes = []
    causal = pairs[:, 0] < pairs[:, 1]
    if not causal.all():
        notes.append(f"{(~causal).sum():,} requests do not wait for a predecessor that arrives after them")
    pairs = pairs[causal]
    end = np.full(len(arrival), -np.inf)
    np.maximum.at(end, pairs[:, 1], (arrival + np.nan_to_num(api_time))[pairs[:, 0]])
    waits = np.isfinite(end)
    unknown = np.isnan(think)
    gap = np.maximum(arrival - np.where(waits, end, arrival), 0.0)
    settled = np.where(waits, np.where(unknown, gap, think), 0.0)
    blind = np.zeros(len(arrival), bool)
    blind[pairs[:, 1]] = np.isnan(api_time[pairs[:, 0]]) & unknown[pairs[:, 1]]
    if blind.any():
        notes.append(
            f"{blind.sum():,} of {waits.sum():,} think times include the server's time, which the file lacks"
        )
    return Links(session, pairs, settled, None if np.isnan(api_time).all() else api_time, notes)
