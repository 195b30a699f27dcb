"""Collect what happens in a run, at a cost per step and per request, never per token.

Token times follow from the step clock and from stints. A stint is a stretch of steps, first to last, each of
which gave a sequence a token; a preemption ends it, and so does a step that leaves the decode out.
Inter-token latencies are differences of step ends, weighted by the stints that span them, and one gap of its
own between two stints of a request.
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
        self._joined: dict[Sequence, int] = {}  # the step that began a sequence's present stint
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
        for seq, _, _, samples, _ in batch.chunks:
            if samples:
                self._joined[seq] = len(ends)
                if self.first_token_at[seq.index] != self.first_token_at[seq.index]:
                    self.first_token_at[seq.index] = now
        if self._skipped or batch.postponed:
            still = set(batch.postponed)
            for seq in self._skipped:
                if (seq.is_decode or seq in batch.ending) and seq not in still:
                    self._joined[seq] = len(ends)
            self._skipped = batch.postponed
        ends.append(now)

    def _end_stint(self, seq: Sequence) -> None:
        """End a sequence's stint, if it is in one, with the last step that ended."""
        first = self._joined.pop(seq, None)
        if first is not None:
            last = len(self._floats["end"]) - 1
            self._stints.extend((seq.index, first, last))
            self.num_output[seq.index] += last + 1 - first

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
        counts = (
            np.array(self.status) == COMPLETED if rows is None else np.isin(range(len(self.status)), rows)
        )
        request, first, last = np.array(self._stints, dtype=np.int64).reshape(-1, 3).T
        kept = np.flatnonzero(counts[request])
        kept = kept[np.argsort(request[kept], kind="stable")]
        request, first, last = request[kept], first[kept], last[kept]
        n = len(ends) + 1
        change = np.bincount(first + 1, minlength=n) - np.bincount(last + 1, minlength=n)
        weights = np.cumsum(change)[:-1]
        spanned = np.flatnonzero(weights)
        values = ends[spanned] - ends[spanned - 1]
        again = np.flatnonzero(request[1:] == request[:-1])
        between = ends[first[again + 1]] - ends[last[again]]
        ones = np.ones(len(between), dtype=np.int64)
        return np.concatenate([values, between]), np.concatenate([weights[spanned], ones])

    def step_table(self) -> StepTable:
        """Return the steps recorded so far."""
        n = len(self._floats["end"])
        floats = {name: np.array(column[:n], dtype=np.float64) for name, column in self._floats.items()}
        ints = {name: np.array(column[:n], dtype=np.int64) for name, column in self._ints.items()}
        return StepTable(**floats, **ints)  # type: ignore[arg-type]  # the names are the two tuples above

    def request_table(self, requests: Iterable[Request]) -> RequestTable:
        """Return the requests with what became of them."""
        requests = list(requests)
        n = len(requests)
        status = np.array(self.status, dtype=np.int64)
        default = {COMPLETED: "stop"}
        return RequestTable(
            id=[request.id for request in requests],
            arrival=np.array([request.arrival for request in requests], dtype=np.float64),
            num_prompt=np.array([request.num_prompt for request in requests], dtype=np.int64),
            num_output=np.array(self.num_output, dtype=np.int64),
            status=status,
            reason=[self.reason.get(i, default.get(int(status[i]), "")) for i in range(n)],
            scheduled=np.array(self.scheduled_at),
            first_token=np.array(self.first_token_at),
            finish=np.array(self.finished_at),
            num_cached=np.array(self.num_cached, dtype=np.int64),
            num_preemptions=np.array(self.num_preemptions, dtype=np.int64),
            priority=np.array([request.priority for request in requests], dtype=np.int64),
            tenant=[request.tenant for request in requests],
        )
