"""Admitting the first in the queue, or saying what keeps it there (section 3B of vLLM's rules)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simulator.batch import Batch

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler

Hold = Literal["", "seats", "budget", "blocks", "collecting", "batch"]
"""What keeps the head of the queue waiting: seats, tokens or blocks are short, or the policy bides time."""


def admit_head(scheduler: Scheduler, batch: Batch, whole: bool) -> Hold:
    """Admit the first in the queue, or say what keeps it there; with `whole` its prompt is not cut."""
    if len(scheduler.running) >= scheduler.max_num_seqs:
        return "seats"
    if batch.budget <= 0:
        return "budget"
    kv, seq = scheduler.kv, scheduler.waiting.head()
    assert seq is not None, "the queue counts what waits"
    hit = kv.lookup(seq)
    start = hit.num_blocks * kv.block_size
    n = seq.num_tokens - start if whole else batch.chunk_size(seq, start)
    if n > batch.budget and batch:
        return "budget"
    must_fit = min(seq.num_tokens, scheduler.max_model_len) if scheduler.scheduler_reserve_full_isl else 0
    if not kv.admit(seq, hit, n, must_fit=must_fit, watermark=bool(scheduler.running)):
        return "blocks"
    if n > batch.budget:
        scheduler.count_oversized(seq)
    scheduler.start(seq, start)
    batch.add_chunk(seq, n, start, cached=start)
    return ""
