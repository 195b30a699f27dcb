"""One replica: the engine loop on SimPy's clock.

    batch = scheduler.schedule(now)         decide
    result = executor.execute(batch)        do: time passes
    scheduler.update(batch, result, now)    learn

Arrivals and aborts take effect between steps, as in vLLM's engine core. With `async_scheduling` the next step
is decided before the last one's results are in (rule 8.4), so a sequence is seen to end one step late.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Many
from typing import Protocol

import simpy

from simulator.batch import Batch, StepResult
from simulator.engine.oracle import SimulatedExecutor
from simulator.metrics.recorder import Recorder
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler

Wait = Generator[simpy.events.Event, None, None]


class Observer(Protocol):
    """Watches the loop: the decision log, a request's story. Observers change nothing."""

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        """A step was decided; the scheduler is as `schedule` left it."""

    def finished(self, sequences: Iterable[Sequence], now: float) -> None:
        """Sequences ended: completed, or given up by their clients."""


class Replica:
    """Serve submitted sequences with one scheduler and one executor; results go to the recorder."""

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        recorder: Recorder,
        *,
        async_scheduling: bool = False,
        observers: Many[Observer] = (),
        check_invariants: bool = False,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.async_scheduling = async_scheduling
        self.observers = observers
        self.on_done: Callable[[int], None] | None = None  # told the index of each request that is over
        self.check_invariants = check_invariants  # after every step: for tests, at a cost per sequence
        self._aborts: dict[Sequence, tuple[float, str]] = {}  # whose client has gone: when and why
        self._pending: tuple[Batch, StepResult] | None = None  # executed, but not yet learnt from
        self._wake: simpy.Event | None = None
        env.process(self._run())

    def submit(self, seq: Sequence) -> None:
        """Take in a sequence that arrives now."""
        self.scheduler.add(seq, self.env.now)
        self._rouse()

    def abort(self, seq: Sequence, reason: str = "timeout") -> None:
        """Note that a sequence's client has gone; its blocks are freed at the next step boundary."""
        if seq.state != "finished" and seq not in self._aborts:
            self._aborts[seq] = self.env.now, reason
            self._rouse()

    def close(self) -> None:
        """Note how far the unfinished came when the clock stops; clients that left before it are gone."""
        self._apply_aborts()
        for seq in [*self.scheduler.running, *self.scheduler.waiting]:
            self.recorder.discard(seq)

    def _run(self) -> Wait:
        while True:
            self._apply_aborts()
            now = self.env.now
            batch = self.scheduler.schedule(now)
            has_news = self._learn() or bool(batch.preempted)
            if batch or batch.preempted:
                self.recorder.scheduled(batch, self.scheduler, now)
            if self.observers:
                for observer in self.observers:
                    observer.decided(batch, self.scheduler, now)
            if self.check_invariants:
                self.scheduler.check()
            if batch:
                result = yield from self.executor.execute(batch)
                self.recorder.executed(batch, self.env.now)
                self._pending = (batch, result)
                if not self.async_scheduling:
                    self._learn()
            elif not has_news:
                yield from self._idle()

    def _learn(self) -> bool:
        """Update the scheduler with the last step's result, if that is still to do."""
        if self._pending is None:
            return False
        (batch, result), self._pending = self._pending, None
        finished = self.scheduler.update(batch, result, self.env.now)
        now = self.env.now
        for observer in self.observers:
            observer.finished([seq for seq in finished if seq not in self._aborts], now)
        for seq in finished:
            if seq not in self._aborts:
                self.recorder.finished(seq, now, self.executor.forget(seq))
                self._tell(seq)
        return True

    def _tell(self, seq: Sequence) -> None:
        if self.on_done is not None:
            self.on_done(seq.index)

    def _apply_aborts(self) -> None:
        for seq, (when, reason) in self._aborts.items():
            for observer in self.observers:
                observer.finished([seq], when)
            self.scheduler.remove(seq)
            self.recorder.aborted(seq, when, reason)
            self.executor.forget(seq)
            self._tell(seq)
        self._aborts.clear()

    def _idle(self) -> Wait:
        """Wait for an arrival, an abort, or the moment that the policy asked for."""
        wake_at = self.scheduler.wake_at
        if wake_at is not None and wake_at <= self.env.now:
            raise ValueError(
                f"a policy that schedules nothing at {self.env.now} asked to be woken at {wake_at}"
            )
        self._wake = self.env.event()
        timeout = [] if wake_at is None else [self.env.timeout(wake_at - self.env.now)]
        yield self.env.any_of([self._wake, *timeout])
        self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()
