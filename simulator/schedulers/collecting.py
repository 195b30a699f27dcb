"""The collect rule of batching servers: start when so many wait, or the oldest has waited so long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def collected(scheduler: Scheduler, now: float) -> bool:
    """Say whether a batch may start; if not, note when to be asked again."""
    oldest = scheduler.waiting.oldest()
    if oldest is None:
        return False
    due = oldest.arrival + scheduler.max_wait
    is_full = len(scheduler.waiting) >= min(scheduler.min_batch, scheduler.max_num_seqs)
    if is_full or now >= due or oldest.num_preemptions:
        return True
    scheduler.wake_at = due
    scheduler.held_by = "collecting"
    return False
