"""Serving the running sequences one by one, where serving all decodes as a group could decide otherwise.

Victims anywhere in the list, a decode budget that does not suffice, or chunks before decodes: then rules
3.3-3.10 are taken to the letter, at a cost per running sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers.preemption import last_admitted

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def take_listed(scheduler: Scheduler, batch: Batch, order: list[Sequence]) -> None:
    """Schedule one running sequence after the other; whoever lacks blocks preempts, perhaps itself."""
    taken: dict[Sequence, int] = {}
    budget, slots = batch.budget, batch.draft_slots
    i = 0
    while i < len(order) and batch.budget > 0:
        seq = order[i]
        has_work = _decodes(scheduler, seq) or seq in scheduler.prefills
        n = batch.chunk_size(seq, seq.num_computed) if has_work else 0
        while not scheduler.kv.allocate(seq, n):
            victim = scheduler.choose_victim()
            given_back = taken.pop(victim, 0)
            batch.budget += given_back + slots if given_back else 0
            if victim in order:
                at = order.index(victim)
                i -= at < i
                del order[at]
            num_drafts = max(0, victim.num_computed + given_back - victim.num_tokens)
            scheduler.preempt(victim, batch, given_back - num_drafts)
            if victim is seq:
                break
        else:
            taken[seq] = n
            batch.budget -= n + slots if n else 0
            i += 1
    batch.budget = budget
    _fill(scheduler, batch, order, taken)


def _fill(scheduler: Scheduler, batch: Batch, order: list[Sequence], taken: dict[Sequence, int]) -> None:
    """Put into the batch what was taken; decodes that got nothing are postponed."""
    scheduler.num_listed_steps += 1
    members = [seq for seq in order if seq.group is scheduler.decodes]
    contexts = [seq.num_computed + 1 for seq in members if seq in taken]
    if contexts:
        batch.add_decodes(len(contexts), sum(contexts), max(contexts))
        for seq in members:
            if seq not in taken:
                scheduler.decodes.postpone(seq)
    batch.postponed = [seq for seq in order if _decodes(scheduler, seq) and seq not in taken]
    for seq in order:
        if seq.group is None and taken.get(seq):
            batch.add_chunk(seq, taken[seq], seq.num_computed)


def _decodes(scheduler: Scheduler, seq: Sequence) -> bool:
    """Say whether a sequence decodes and its last token is known: it may be under way in another batch."""
    return seq.group is scheduler.decodes or seq.speculates


def blocks_suffice(scheduler: Scheduler, batch: Batch) -> bool:
    """Say whether all running sequences find the blocks of their next tokens without a victim."""
    kv = scheduler.kv
    need, budget = scheduler.decodes.num_opening, batch.budget - scheduler.decodes.size
    for seq in scheduler.prefills:
        n = min(batch.chunk_size(seq, seq.num_computed), budget)
        need += kv.blocks_for(seq.num_computed + n) - kv.blocks_for(seq.num_computed)
        budget -= n
    return need <= kv.num_free


def decodes_are_first(scheduler: Scheduler, batch: Batch) -> bool:
    """Say whether serving all decodes before all chunks gives what the order of admission gives."""
    if scheduler.prefills:
        newest = reversed(scheduler.running)
        for _ in scheduler.prefills:
            if next(newest) not in scheduler.prefills:
                return False
    if scheduler.decodes.size > batch.budget:
        return False
    return scheduler.victim is last_admitted or blocks_suffice(scheduler, batch)
