"""Collect what happens in a run, at a cost per step and per request, never per token.

Token times follow from the step clock: every decode of a step got its previous token at the end of the step
before, so inter-token latencies are the differences of step ends, weighted by the decodes of each step;
sequences that resume after a preemption or missed a step enter with a gap of their own.
"""

from __future__ import annotations

from array import array

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
        self._gap_weights = array("q")  # per step, decodes whose previous token was the last step's
        self._lone_gaps: list[
            tuple[float, int]
        ] = []  # (gap, request) of sequences out of step with the others
        self._last_token: dict[Sequence, float] = {}  # when those got their last token
        self._joined: dict[Sequence, int] = {}  # step since which a decode is in step with the others
        self._stints: dict[Sequence, list[tuple[int, int]]] = {}  # earlier (joined, last step) of the same
        self._discarded: set[int] = set()
        self._last_end = _NAN
        self._evicted = 0
        self._num_wasted = 0

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
            kv_tokens + sum(seq.num_computed for seq in batch.ending),
            len(batch.preempted),
            evicted - self._evicted,
        )
        for append, value in zip(self._append, row, strict=True):
            append(value)
        self._evicted = evicted
        self._floats["start"].append(now)
        self._floats["prefill_work"].append(batch.prefill_work)
        if not batch:
            self._end_step(now, 0)
        for chunk in batch.chunks:
            if chunk.cached is not None:
                index = chunk.seq.index
                if self.scheduled_at[index] != self.scheduled_at[index]:
                    self.scheduled_at[index] = now
                    self.num_cached[index] = chunk.cached
        for seq in (*batch.preempted, *batch.postponed):
            if seq.num_output:
                self._fall_out_of_step(seq)

    def wasted(self, n: int) -> None:
        """Note that n decodes of the step just decided belong to sequences that have ended (rule 8.4)."""
        self._num_wasted = n

    def executed(self, batch: Batch, now: float) -> None:
        """Note the end of a step."""
        step = len(self._gap_weights)
        lone = self._record_lone_gaps(batch, now) if self._last_token else 0
        for seq, _, _, samples, _ in batch.chunks:
            if samples:
                self._joined[seq] = step
                if self.first_token_at[seq.index] != self.first_token_at[seq.index]:
                    self.first_token_at[seq.index] = now
        self._end_step(now, batch.num_decodes - lone - self._num_wasted)
        self._num_wasted = 0

    def _end_step(self, now: float, weight: int) -> None:
        self._floats["end"].append(now)
        self._gap_weights.append(weight)
        self._last_end = now

    def _fall_out_of_step(self, seq: Sequence) -> None:
        if seq not in self._last_token:
            self._last_token[seq] = self._last_end
            self._stints.setdefault(seq, []).append((self._joined.pop(seq), len(self._gap_weights) - 1))

    def _record_lone_gaps(self, batch: Batch, now: float) -> int:
        """Close the gaps of sequences that get a token again; return how many decode in this step."""
        decodes = 0
        chunks = {chunk.seq: chunk.samples for chunk in batch.chunks}
        for seq in list(self._last_token):
            decoding = batch.num_decodes > 0 and (seq.is_decode or seq in batch.ending)
            decoding = decoding and seq not in chunks and seq not in batch.postponed
            if decoding or chunks.get(seq):
                self._lone_gaps.append((now - self._last_token.pop(seq), seq.index))
                self._joined[seq] = len(self._gap_weights)
                decodes += decoding
        return decodes

    def finished(self, seq: Sequence, now: float, truth: int) -> None:
        """Note a completion; `truth` is the length the answer would have had uncut."""
        index = seq.index
        self.finished_at[index] = now
        self.num_output[index] = min(truth, seq.limit)
        self.num_preemptions[index] = seq.num_preemptions
        self.status[index] = COMPLETED
        self.num_done += 1
        if truth > seq.limit:
            self.reason[index] = "length"
        del self._joined[seq]
        self._stints.pop(seq, None)

    def aborted(self, seq: Sequence, when: float, reason: str = "timeout") -> None:
        """Note that a client went away before its answer was complete."""
        self._close(seq.index, when, ABORTED, reason)
        self.discard(seq)

    def discard(self, seq: Sequence) -> None:
        """Take the tokens of a sequence that will not complete out of the inter-token latencies (as vLLM does)."""
        self.num_output[seq.index] = seq.num_output
        self.num_preemptions[seq.index] = seq.num_preemptions
        stints = self._stints.pop(seq, [])
        if seq in self._joined:
            stints.append((self._joined.pop(seq), len(self._gap_weights) - 1))
        for joined, last in stints:
            for step in range(joined + 1, last + 1):
                self._gap_weights[step] -= 1
        self._discarded.add(seq.index)
        self._last_token.pop(seq, None)

    def rejected(self, index: int, when: float, reason: str) -> None:
        """Note a request that could never be served."""
        self._close(index, when, REJECTED, reason)

    def _close(self, index: int, when: float, status: int, reason: str) -> None:
        self.finished_at[index] = when
        self.status[index] = status
        self.reason[index] = reason
        self.num_done += 1

    def gaps(self) -> tuple[Floats, Ints]:
        """Return all inter-token latencies as values (s) and how often each occurred."""
        ends = np.array(self._floats["end"])
        weights = np.array(self._gap_weights, dtype=np.int64)
        values = np.diff(ends, prepend=ends[:1])
        keep = weights > 0
        lone = np.array([gap for gap, index in self._lone_gaps if index not in self._discarded])
        ones = np.ones(len(lone), dtype=np.int64)
        return np.concatenate([values[keep], lone]), np.concatenate([weights[keep], ones])

    def step_table(self) -> StepTable:
        """Return the steps recorded so far."""
        n = len(self._floats["end"])
        floats = {name: np.array(column[:n], dtype=np.float64) for name, column in self._floats.items()}
        ints = {name: np.array(column[:n], dtype=np.int64) for name, column in self._ints.items()}
        return StepTable(**floats, **ints)

    def request_table(self, requests: list[Request]) -> RequestTable:
        """Return the requests with what became of them."""
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
