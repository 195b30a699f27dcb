"""Steps that repeat, laid out ahead of time, and taken as far as the world lets them.

In a fleet something happens elsewhere in almost every step. A replica that decides nothing for a while
therefore does not stop at each event: it lays its steps out, sleeps until the last one ends, and whoever
touches or reads it meanwhile makes it catch up first. What comes of it is the same to the bit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from simulator.batch import Batch
from simulator.metrics.recorder import Recorder
from simulator.schedulers.base import Scheduler
from simulator.schedulers.repeating import advance

MOST = 1024
"""Steps laid out at once; the times of those that an arrival cuts off were computed in vain."""


@dataclass(slots=True)
class Turn:
    """Which replica was the last whose step ended, and when (s): of steps that end together, by index."""

    time: float = -1.0
    index: int = -1


@dataclass(slots=True)
class LaidOut:
    """Ends (s) of steps that repeat a batch; the first `taken` have begun, `ended` of them are recorded."""

    batch: Batch
    ends: list[float]
    taken: int = 0
    ended: int = 0
    opened: int = 0  # blocks that the last one taken took

    def catch_up(self, now: float, is_over: bool, scheduler: Scheduler, recorder: Recorder) -> None:
        """Take the steps that have begun by `now`, the one under way included; record those that ended.

        A step that ends just now is under way still, unless its turn `is_over`.
        """
        last = bisect_right(self.ends, now) if is_over else bisect_left(self.ends, now)
        last = min(last, len(self.ends) - 1)
        if last < self.taken:
            return
        opened = advance(scheduler, self.batch, last + 1 - self.taken)
        self.record_last(recorder)
        recorder.repeated(self.ends[self.ended : last], opened[:-1])
        self.taken, self.ended, self.opened = last + 1, last, opened[-1]

    def record_last(self, recorder: Recorder) -> None:
        """Record the last step taken, which has ended."""
        if self.ended < self.taken:
            recorder.repeated([self.ends[self.ended]], [self.opened])
            self.ended += 1

    def cut(self) -> float:
        """Let no more steps follow; return when the one under way ends."""
        del self.ends[self.taken :]
        return self.ends[-1]
