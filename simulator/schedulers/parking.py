"""Finished sequences whose blocks are kept until they have been sent: the prefill side of disaggregation.

A parked sequence has no seat and computes nothing; others may hit its blocks; it is nobody's victim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.request import Sequence

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def park(scheduler: Scheduler, seq: Sequence) -> None:
    """Keep the blocks of a running sequence that is over here."""
    scheduler._stop_running(seq)
    seq.state = "parked"
    scheduler.parked[seq] = None


def unpark(scheduler: Scheduler, seq: Sequence) -> None:
    """Free them."""
    del scheduler.parked[seq]
    scheduler.kv.release(seq, seq._computed)
    seq.state = "finished"
