"""Beginning a step, serving the decodes as one group, counting what is scheduled: methods of `Scheduler`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers import speculating
from simulator.schedulers.fetching import add_evicted
from simulator.schedulers.service import charge

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def open_batch(scheduler: Scheduler, now: float) -> Batch:
    """Begin a step with the full token budget; the prefill threshold is off for a lone sequence (2.5)."""
    scheduler.ctx.now = now
    scheduler.wake_at = None
    scheduler.has_news = False
    scheduler.held_by = ""
    if scheduler.waiting.is_asked:
        scheduler.waiting.refresh()
    threshold = scheduler.long_prefill_token_threshold
    if threshold and len(scheduler.running) + len(scheduler.waiting) + len(scheduler.fetching) <= 1:
        threshold = 0
    if scheduler.speculation is not None:
        return speculating.open_batch(scheduler, threshold)
    return Batch(scheduler.max_num_batched_tokens, threshold)


def take_decodes(scheduler: Scheduler, batch: Batch) -> None:
    """Schedule every decode as one group; while blocks are short, preempt (3.7)."""
    if scheduler.speculation is not None:
        speculating.take_decodes(scheduler, batch)
        return
    scheduler.num_grouped_steps += 1
    group, pool = scheduler.decodes, scheduler.kv.pool
    opening = group.opens[group.steps % group.block_size]
    if opening > pool.num_unhashed_free + pool.num_cached_free:
        opening = _make_room(scheduler, batch)
    size = group.size
    if size:
        if opening:
            pool.take(opening)
        if group.num_publishers:
            for seq in group.publishing():
                scheduler.kv.publish(seq, 1)
        batch.num_decodes = batch.num_seqs = batch.num_sampled = size
        batch.num_tokens += size
        batch.budget -= size
        batch.decode_kv = group.offset_sum + size * group.steps + size
        batch.group_kv_max = group.longest + group.steps + 1


def _make_room(scheduler: Scheduler, batch: Batch) -> int:
    """Preempt until the decodes find the blocks they open; return how many they have yet to take."""
    group, pool, taken = scheduler.decodes, scheduler.kv.pool, 0
    while group.num_opening - taken > pool.num_free:
        taken += pool.num_free  # by the decodes before the one for which a victim must go
        pool.take(pool.num_free)
        scheduler.preempt(scheduler.choose_victim(), batch)
    return group.num_opening - taken


def commit(scheduler: Scheduler, batch: Batch) -> Batch:
    """Count the scheduled tokens as computed (3.24); every `schedule` ends with it."""
    if scheduler.speculation is not None:
        return speculating.commit(scheduler, batch)
    group = scheduler.decodes
    ending: list[Sequence] = []
    if batch.num_sampled:
        scheduler.num_vain = 0
    if scheduler.waiting.served is not None:
        charge(scheduler, batch)
    if batch.num_decodes:
        group.steps += 1
        if group.limits[0][0] <= group.steps:
            ending = group.pop_limited()
    for chunk in batch.chunks:
        seq = chunk.seq
        seq._computed += chunk.num_tokens
        if chunk.samples:
            del scheduler.prefills[seq]
            if seq._output + 1 < seq.limit:
                group.join(seq)
            else:
                seq._output += 1
                ending.append(seq)
    if ending:
        batch.ending = ending
    if scheduler.kv.tiers is not None:
        add_evicted(scheduler.kv.tiers, batch)
    return batch
