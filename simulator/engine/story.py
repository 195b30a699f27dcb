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

ARRIVING, WAITING, PREFILL, DECODE, LEFT_OUT, PREEMPTED, FETCHING, HELD_BACK = (
    "step under way",
    "waiting",
    "prefill",
    "decode",
    "left out",
    "preempted",
    "fetching",
    "held back",
)
HELD_BY: dict[str, str] = {
    "seats": "all {} seats (max_num_seqs) were taken",
    "budget": "the step's token budget (max_num_batched_tokens) had no room for the first in the queue",
    "blocks": "the first in the queue did not fit into the free KV blocks",
    "rule": "an admission rule made the first in the queue wait",
    "collecting": "the policy was collecting a batch",
    "batch": "a batch that takes nobody in was under way",
}


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
        self._step: list[int] = []  # the step being decided; none if a call decided nothing

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        """Note what the step just decided means for every sequence."""
        self._step = [self._num_steps] if batch or batch.preempted or batch.moves else []
        chunks = {chunk.seq: chunk for chunk in batch.chunks}
        stall = sum(batch.stall)
        preempted = set(batch.preempted)
        for seq in scheduler.running:
            if self._follows(seq):
                if stall:
                    self._begin(seq, now, HELD_BACK, "the step waited until blocks were copied out", 0)
                activity = _running(seq, batch, chunks.get(seq))
                if not batch and scheduler.fetching:
                    activity = LEFT_OUT, "its batch waited for blocks of others", 0
                self._begin(seq, now + stall, *activity)
        for seq in scheduler.fetching:
            if self._follows(seq):
                self._begin(seq, now, FETCHING, f"its blocks came from {_places(seq, scheduler)}", 0)
        for seq in scheduler.waiting:
            if self._follows(seq):
                kind = PREEMPTED if seq.num_preemptions else WAITING
                lost = seq in preempted
                why = _preempted_for(batch, scheduler) if lost else _why_waiting(batch, scheduler)
                if lost and seq.swapped:
                    why += f", they were copied to {_places(seq, scheduler)}"
                self._begin(seq, now, kind, why, 0)
        self._num_steps += len(self._step)

    def finished(self, sequences: Iterable[Sequence], now: float) -> None:
        """Close the last span of sequences that ended; one may have gone before any step was decided."""
        for seq in sequences:
            if seq.id in self.spans:
                close(self.spans[seq.id], now)
            elif self._follows(seq):
                self.spans[seq.id] = [arriving(seq.arrival, now)]

    def _follows(self, seq: Sequence) -> bool:
        return self._ids is None or seq.id in self._ids

    def _begin(self, seq: Sequence, now: float, kind: str, why: str, num_tokens: int) -> None:
        spans = self.spans.setdefault(seq.id, [])
        if not spans and now > seq.arrival:
            spans.append(arriving(seq.arrival, now))
        if not spans or (spans[-1].kind, spans[-1].why) != (kind, why):
            if spans:
                spans[-1].end = now
            spans.append(Span(kind, why, now))
        spans[-1].num_tokens += num_tokens
        spans[-1].steps += self._step


def arriving(start: float, end: float) -> Span:
    """Return the span before the first decision after an arrival."""
    return Span(ARRIVING, "a step was under way when it arrived", start, end)


def close(spans: list[Span], end: float) -> None:
    """End a story; a span that was to begin later, after a step's stall, never did."""
    while spans[-1].start > end and len(spans) > 1:
        spans.pop()
    spans[-1].end = end


def _running(seq: Sequence, batch: Batch, chunk: Chunk | None) -> tuple[str, str, int]:
    if chunk is not None and chunk.is_decode:
        return DECODE, "a step verifies its drafts", chunk.num_tokens
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
    decodes = seq.is_decode or seq in batch.ending
    if decodes and batch.num_decodes and seq not in batch.postponed:
        return DECODE, "a token a step", 1
    only_prompts = decodes and not batch.num_decodes
    return LEFT_OUT, "the step computed only prompts" if only_prompts else "the step had no room for it", 0


def _places(seq: Sequence, scheduler: Scheduler) -> str:
    """Name the tiers in which a sequence's blocks lie."""
    tiers = scheduler.kv.tiers
    assert tiers is not None, "the sequence has blocks in a tier"
    return " and ".join(tiers[tier].name for tier in sorted({claim.tier for claim in seq.claims}))


def _why_waiting(batch: Batch, scheduler: Scheduler) -> str:
    default = "a step that had to preempt admits nobody" if batch.preempted else "the policy took nobody in"
    return HELD_BY.get(scheduler.held_by, default).format(scheduler.max_num_seqs)


def _preempted_for(batch: Batch, scheduler: Scheduler) -> str:
    """Name the sequences that got new blocks in a step that ran out of them."""
    size, chunks = scheduler.kv.block_size, {chunk.seq for chunk in batch.chunks}
    opened = [
        seq.id
        for seq in scheduler.running
        if seq in chunks or (_running(seq, batch, None)[0] == DECODE and (seq.num_computed - 1) % size == 0)
    ]
    if not opened:
        return "needed another block, and none was free"
    return f"lost its blocks to {', '.join(opened[:3])}" + (
        f" and {len(opened) - 3} more" * (len(opened) > 3)
    )
