"""Who may watch the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler


class Observer(Protocol):
    """Watches the loop: the decision log, a request's story. Observers change nothing."""

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        """A step was decided; the scheduler is as `schedule` left it."""

    def finished(self, sequences: Iterable[Sequence], now: float) -> None:
        """Sequences ended: completed, or given up by their clients."""
