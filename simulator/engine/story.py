"""What each request is doing at every moment between its arrival and its end, and why.

An observer of the engine loop, like the decision log, for runs that are made to be explained. Every step
gives each sequence one activity; a span runs from the decision that began it to the one that ended it, so the
spans of a request follow each other without a gap and add up to its latency.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.batch import Batch, Chunk
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler

ARRIVING, WAITING, PREFILL, DECODE, LEFT_OUT, PREEMPTED = (
    "step under way",
    "waiting",
    "prefill",
    "decode",
    "left out",
    "preempted",
)


@dataclass(slots=True)
class Span:
    """One activity of one request, `start` to `end` in seconds. `steps` are the steps it took part in."""

    kind: str
    why: str
    start: float
    end: float = float("nan")
    num_tokens: int = 0
    steps: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Story:
    """Collect the spans of the sequences with the given ids, or of all."""

    def __init__(self, ids: Iterable[str] | None = None) -> None:
        self._ids = None if ids is None else frozenset(ids)
        self.spans: dict[str, list[Span]] = {}
        self._num_steps = 0

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        """Note what the step just decided means for every sequence."""
        chunks = {chunk.seq: chunk for chunk in batch.chunks}
        preempted = set(batch.preempted)
        for seq in scheduler.running:
            if self._follows(seq):
                self._begin(seq, now, *_running(seq, batch, chunks.get(seq)))
        for seq in scheduler.waiting:
            if self._follows(seq):
                kind = PREEMPTED if seq.num_preemptions else WAITING
                lost = seq in preempted
                why = _preempted_for(batch, scheduler) if lost else _why_waiting(batch, scheduler)
                self._begin(seq, now, kind, why, 0)
        self._num_steps += 1

    def finished(self, sequences: Iterable[Sequence], now: float) -> None:
        """Close the last span of sequences that ended."""
        for seq in sequences:
            if seq.id in self.spans:
                self.spans[seq.id][-1].end = now

    def _follows(self, seq: Sequence) -> bool:
        return self._ids is None or seq.id in self._ids

    def _begin(self, seq: Sequence, now: float, kind: str, why: str, num_tokens: int) -> None:
        spans = self.spans.setdefault(seq.id, [])
        if not spans and now > seq.arrival:
            spans.append(Span(ARRIVING, "a step was under way when it arrived", seq.arrival, now))
        if not spans or (spans[-1].kind, spans[-1].why) != (kind, why):
            if spans:
                spans[-1].end = now
            spans.append(Span(kind, why, now))
        spans[-1].num_tokens += num_tokens
        spans[-1].steps.append(self._num_steps)


def _running(seq: Sequence, batch: Batch, chunk: Chunk | None) -> tuple[str, str, int]:
    if chunk is not None:
        done = chunk.start + chunk.num_tokens
        cached = f", {chunk.cached} found in the prefix cache" if chunk.cached else ""
        again = " again after a preemption" if seq.num_preemptions else ""
        whole = "" if chunk.samples else ", as much as the step's token budget left"
        return (
            PREFILL,
            f"tokens {chunk.start} to {done}{again}{cached}{whole}, beside {batch.num_decodes} decodes",
            chunk.num_tokens,
        )
    takes_part = batch.num_decodes > 0 and seq not in batch.postponed
    if takes_part and (seq.is_decode or seq in batch.ending):
        return DECODE, "a token a step", 1
    return LEFT_OUT, "the step had no room for it", 0


def _why_waiting(batch: Batch, scheduler: Scheduler) -> str:
    if batch.preempted:
        return "a step that had to preempt admits nobody"
    if len(scheduler.running) >= scheduler.max_num_seqs:
        return f"all {scheduler.max_num_seqs} seats (max_num_seqs) were taken"
    if batch and batch.budget <= 0:
        return "the step's token budget (max_num_batched_tokens) was used up"
    if scheduler.wake_at is not None:
        return "the policy was collecting a batch"
    head = scheduler.waiting.head()
    if batch and head is not None and scheduler.kv.blocks_for(head.num_tokens) <= scheduler.kv.num_free:
        return "the first in the queue did not fit, whole, into what was left of the step's token budget"
    return "the first in the queue did not fit into the free KV blocks"


def _preempted_for(batch: Batch, scheduler: Scheduler) -> str:
    """Name the sequences that got new blocks in a step that ran out of them."""
    size = scheduler.kv.block_size
    opened = [seq.id for seq in scheduler.running if seq.is_decode and (seq.num_computed - 1) % size == 0]
    opened += [chunk.seq.id for chunk in batch.chunks if chunk.seq.id not in opened]
    names = ", ".join(opened[:3]) + (f" and {len(opened) - 3} more" if len(opened) > 3 else "")
    return f"lost its blocks to {names or 'make room'}"
