"""What becomes of a preempted sequence (section 4 of vLLM's rules: its tokens are computed again)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simulator.batch import Batch
from simulator.request import Sequence

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler

Preemption = Literal["recompute"]
"""Whether a victim's tokens are computed again."""

VAIN_PREEMPTIONS = 64
"""Preemptions in a row without a token sampled after which order and victim rule are taken to be at odds."""


def give_up(scheduler: Scheduler, seq: Sequence, batch: Batch, num_scheduled: int) -> None:
    """Free a running sequence's blocks and put it back into the queue."""
    scheduler.release(seq, num_scheduled)
    seq._computed = 0
    seq.num_preemptions += 1
    scheduler.num_vain += 1
    scheduler.num_livelocks += scheduler.num_vain == VAIN_PREEMPTIONS
    scheduler.waiting.push_preempted(seq)
    batch.preempted = [*batch.preempted, seq]
