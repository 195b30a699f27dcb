"""One replica: the engine loop on SimPy's clock.

    batch = scheduler.schedule(now)         decide
    result = executor.execute(batch)        do: time passes
    scheduler.update(batch, result, now)    learn

Arrivals and aborts take effect between steps, as in vLLM's engine core. With `async_scheduling` the next step
is decided before the last one's results are in (rule 8.4), so a sequence is seen to end one step late.
"""

from __future__ import annotations

from collections.abc import Generator

import simpy

from simulator.batch import Batch, StepResult
from simulator.engine.decisions import DecisionLog
from simulator.engine.oracle import SimulatedExecutor
from simulator.metrics.recorder import Recorder
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler

Wait = Generator[simpy.events.Event, None, None]


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
        log: DecisionLog | None = None,
        check_invariants: bool = False,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.async_scheduling = async_scheduling
        self.log = log
        self.check_invariants = check_invariants  # after every step: for tests, at a cost per sequence
        self._aborts: dict[Sequence, float] = {}  # sequences whose client has gone, and when
        self._pending: tuple[Batch, StepResult] | None = None  # executed, but not yet learnt from
        self._wake: simpy.Event | None = None
        env.process(self._run())

    def submit(self, seq: Sequence) -> None:
        """Take in a sequence that arrives now."""
        self.scheduler.add(seq, self.env.now)
        self._rouse()

    def abort(self, seq: Sequence) -> None:
        """Note that a sequence's client has gone; its blocks are freed at the next step boundary."""
        if seq.state != "finished" and seq not in self._aborts:
            self._aborts[seq] = self.env.now
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
                if self.log is not None:
                    self.log.decided(batch, self.scheduler, now)
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
        if self.log is not None:
            self.log.finished(finished)
        for seq in finished:
            if seq not in self._aborts:
                self.recorder.finished(seq, self.env.now, self.executor.forget(seq))
        return True

    def _apply_aborts(self) -> None:
        for seq, when in self._aborts.items():
            if self.log is not None and seq.state != "finished":
                self.log.finished([seq])
            self.scheduler.remove(seq)
            self.recorder.aborted(seq, when)
            self.executor.forget(seq)
        self._aborts.clear()

    def _idle(self) -> Wait:
        """Wait for an arrival, an abort, or the moment that the policy asked for."""
        wake_at = self.scheduler.wake_at
        self._wake = self.env.event()
        timeout = [] if wake_at is None else [self.env.timeout(max(0.0, wake_at - self.env.now))]
        yield self.env.any_of([self._wake, *timeout])
        self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()
