"""The seam between deciding and doing: what the loop asks of whatever executes its batches.

The simulated executor lets a latency model say how long a step takes; a real one runs a model. Both are told
the truth about a request, which policies never see, and both serve the same loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from simulator.batch import Batch, Move, StepResult
from simulator.engine.links import Moved
from simulator.latency.base import LatencyModel
from simulator.request import Request, Sequence


class Executor(Protocol):
    """Executes batches, one at a time. Times are seconds on the run's clock."""

    latency: LatencyModel  # prices steps that are not executed one by one

    def tell(self, seq: Sequence, request: Request) -> None:
        """Learn which request a sequence serves, before it is submitted."""
        ...

    def forget(self, seq: Sequence) -> int:
        """Drop a sequence that has left the engine; return its true output length."""
        ...

    def remaining(self, seq: Sequence) -> int:
        """Return how many tokens a sequence will really still get."""
        ...

    def move(self, moves: Iterable[Move], now: float) -> Moved:
        """Begin the transfers of a batch decided at `now` and say when they are done."""
        ...

    def execute(self, batch: Batch, start: float) -> StepResult:
        """Run a batch's forward pass, which begins at `start` at the earliest."""
        ...

    def end_of(self, batch: Batch, start: float) -> float:
        """Return when the batch executed last, begun at `start`, ended; > start."""
        ...

    def steps_before_end(self) -> float:
        """Say for how many further decode steps no answer ends; 0 forbids skipping."""
        ...
