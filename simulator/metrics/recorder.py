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
from collections.abc import Sequence as Many

import numpy as np
from numpy.typing import NDArray

from simulator.batch import Batch
from simulator.metrics.request_log import NEVER, RequestLog
from simulator.metrics.spans import SPAN_INTS, pack_span, span_columns, written_out
from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable, StepTable
from simulator.metrics.token_times import Stints, gaps, stints
from simulator.metrics.transfers import Transfers
from simulator.metrics.verifications import Verifications
from simulator.request import Request, Sequence
from simulator.schedulers.base import Scheduler
from simulator.schedulers.flight import Flight


class Recorder:
    """The columns of one replica's run in progress.

    Its requests are rows of `log`, which replicas of one fleet share; steps and stints are its own.
    """

    def __init__(self, log: RequestLog, num_blocks: int) -> None:
        self.log = log
        self.num_blocks = num_blocks
        self.scheduled_at, self.finished_at = log.scheduled_at, log.finished_at
        self.num_cached, self.num_preemptions = log.num_cached, log.num_preemptions
        self.status, self.reason = log.status, log.reason
        self._spans = array("i")  # the bits of rows of SPAN, one after the other
        self._ends = array("d")  # of every step
        self._opened = array("i")  # blocks opened by decodes in every step that a span repeats
        self._joined: dict[Sequence, int] = {}  # first step of the stint so far
        self._stints = array("q")  # those that are over: (request, first step, last step) one after the other
        self._void: dict[int, int] = {}  # request -> how many of the stints, whoever's, cannot be its own
        self._left_out: list[Sequence] = []  # decodes that the last step left out
        self.transfers = Transfers()
        self.verifications: Verifications | None = None  # under speculation
        self.flight: Flight | None = None  # where several batches are under way at once
        self.num_skipped = 0  # steps taken without asking the scheduler again

    @property
    def num_steps(self) -> int:
        """Steps that have ended."""
        return len(self._ends)

    def scheduled(self, batch: Batch, scheduler: Scheduler, now: float, start: float) -> None:
        """Note a decided step, before time passes; its forward pass begins at `start`."""
        pool, group = scheduler.kv.pool, scheduler.decodes
        num_unhashed = pool.num_unhashed_free
        kv_tokens = group.offset_sum + group.size * group.steps
        for seq in scheduler.prefills:
            kv_tokens += seq._computed
        for seq in batch.ending:
            if seq.state == "running":
                kv_tokens += seq._computed
        for seq in scheduler.fetching:
            kv_tokens += seq._computed
        for seq in scheduler.parked:
            kv_tokens += seq._computed
        if self.verifications is not None:
            kv_tokens += sum(seq._computed for seq in scheduler.running if seq.speculates)
        if self.flight is not None:
            kv_tokens += self.flight.kv_tokens(batch)
        self._spans.frombytes(
            pack_span(
                1,
                now,
                batch.prefill_work,
                batch.decode_kv,
                kv_tokens,
                pool.num_evicted,
                batch.num_seqs,
                batch.num_sampled,
                batch.num_decodes,
                batch.num_padding,
                batch.group_kv_max,
                batch.padding_kv_max,
                batch.prefill_tokens,
                batch.prefill_kv_max,
                len(scheduler.running),
                scheduler.waiting.size,
                num_unhashed + pool.num_cached_free,
                num_unhashed,
                len(batch.preempted),
            )
        )
        for chunk in batch.chunks:
            if chunk.start < chunk.seq.lost:
                self.transfers.recomputed(chunk, len(self._ends))
            if chunk.cached is not None:
                index = chunk.seq.index
                if self.scheduled_at[index] != self.scheduled_at[index]:
                    self.scheduled_at[index] = now
                    self.num_cached[index] = chunk.cached
        if batch.preempted or batch.postponed:
            for seq in (*batch.preempted, *batch.postponed):
                self._end_stint(seq)
        if batch.moves:
            self.transfers.moved(batch, len(self._ends))
        if not batch.num_tokens:
            self._ends.append(start)

    def repeated(self, ends: Many[float], opened: Many[int]) -> None:
        """Note that the last step was repeated: the ends of the repetitions, and the blocks each took."""
        n = len(ends)
        self._spans[-SPAN_INTS] += n
        if self.transfers.last is not None:
            self.transfers.repeated(len(self._ends), n)
        self._ends.extend(ends)
        self._opened.extend(opened)
        self.num_skipped += n

    def executed(self, batch: Batch, now: float) -> None:
        """Note the end of a step."""
        ends = self._ends
        if batch.num_sampled > batch.num_decodes:
            for chunk in batch.chunks:
                if chunk.samples and not chunk.is_decode:
                    self._joined[chunk.seq] = len(ends)
        if self._left_out or batch.postponed:
            still = set(batch.postponed)
            for seq in self._left_out:
                if (seq.is_decode or seq in batch.ending) and seq not in still:
                    self._joined[seq] = len(ends)
            self._left_out = list(batch.postponed)
        ends.append(now)

    def _end_stint(self, seq: Sequence) -> None:
        """End a sequence's stint, if it is in one, with the last step that ended."""
        first = self._joined.pop(seq, None)
        if first is not None:
            self._stints.extend((seq.index, first, len(self._ends) - 1))

    def finished(self, seq: Sequence, now: float, truth: int) -> None:
        """Note a completion; `truth` is the length the answer would have had uncut."""
        self._end_stint(seq)
        self.num_preemptions[seq.index] += seq.num_preemptions
        self.log.completed(seq.index, now, cut=truth > seq.limit)

    def aborted(self, seq: Sequence, when: float, reason: str = "timeout") -> None:
        """Note that a client went away before its answer was complete."""
        self.log.aborted(seq.index, when, reason)
        self.discard(seq)

    def lose(self, seq: Sequence) -> None:
        """Note that what a request got here does not count, since it starts over elsewhere."""
        self._joined.pop(seq, None)
        self._void[seq.index] = len(self._stints) // 3
        if self.verifications is not None:
            self.verifications.lose(seq.index)

    def discard(self, seq: Sequence) -> None:
        """Note how far a sequence came that will not complete."""
        self._end_stint(seq)
        self.num_preemptions[seq.index] += seq.num_preemptions

    def rejected(self, index: int, when: float, reason: str) -> None:
        """Note a request that could never be served, or was shed."""
        self.log.rejected(index, when, reason)

    @property
    def num_done(self) -> int:
        """Requests that are over, of all replicas that share the log."""
        return self.log.num_done

    def gaps(self, rows: Ints | None = None) -> tuple[Floats, Ints]:
        """Return inter-token latencies as values (s) and how often each occurs.

        They are those of `rows` of the request table, by default of all completed requests.
        """
        counts = np.array(self.status) == COMPLETED
        if rows is not None:
            counts = np.isin(np.arange(len(self.status)), self.log.in_order()[rows])
        return gaps([self.stints(counts)])

    def stints(self, counts: NDArray[np.bool_]) -> Stints:
        """Return the stints that are over of the requests that count, by index."""
        return stints(np.asarray(self._ends), self._decoding(), self._ended_stints(), counts)

    @property
    def num_output(self) -> Ints:
        """Tokens that each request got in its stints that are over."""
        request, first, last = self._ended_stints()
        found, decoding = np.zeros(len(self.status), np.int64), self._decoding()
        np.add.at(found, request, 1 + decoding[last] - decoding[first])
        return found if self.verifications is None else found + self.verifications.more_output(len(found))

    @property
    def first_token_at(self) -> Floats:
        """When each request got its first token, s; NaN before its first stint is over."""
        request, first, _ = self._ended_stints()
        found = np.full(len(self.status), NEVER)
        found[request[::-1]] = np.asarray(self._ends)[first[::-1]]  # the earliest stint is written last
        return found

    def _ended_stints(self) -> Ints:
        """Return request, first and last step of the stints that are over, as three rows."""
        found = np.asarray(self._stints, dtype=np.int64).reshape(-1, 3)
        if self._void:
            void = np.array([self._void.get(request, 0) for request in found[:, 0].tolist()])
            found = found[np.arange(len(found)) >= void]
        return found.T

    def _decoding(self) -> Ints:
        """Return, for every step that has ended, how many until then decoded anything, itself included."""
        spans = span_columns(self._spans)
        decoded = np.repeat(spans["num_decodes"] > 0, spans["count"])[: len(self._ends)]
        return np.cumsum(decoded, dtype=np.int64)

    @property
    def decode_steps(self) -> Ints:
        """How often each decided step that only decodes was taken."""
        spans = span_columns(self._spans)
        found: Ints = spans["count"][spans["prefill_tokens"] == 0]
        return found

    def step_table(self) -> StepTable:
        """Return the steps that have ended, the repeated ones written out."""
        stall = self.transfers.stall(len(self._ends))
        steps = written_out(self._spans, self._ends, self._opened, stall, self.num_blocks)
        if self.verifications is not None:
            self.verifications.add_to(steps)
        return steps

    def request_table(self, requests: Iterable[Request]) -> RequestTable:
        """Return the requests that reached the server, in order of arrival, with what became of them."""
        return self.log.table(requests, self.num_output, self.first_token_at)


def skipped_decode_share(recorders: Iterable[Recorder]) -> float | None:
    """Return the share of skipped ones among the steps that only decode; None if no step does."""
    count = np.concatenate([recorder.decode_steps for recorder in recorders])
    return float((count - 1).sum() / count.sum()) if len(count) else None
