"""Whether a run gets anywhere: a guard against policies that compute for ever without a result.

Every sampled token is kept, and so is every request that leaves; nothing else is for good, since what a step
computes of a prompt can be thrown away by a preemption. Between two such events a policy that throws nothing
away computes at most the tokens of all who are there, and asks for few empty steps. More is a livelock.
"""

from __future__ import annotations

from simulator.batch import Batch
from simulator.errors import StallError
from simulator.metrics.recorder import Recorder
from simulator.schedulers.base import Scheduler

PATIENCE = 10_000
"""Steps in a row without a token sampled before a run is looked at: an assumption, far above what any of our
policies needs."""
PATIENCE_EACH = 10
"""Further empty steps granted for every sequence that runs or waits."""


class ProgressGuard:
    """Counts the steps in a row that sampled no token and let nobody leave."""

    def __init__(self, scheduler: Scheduler, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self._recorder = recorder
        self._last = -1  # number of the last fruitless step
        self._num_done = 0  # requests that had left by then
        self._num_steps = 0
        self._num_empty = 0  # of these, steps that computed nothing at all
        self._num_tokens = 0  # computed in these steps

    def fruitless(self, batch: Batch) -> None:
        """Note a decision that samples no token; StallError if there have been too many in a row."""
        step, done = self._recorder.num_steps, self._recorder.num_done
        if step > self._last + 1 or done != self._num_done:
            self._num_steps = self._num_empty = self._num_tokens = 0
            self._num_done = done
        self._last = step
        scheduler = self._scheduler
        if not (batch.num_tokens or scheduler.running or scheduler.waiting.size or scheduler.fetching):
            return
        self._num_steps += 1
        self._num_empty += not batch.num_tokens
        self._num_tokens += batch.num_tokens
        if self._num_steps % PATIENCE == 0:
            self._look()

    def _look(self) -> None:
        running, waiting = self._scheduler.running, self._scheduler.waiting
        there = [*running, *waiting.members(), *self._scheduler.fetching]
        too_empty = self._num_empty >= PATIENCE + PATIENCE_EACH * len(there)
        if too_empty or self._num_tokens > sum(seq.num_tokens for seq in there):
            raise StallError(
                f"no token was sampled and no request left in {self._num_steps:,} steps, "
                f"{self._num_empty:,} of them empty, while {len(running):,} ran and {waiting.size:,} waited"
            )
