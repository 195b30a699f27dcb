"""Collect what happens in a run, at a cost per step and per request, never per token.

Token times follow from the step clock and from stints. A stint begins with a step that gave a sequence a
token and lasts while it gets one in every step that decodes; a preemption ends it, and so does a step that
decodes without it. Inter-token latencies are then differences between the ends of decoding steps, weighted
by the stints that span them, and two kinds of gaps of their own: from a stint's first token to its next
decode, and between two stints of a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from simulator.batch import Batch
from simulator.metrics.tables import (
    ABORTED,
    COMPLETED,
    REJECTED,
    UNFINISHED,
    Floats,
    Ints,
    RequestTable,
    StepTable,
)
from simulator.request import Request, Sequence
from simulator.schedulers.base import Scheduler

_FLOAT_STEP = ("start", "end", "prefill_work")
_INT_STEP = (
    "num_tokens",
    "num_seqs",
    "num_sampled",
    "num_decodes",
    "decode_kv",
    "decode_kv_max",
    "prefill_tokens",
    "prefill_kv_max",
    "num_running",
    "num_waiting",
    "used_blocks",
    "kv_tokens",
    "num_preempted",
    "evicted_blocks",
)
_NAN = float("nan")


class Recorder:
    """The columns of a run in progress; requests are rows by their index in the workload."""

    def __init__(self, num_requests: int) -> None:
        n = num_requests
        self.arrived_at = array("d", [_NAN]) * n
        self.client_queue = array("d", [0.0]) * n
        self.pre_delay = array("d", [0.0]) * n
        self.scheduled_at = array("d", [_NAN]) * n
        self.first_token_at = array("d", [_NAN]) * n
        self.finished_at = array("d", [_NAN]) * n
        self.num_output = array("q", [0]) * n
        self.num_cached = array("q", [0]) * n
        self.num_preemptions = array("q", [0]) * n
        self.status = array("b", [UNFINISHED]) * n
        self.reason: dict[int, str] = {}  # where it is not "stop"
        self.num_done = 0
        self._floats = {name: array("d") for name in _FLOAT_STEP}
        self._ints = {name: array("q") for name in _INT_STEP}
        self._append = [self._ints[name].append for name in _INT_STEP]
        self._joined: dict[
            Sequence, tuple[int, int]
        ] = {}  # stint so far: (first step, decoding steps till then)
        self._num_decoding = 0  # steps that decoded anything
        self._stints = array("q")  # those that are over: (request, first step, last step) one after the other
        self._skipped: list[Sequence] = []  # decodes that the last step left out
        self._evicted = 0

    def scheduled(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        """Note a decided step, before time passes."""
        kv = scheduler.kv
        evicted = kv.pool.num_evicted
        kv_tokens = scheduler.decodes.kv_sum + sum(seq.num_computed for seq in scheduler.prefills)
        row = (
            batch.num_tokens,
            batch.num_seqs,
            batch.num_sampled,
            batch.num_decodes,
            batch.decode_kv,
            batch.decode_kv_max,
            batch.prefill_tokens,
            batch.prefill_kv_max,
            len(scheduler.running),
            len(scheduler.waiting),
            kv.num_used,
            kv_tokens + sum(seq.num_computed for seq in batch.ending if seq.state == "running"),
            len(batch.preempted),
            evicted - self._evicted,
        )
        for append, value in zip(self._append, row, strict=True):
            append(value)
        self._evicted = evicted
        self._floats["start"].append(now)
        self._floats["prefill_work"].append(batch.prefill_work)
        for chunk in batch.chunks:
            if chunk.cached is not None:
                index = chunk.seq.index
                if self.scheduled_at[index] != self.scheduled_at[index]:
                    self.scheduled_at[index] = now
                    self.num_cached[index] = chunk.cached
        for seq in (*batch.preempted, *batch.postponed):
            self._end_stint(seq)
        if not batch:
            self._floats["end"].append(now)

    def executed(self, batch: Batch, now: float) -> None:
        """Note the end of a step."""
        ends = self._floats["end"]
        self._num_decoding += batch.num_decodes > 0
        here = (len(ends), self._num_decoding)
        for seq, _, _, samples, _ in batch.chunks:
            if samples:
                self._joined[seq] = here
                if self.first_token_at[seq.index] != self.first_token_at[seq.index]:
                    self.first_token_at[seq.index] = now
        if self._skipped or batch.postponed:
            still = set(batch.postponed)
            for seq in self._skipped:
                if (seq.is_decode or seq in batch.ending) and seq not in still:
                    self._joined[seq] = here
            self._skipped = batch.postponed
        ends.append(now)

    def _end_stint(self, seq: Sequence) -> None:
        """End a sequence's stint, if it is in one, with the last step that ended."""
        stint = self._joined.pop(seq, None)
        if stint is not None:
            first, decoding = stint
            self._stints.extend((seq.index, first, len(self._floats["end"]) - 1))
            self.num_output[seq.index] += 1 + self._num_decoding - decoding

    def finished(self, seq: Sequence, now: float, truth: int) -> None:
        """Note a completion; `truth` is the length the answer would have had uncut."""
        index = seq.index
        self._end_stint(seq)
        self.finished_at[index] = now
        self.num_preemptions[index] = seq.num_preemptions
        self.status[index] = COMPLETED
        self.num_done += 1
        if truth > seq.limit:
            self.reason[index] = "length"

    def aborted(self, seq: Sequence, when: float, reason: str = "timeout") -> None:
        """Note that a client went away before its answer was complete."""
        self._close(seq.index, when, ABORTED, reason)
        self.discard(seq)

    def discard(self, seq: Sequence) -> None:
        """Note how far a sequence came that will not complete."""
        self._end_stint(seq)
        self.num_preemptions[seq.index] = seq.num_preemptions

    def sent(self, index: int, client_queue: float, pre_delay: float) -> None:
        """Note that a client sends: how long it held the request back, and what the way takes (s)."""
        self.client_queue[index] = client_queue
        self.pre_delay[index] = pre_delay

    def arrived(self, index: int, now: float) -> None:
        """Note that a request reached the server."""
        self.arrived_at[index] = now

    def rejected(self, index: int, when: float, reason: str) -> None:
        """Note a request that could never be served."""
        self._close(index, when, REJECTED, reason)

    def _close(self, index: int, when: float, status: int, reason: str) -> None:
        self.finished_at[index] = when
        self.status[index] = status
        self.reason[index] = reason
        self.num_done += 1

    def gaps(self, rows: Ints | None = None) -> tuple[Floats, Ints]:
        """Return inter-token latencies as values (s) and how often each occurs.

        They are those of `rows` of the request table, by default of all completed requests.
        """
        ends = np.array(self._floats["end"])
        decoding = np.flatnonzero(np.array(self._ints["num_decodes"], dtype=np.int64)[: len(ends)])
        ticks = ends[decoding]
        counts = np.array(self.status) == COMPLETED
        if rows is not None:
            counts = np.isin(np.arange(len(self.status)), self._in_order()[rows])
        request, first, last = np.array(self._stints, dtype=np.int64).reshape(-1, 3).T
        kept = np.flatnonzero(counts[request])
        kept = kept[np.argsort(request[kept], kind="stable")]
        request, first, last = request[kept], first[kept], last[kept]
        start = np.searchsorted(decoding, first, side="right")  # the decodes of a stint: start..stop-1
        stop = np.searchsorted(decoding, last, side="right")
        more = stop > start
        n = len(ticks) + 1
        change = np.bincount(start[more] + 1, minlength=n) - np.bincount(stop[more], minlength=n)
        weights = np.cumsum(change)[: len(ticks)]
        spanned = np.flatnonzero(weights)
        steady = ticks[spanned] - ticks[spanned - 1]
        opening = ticks[start[more]] - ends[first[more]]
        final = np.where(more, ticks[np.maximum(stop, 1) - 1], ends[first]) if len(ticks) else ends[first]
        again = np.flatnonzero(request[1:] == request[:-1])
        between = ends[first[again + 1]] - final[again]
        lone = np.concatenate([opening, between])
        return np.concatenate([steady, lone]), np.concatenate(
            [weights[spanned], np.ones(len(lone), np.int64)]
        )

    def step_table(self) -> StepTable:
        """Return the steps recorded so far."""
        n = len(self._floats["end"])
        floats = {name: np.array(column[:n], dtype=np.float64) for name, column in self._floats.items()}
        ints = {name: np.array(column[:n], dtype=np.int64) for name, column in self._ints.items()}
        return StepTable(**floats, **ints)  # type: ignore[arg-type]  # the names are the two tuples above

    def _in_order(self) -> Ints:
        """Indices of the requests that reached the server, in order of arrival: the rows of the table."""
        arrived = np.array(self.arrived_at)
        rows = np.flatnonzero(~np.isnan(arrived))
        return rows[np.argsort(arrived[rows], kind="stable")]

    def request_table(self, requests: Iterable[Request]) -> RequestTable:
        """Return the requests that reached the server, in order of arrival, with what became of them."""
        arrived, rows = np.array(self.arrived_at), self._in_order()
        every = list(requests)
        status = np.array(self.status, dtype=np.int64)
        default = {COMPLETED: "stop"}

        def column(values: array[int]) -> Ints:
            return np.array(values, dtype=np.int64)[rows]

        return RequestTable(
            id=[every[i].id for i in rows],
            arrival=arrived[rows],
            num_prompt=np.array([every[i].num_prompt for i in rows], dtype=np.int64),
            num_output=column(self.num_output),
            status=status[rows],
            reason=[self.reason.get(i, default.get(int(status[i]), "")) for i in rows.tolist()],
            scheduled=np.array(self.scheduled_at)[rows],
            first_token=np.array(self.first_token_at)[rows],
            finish=np.array(self.finished_at)[rows],
            num_cached=column(self.num_cached),
            num_preemptions=column(self.num_preemptions),
            priority=np.array([every[i].priority for i in rows], dtype=np.int64),
            tenant=[every[i].tenant for i in rows],
            client_queue=np.array(self.client_queue)[rows],
            pre_delay=np.array(self.pre_delay)[rows],
        )
