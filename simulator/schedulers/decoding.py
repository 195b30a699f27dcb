"""Serving the decodes as one group, and counting what a step has scheduled: methods of `Scheduler`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers.fetching import add_evicted
from simulator.schedulers.service import charge

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def take_decodes(scheduler: Scheduler, batch: Batch) -> None:
    """Schedule every decode as one group; while blocks are short, preempt (3.7)."""
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
