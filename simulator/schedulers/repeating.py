"""Steps in which nothing is decided: how many follow, and taking them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.batch import Batch
from simulator.schedulers.service import charge

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def unchanged_steps(scheduler: Scheduler, batch: Batch, limit: float, *, may_evict: bool = True) -> int:
    """Say for how many further steps, at most `limit`, the batch just learnt from repeats.

    While all rows decode and nothing can be admitted, it does, until a sequence gets its last allowed
    token, blocks run out, one must be copied into a tier first, or an eviction that keeps state is asked for
    one; beside one chunk that takes all that decodes leave of the budget, until its prompt has less to
    compute. A policy may return this from `steady_steps` if it would decide the same in those steps whatever
    the time; without `may_evict`, if what is cached makes a difference to it.
    """
    group, kv = scheduler.decodes, scheduler.kv
    if scheduler.speculation is not None:
        return 0  # how many tokens a step gives is not known beforehand
    if scheduler.has_news or batch.preempted or batch.postponed or batch.ending or group.num_publishers:
        return 0
    if batch.moves:
        return 0  # a fetch has made another sequence the first in the queue
    if scheduler.waiting.size and (scheduler.waiting.is_asked or scheduler.admission):
        return 0  # who is next may change with time and service
    free = kv.pool.num_steady if may_evict else kv.pool.num_unhashed_free
    if batch.chunks:
        chunk = batch.chunks[-1]
        seq, n = chunk.seq, chunk.num_tokens
        rest = (seq.num_prompt + seq._output - seq._computed - 1) // n
        if rest < 2 or batch.budget or len(batch.chunks) > 1:
            return 0  # one step is as quickly decided as skipped
        if not kv.pool.is_timeless and seq.num_hashed < seq.hash_private_from:
            return 0  # it publishes blocks, which know their time
        k = min(limit, group.next_limit() - group.steps - 1, rest)
        if k < 2 or (k + 1) * (n + group.size) > kv.block_size * (free - group.size):
            return 0
        return int(k)
    if scheduler.prefills or not group.size:
        return 0
    k = min(limit, group.next_limit() - group.steps - 1)
    if (k + group.block_size) * group.size <= group.block_size * free:
        return int(k)  # a member opens at most a block every block_size steps
    for i, opened in enumerate(group.openings(int(min(k, group.block_size * (free + 1))))):
        free -= opened
        if free < 0:
            return i
    return int(k)


def advance(scheduler: Scheduler, batch: Batch, k: int) -> list[int]:
    """Repeat the last batch k times; return how many blocks each repetition takes."""
    group, kv = scheduler.decodes, scheduler.kv
    opened = group.openings(k)
    if scheduler.waiting.served is not None:
        charge(scheduler, batch, k)
    if batch.num_decodes:
        group.steps += k
    for chunk in batch.chunks:
        seq, n = chunk.seq, chunk.num_tokens
        held = [kv.blocks_for(seq._computed + i * n) for i in range(k + 1)]
        opened = [more + here - before for more, here, before in zip(opened, held[1:], held, strict=False)]
        seq._computed += k * n
        if seq.num_hashed < seq.hash_private_from:
            kv.publish(seq, 0)
    kv.pool.take(sum(opened))
    scheduler.num_grouped_steps += k
    return opened
