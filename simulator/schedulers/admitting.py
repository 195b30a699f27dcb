"""Admitting the first in the queue, or saying what keeps it there (section 3B of vLLM's rules)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simulator.batch import Batch
from simulator.kv.block_manager import Hit
from simulator.request import Sequence
from simulator.schedulers.fetching import begin_fetch, find_fetch

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler

Hold = Literal["", "seats", "budget", "blocks", "collecting", "batch"]
"""What keeps the head of the queue waiting: seats, tokens or blocks are short, or the policy bides time."""


def admit_head(scheduler: Scheduler, batch: Batch, whole: bool) -> Hold:
    """Admit the first in the queue, or say what keeps it there; with `whole` its prompt is not cut."""
    if len(scheduler.running) + len(scheduler.fetching) >= scheduler.max_num_seqs:
        return "seats"
    if batch.budget <= 0:
        return "budget"
    kv, seq = scheduler.kv, scheduler.waiting.head()
    assert seq is not None, "the queue counts what waits"
    hit = kv.lookup(seq)
    if kv.tiers is not None:
        held_by = _admit_fetched(scheduler, batch, seq, hit)
        if held_by is not None:
            return held_by
    start = hit.num_blocks * kv.block_size
    n = seq.num_tokens - start if whole else batch.chunk_size(seq, start)
    if n > batch.budget and batch:
        return "budget"
    must_fit = min(seq.num_tokens, scheduler.max_model_len) if scheduler.scheduler_reserve_full_isl else 0
    if not kv.admit(seq, hit, n, must_fit=must_fit, watermark=_others_run(scheduler)):
        return "blocks"
    if n > batch.budget:
        scheduler.count_oversized(seq)
    scheduler.start(seq, start)
    batch.add_chunk(seq, n, start, cached=start)
    return ""


def _admit_fetched(scheduler: Scheduler, batch: Batch, seq: Sequence, hit: Hit) -> Hold | None:
    """Admit a sequence of which a tier has blocks, if all its known tokens fit; None: nothing to fetch."""
    watermark = _others_run(scheduler)
    fits = scheduler.kv.has_room(hit, 0, must_fit=seq.num_tokens, watermark=watermark)
    if not fits and scheduler.scheduler_reserve_full_isl:
        return "blocks"  # with or without a fetch
    fetch = find_fetch(scheduler, seq, hit)
    if fetch is None:
        return None
    if not fits:
        return "blocks"
    begin_fetch(scheduler, batch, seq, hit, fetch)
    return ""


def _others_run(scheduler: Scheduler) -> bool:
    """Say whether blocks will become free without an admission, so that one may wait."""
    return bool(scheduler.running or scheduler.fetching)
