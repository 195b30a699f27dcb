"""Going on with the prompts that run: a chunk of each, the oldest first (rules 3.3-3.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.batch import Batch

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def take_prefills(scheduler: Scheduler, batch: Batch, whole: bool) -> bool:
    """Schedule a chunk of every prefill; False if one of them gets none.

    With `whole` none is cut: one that exceeds what is left of the budget waits, one that exceeds the whole
    budget runs alone. While blocks are short, the newest is preempted.
    """
    for seq in list(scheduler.prefills):
        n = seq.num_tokens - seq._computed if whole else batch.chunk_size(seq, seq._computed)
        if batch.budget <= 0 or (n > batch.budget and batch) or seq.state != "running":
            return False
        if n > batch.budget:
            scheduler.count_oversized(seq)
        while not scheduler.kv.allocate(seq, n):
            scheduler.preempt(next(reversed(scheduler.prefills)), batch)
            if seq.state != "running":
                return False
        batch.add_chunk(seq, n, seq._computed)
    return True
