"""What becomes of each request, whoever serves it: one row a request, shared by the replicas of a fleet."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from simulator.metrics.tables import (
    ABORTED,
    COMPLETED,
    REJECTED,
    STATUS,
    UNFINISHED,
    Floats,
    Ints,
    RequestTable,
)
from simulator.request import Request
from simulator.workload.requests import sent_columns

NEVER = float("nan")


class RequestLog:
    """The columns of a run in progress; requests are rows by their index in the workload. Seconds."""

    def __init__(self, num_requests: int) -> None:
        n = num_requests
        self.arrived_at = array("d", [NEVER]) * n
        self.client_queue = array("d", [0.0]) * n
        self.pre_delay = array("d", [0.0]) * n
        self.scheduled_at = array("d", [NEVER]) * n
        self.finished_at = array("d", [NEVER]) * n
        self.num_cached = array("q", [0]) * n
        self.num_preemptions = array("q", [0]) * n
        self.status = array("b", [UNFINISHED]) * n
        self.reason: dict[int, str] = {}  # where it is not "stop"
        self.num_done = 0

    def __len__(self) -> int:
        return len(self.status)

    def sent(self, index: int, client_queue: float, pre_delay: float) -> None:
        """Note that a client sends: how long it held the request back, and what the way takes (s)."""
        self.client_queue[index] = client_queue
        self.pre_delay[index] = pre_delay

    def arrived(self, index: int, now: float) -> None:
        """Note that a request reached the server."""
        self.arrived_at[index] = now

    def completed(self, index: int, now: float, cut: bool) -> None:
        """Note a completion; `cut` if the answer would have been longer."""
        self.finished_at[index] = now
        self.status[index] = COMPLETED
        self.num_done += 1
        if cut:
            self.reason[index] = "length"

    def aborted(self, index: int, when: float, reason: str) -> None:
        """Note that a client went away before its answer was complete."""
        self._close(index, when, ABORTED, reason)

    def rejected(self, index: int, when: float, reason: str) -> None:
        """Note a request that could never be served, or was shed."""
        self._close(index, when, REJECTED, reason)

    def _close(self, index: int, when: float, status: int, reason: str) -> None:
        self.finished_at[index] = when
        self.status[index] = status
        self.reason[index] = reason
        self.num_done += 1

    def in_order(self) -> Ints:
        """Return the indices of the requests that arrived, in that order: the rows of the table."""
        arrived = np.array(self.arrived_at)
        rows = np.flatnonzero(~np.isnan(arrived))
        return rows[np.argsort(arrived[rows], kind="stable")]

    def table(self, requests: Iterable[Request], num_output: Ints, first_token_at: Floats) -> RequestTable:
        """Return the requests that arrived, in order, with what became of them; the columns are by index."""
        arrived, rows = np.array(self.arrived_at), self.in_order()
        places = rows.tolist()
        ids, num_prompt, priority, tenants = sent_columns(requests)
        status = np.asarray(self.status)[rows].astype(np.int64)
        default = ["stop" if i == COMPLETED else "" for i in range(len(STATUS))]

        def column(values: array[int]) -> Ints:
            return np.asarray(values, dtype=np.int64)[rows]

        return RequestTable(
            id=[ids[i] for i in places],
            arrival=arrived[rows],
            num_prompt=num_prompt[rows],
            num_output=num_output[rows],
            status=status,
            reason=[self.reason.get(i, default[s]) for i, s in zip(places, status.tolist(), strict=True)],
            scheduled=np.asarray(self.scheduled_at)[rows],
            first_token=first_token_at[rows],
            finish=np.asarray(self.finished_at)[rows],
            num_cached=column(self.num_cached),
            num_preemptions=column(self.num_preemptions),
            priority=priority[rows],
            tenant=[tenants[i] for i in places],
            client_queue=np.asarray(self.client_queue)[rows],
            pre_delay=np.asarray(self.pre_delay)[rows],
        )
