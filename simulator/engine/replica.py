"""One replica: the engine loop on SimPy's clock.

    batch = scheduler.schedule(now)         decide
    result = executor.execute(batch)        do: time passes
    scheduler.update(batch, result, now)    learn

Arrivals and aborts take effect between steps, as in vLLM's engine core. With `async_scheduling` the next step
is decided before the last one's results are in (rule 8.4), so a sequence is seen to end one step late.
The replica keeps its own clock and runs ahead of SimPy's to the next event outside, so a step costs no event.
Steps that it would decide alike (`steady_steps`) are taken without asking the scheduler, their ends added up
one by one, so that skipping moves no time by a single bit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Many

import simpy
from simpy.events import EventPriority

from simulator.batch import Batch, StepResult
from simulator.engine.admission import make_sequence, why_rejected
from simulator.engine.clock import LATE, StepEnd, UnderWay, step_ends
from simulator.engine.executor import Executor
from simulator.engine.fault import FirstFault
from simulator.engine.fetches import Fetches
from simulator.engine.observer import Observer
from simulator.engine.progress import ProgressGuard
from simulator.engine.sleeping import LaidOut, Sleeper, Turn
from simulator.kv.prefix import PrivateIds
from simulator.metrics.recorder import Recorder
from simulator.metrics.request_log import RequestLog
from simulator.request import Request, Sequence
from simulator.schedulers.base import Scheduler
from simulator.schedulers.checks import check_committed
from simulator.schedulers.repeating import advance

Wait = Generator[simpy.events.Event, None, None]
LOST = "lost"  # why a sequence leaves that this replica no longer serves


class Replica(Sleeper):
    """Serve submitted sequences with one scheduler and one executor; results go to the recorder."""

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        executor: Executor,
        recorder: Recorder,
        *,
        async_scheduling: bool = False,
        observers: Many[Observer] = (),
        check_invariants: bool = False,
        skip: bool = True,
        index: int = 0,
        turn: Turn | None = None,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.async_scheduling = async_scheduling
        self.observers = observers
        self.on_done: Callable[[int], None] | None = None  # told each request that is over, if any one waits
        self.on_step: Callable[[], None] | None = None  # called after steps that ended a request
        self.check_invariants = check_invariants  # after every step: for tests, at a cost per sequence
        self.is_watched = bool(observers) or check_invariants
        self.skips = skip and not self.is_watched
        self.verifies = recorder.verifications  # under speculation, where every step is learnt from
        self.now = env.now  # the replica's clock, at or ahead of SimPy's
        self._private = PrivateIds()
        self._aborts: dict[Sequence, tuple[float, str]] = {}  # whose client has gone: when and why
        self._fetches = Fetches(env, self._rouse)
        self._pending: tuple[Batch, StepResult] | None = None  # executed, but not yet learnt from
        self._wake: simpy.Event | None = None
        self.index = index
        self.late = EventPriority(LATE + index)  # of its steps' ends
        self.turn = turn or Turn()
        self.sleeps = turn is not None  # through steps that repeat: others make events all the time
        self._laid: LaidOut | None = None  # such steps
        self._guard = ProgressGuard(scheduler, recorder)
        self.fault = FirstFault()
        env.process(self._keep_fault())

    @property
    def log(self) -> RequestLog:
        """What becomes of requests."""
        return self.recorder.log

    def receive(self, index: int, request: Request) -> Sequence | None:
        """Take in a request that arrives now and return its sequence; None if it can never be served."""
        scheduler, now = self.scheduler, self.env.now
        self.catch_up()
        reason = why_rejected(request, scheduler)
        if reason is not None:
            self.recorder.rejected(index, now, reason)
            return None
        seq = make_sequence(index, request, scheduler, self._private, now)
        self._take_in(seq, request, now)
        return seq

    def _take_in(self, seq: Sequence, request: Request, now: float) -> None:
        self.executor.tell(seq, request)
        try:
            self.scheduler.add(seq, now)
        except (Exception, SystemExit) as error:  # a policy may fail in any way
            self.fault.note(error, self.recorder.num_steps, now)
            raise
        if self.scheduler.shed:
            self._drop_shed(now)
        self._rouse()

    def give_up(self, taken: object, reason: str) -> None:
        """Note that a sequence's client has gone; its blocks are freed at the next step boundary."""
        seq = taken
        assert isinstance(seq, Sequence), "it came from receive"
        if seq.state != "finished" and seq not in self._aborts:
            self._aborts[seq] = self.env.now, reason
            self._tell(seq)
            self._rouse()

    def lose(self, seq: Sequence) -> None:
        """Drop a sequence that will be served elsewhere, or nowhere: what it got here does not count."""
        self._aborts[seq] = self.env.now, LOST
        self._rouse()

    def close(self) -> None:
        """Note how far the unfinished came when the clock stops; clients that left before it are gone."""
        self.catch_up()
        self._apply_aborts()
        scheduler = self.scheduler
        for seq in [*scheduler.running, *scheduler.fetching, *scheduler.waiting.members()]:
            self.recorder.discard(seq)

    def _keep_fault(self) -> Wait:
        try:
            yield from self._run()
        except (Exception, SystemExit) as error:  # a policy may fail in any way
            self.fault.note(error, self.recorder.num_steps, self.now)
            raise

    def _run(self) -> Wait:
        env, scheduler, recorder, executor = self.env, self.scheduler, self.recorder, self.executor
        fetches, late, turn = self._fetches, self.late, self.turn
        while True:
            if self._aborts:
                self._apply_aborts()
            if fetches.complete:
                fetches.learn(scheduler, recorder.transfers, self.now)
            now = self.now
            batch = scheduler.schedule(now)
            try:
                has_news = bool(batch.preempted)
            except AttributeError:
                raise TypeError(f"schedule(now) returned {type(batch).__name__}, not a Batch") from None
            start = self._move(batch, now) if batch.moves else now
            if scheduler.shed:
                self._drop_shed(now)
            if self._pending is not None:
                has_news = True
                self._learn(*self._pending)
                self._pending = None
            if batch.num_sampled <= batch.num_padding:
                self._guard.fruitless(batch)
            if batch.num_tokens or batch.preempted or batch.moves:
                recorder.scheduled(batch, scheduler, now, start)
            if self.is_watched:
                self._show(batch, now)
            if batch.num_tokens:
                result = executor.execute(batch, start)
                end = executor.end_of(batch, start)
                ends_any = result.stopped or batch.ending or self.verifies
                if env.peek() <= end or (ends_any and self.on_done is not None):
                    while env.now < end:
                        yield StepEnd(env, end, late)
                    turn.time, turn.index = end, self.index
                self.now = end
                recorder.executed(batch, end)
                if self.async_scheduling:
                    self._pending = batch, result
                elif ends_any or result.hashes:
                    self._learn(batch, result)
                if ends_any or scheduler.has_news or not self.skips or batch.num_sampled > batch.num_decodes:
                    continue  # after a first token one more decodes in the next step
                if self.sleeps:
                    yield from self._sleep(batch)
                elif (under_way := self._repeat(batch)) is not None:
                    while env.now < under_way.end:
                        yield StepEnd(env, under_way.end, late)
                    recorder.repeated([under_way.end], [under_way.opened])
            elif start > now:  # a step that only copies
                while env.now < start:
                    yield StepEnd(env, start, late)
                turn.time, turn.index = start, self.index
                self.now = start
            elif not has_news:
                yield from self._idle()

    def _repeat(self, batch: Batch) -> UnderWay | None:
        """Take the steps in which the scheduler would decide the same, up to the next event outside.

        Returns the last one if it is still under way when that happens.
        """
        outside, wake_at = self.env.peek(), self.scheduler.wake_at
        horizon = outside if wake_at is None else min(outside, wake_at)
        if horizon <= self.now or self._aborts or self._fetches.complete:
            return None
        steps = self.scheduler.steady_steps(batch, self.executor.steps_before_end())
        if steps <= 0:
            return None
        ends = step_ends(self.executor.latency, batch, self.now, steps, horizon)
        opened = advance(self.scheduler, batch, len(ends))
        self.now = ends[-1]
        if outside > ends[-1]:
            self.recorder.repeated(ends, opened)
            return None
        self.recorder.repeated(ends[:-1], opened[:-1])
        return UnderWay(ends[-1], opened[-1])

    def _move(self, batch: Batch, now: float) -> float:
        """Begin a batch's transfers; return when its forward pass can begin."""
        moved = self.executor.move(batch.moves, now)
        if moved.start > now:
            batch.stall = moved.stall
        if moved.arrivals:
            self._fetches.begin(moved, now)
        return moved.start

    def _show(self, batch: Batch, now: float) -> None:
        for observer in self.observers:
            observer.decided(batch, self.scheduler, now)
        if self.check_invariants:
            check_committed(batch)
            self.scheduler.check()

    def _learn(self, batch: Batch, result: StepResult) -> None:
        """Update the scheduler with a step's result."""
        if self.verifies is not None:
            self.verifies.learnt(batch, result, self.recorder.num_steps - 1)
        elif not (batch.ending or result.stopped or result.hashes):
            return
        now = self.now
        try:
            finished = self.scheduler.update(batch, result, now)
        except (Exception, SystemExit) as error:  # a policy may fail in any way
            self.fault.note(error, self.recorder.num_steps - 1, now)
            raise
        for observer in self.observers:
            observer.finished([seq for seq in finished if seq not in self._aborts], now)
        for seq in finished:
            if seq not in self._aborts:
                self._finish(seq, now)
        if self.on_step is not None:
            self.on_step()

    def _finish(self, seq: Sequence, now: float) -> None:
        self.recorder.finished(seq, now, self.executor.forget(seq))
        self._tell(seq)

    def _drop_shed(self, now: float) -> None:
        """Tell the clients of the sequences that an admission rule turned away."""
        for seq, rule in self.scheduler.shed:
            if seq in self._aborts:
                continue  # its client has gone already
            for observer in self.observers:
                observer.finished([seq], now)
            self.recorder.rejected(seq.index, now, f"shed by {rule}")
            self.executor.forget(seq)
            self._tell(seq)
        self.scheduler.shed.clear()

    def _tell(self, seq: Sequence) -> None:
        if self.on_done is not None:
            self.on_done(seq.index)

    def _apply_aborts(self) -> None:
        for seq, (when, reason) in self._aborts.items():
            for observer in self.observers:
                observer.finished([seq], when)
            self.scheduler.remove(seq, self.now)
            if reason == LOST:
                self.recorder.lose(seq)
            else:
                self.recorder.aborted(seq, when, reason)
            self.executor.forget(seq)
        self._aborts.clear()
