"""Steps that repeat, laid out ahead of time, and taken as far as the world lets them.

In a fleet something happens elsewhere in almost every step. A replica that decides nothing for a while
therefore does not stop at each event: it lays its steps out, sleeps until the last one ends, and whoever
touches or reads it meanwhile makes it catch up first. What comes of it is the same to the bit.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Generator
from dataclasses import dataclass

import simpy

from simulator.batch import Batch
from simulator.engine.clock import StepEnd, step_ends
from simulator.engine.executor import Executor
from simulator.engine.fetches import Fetches
from simulator.metrics.recorder import Recorder
from simulator.request import Sequence
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


class Sleeper:
    """The part of a replica that waits: while it has nothing to do, and through steps that repeat.

    The attributes are the replica's.
    """

    env: simpy.Environment
    scheduler: Scheduler
    executor: Executor
    recorder: Recorder
    now: float
    index: int
    late: simpy.events.EventPriority
    turn: Turn
    _aborts: dict[Sequence, tuple[float, str]]
    _fetches: Fetches
    _wake: simpy.Event | None
    _laid: LaidOut | None

    def _sleep(self, batch: Batch) -> Generator[simpy.events.Event, None, None]:
        """Take the same steps in a fleet: lay them out, and stop where somebody has roused us."""
        env, wake_at, late = self.env, self.scheduler.wake_at, self.late
        if self._aborts or self._fetches.complete or env.peek() <= self.now:
            return
        steps = min(self.scheduler.steady_steps(batch, self.executor.steps_before_end()), MOST)
        if steps <= 0:
            return
        horizon = math.inf if wake_at is None else wake_at
        if horizon <= self.now:
            return
        laid = self._laid = LaidOut(batch, step_ends(self.executor.latency, batch, self.now, steps, horizon))
        self._wake = env.event()
        due = StepEnd(env, laid.ends[-1], late)
        while not self._wake.triggered and env.now < laid.ends[-1]:
            yield self._wake | due
            if due.processed and env.now < laid.ends[-1]:
                due = StepEnd(env, laid.ends[-1], late)
        end = laid.ends[-1]
        while env.now < end:
            yield StepEnd(env, end, late)
        self.turn.time, self.turn.index = end, self.index
        laid.catch_up(end, False, self.scheduler, self.recorder)
        laid.record_last(self.recorder)
        self._laid = self._wake = None
        self.now = end

    def catch_up(self) -> None:
        """Bring the scheduler's state to SimPy's present, before somebody outside reads or changes it."""
        if self._laid is not None:
            now, turn = self.env.now, self.turn
            is_over = turn.time == now and turn.index > self.index
            self._laid.catch_up(now, is_over, self.scheduler, self.recorder)

    def _idle(self) -> Generator[simpy.events.Event, None, None]:
        """Wait for an arrival, an abort, or the moment that the policy asked for, if anybody is there."""
        env, scheduler = self.env, self.scheduler
        is_empty = not (scheduler.running or scheduler.waiting.size or scheduler.fetching)
        wake_at = None if is_empty else scheduler.wake_at
        if wake_at is not None and not self.now < wake_at < math.inf:
            raise ValueError(f"a policy that schedules nothing at {self.now} asked to be woken at {wake_at}")
        self._wake = env.event()
        while not self._wake.triggered and (wake_at is None or env.now < wake_at):
            yield self._wake if wake_at is None else self._wake | StepEnd(env, wake_at, self.late)
        yield StepEnd(env, env.now, self.late)  # let all that bears this time stamp happen first
        self.turn.time, self.turn.index = env.now, self.index
        self._wake = None
        self.now = max(self.now, env.now)

    def _rouse(self) -> None:
        if self._laid is not None:
            self.catch_up()
            self._laid.cut()
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()
