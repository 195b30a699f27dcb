"""A replica whose model is spread over stages: batches follow each other through them.

The loop is vLLM's `EngineCore.step_with_batch_queue`: while fewer batches are under way than there are
stages, decide another at once, if anything can be scheduled; else wait for the oldest. What arrives
meanwhile is seen when that has come back. Stages are a tandem line: stage s begins a batch when the one
before has finished it and its activations have arrived, and when s is done with the batch before. Buffers
between stages are unbounded. No step is skipped.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence as Many
from typing import NamedTuple

import simpy

from simulator.batch import Batch, StepResult
from simulator.engine.clock import StepEnd
from simulator.engine.observer import Observer
from simulator.engine.oracle import SimulatedExecutor
from simulator.engine.replica import Replica, Wait
from simulator.engine.sleeping import Turn
from simulator.latency.base import Features
from simulator.latency.pipeline import Pipeline
from simulator.metrics.lanes import LaneRecorder
from simulator.schedulers.base import Scheduler
from simulator.schedulers.flight import Departure, Flight


class Line:
    """The stages and links of one pipeline, and how long each was busy; seconds."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._free = [0.0] * len(pipeline.stages)  # when each stage is done with its last batch
        self._links = [0.0] * (len(pipeline.stages) - 1)
        self.busy = [0.0] * len(pipeline.stages)
        self.sending = 0.0  # all links together
        self.in_flight = 0.0  # while any batch was
        self.num_batches = 0
        self._until = 0.0

    def enter(self, step: Features, start: float) -> float:
        """Send a batch through all stages from `start` on; return when it leaves the last."""
        sent = self._pipeline.link.seconds(step.num_tokens)
        at = start
        for stage, seconds in enumerate(self._pipeline.stage_times(step)):
            if stage:
                at = max(at, self._links[stage - 1]) + sent
                self._links[stage - 1] = at
                self.sending += sent
            at = max(at, self._free[stage]) + seconds
            self._free[stage] = at
            self.busy[stage] += seconds
        self.in_flight += at - max(start, self._until)
        self._until = at
        self.num_batches += 1
        return at

    @property
    def bubble_share(self) -> float | None:
        """The share of stage time that is idle while any batch is in flight; None if none ever was."""
        total = len(self.busy) * self.in_flight
        return max(0.0, 1 - sum(self.busy) / total) if total else None

    def summary(self) -> dict[str, object]:
        """Return what stages and links did, as shares of the time in which any batch was in flight."""
        total, n = self.in_flight, len(self.busy)
        stages = [busy / total if total else None for busy in self.busy]
        links = len(self._links) * total
        return {
            "num_stages": n,
            "layers": list(self._pipeline.layers),
            "num_batches": self.num_batches,
            "in_flight_s": total,
            "stage_busy_share": stages,
            "link_busy_share": self.sending / links if links else None,
        }


class PipelinedExecutor(SimulatedExecutor):
    """Executes batches on the stages of a line; ends are found in each decode group by itself."""

    def __init__(self, pipeline: Pipeline, scheduler: Scheduler) -> None:
        super().__init__(pipeline, scheduler.decodes)
        self.line = Line(pipeline)
        self._of_group = {scheduler.decodes: self._ends}

    def begin(self, departure: Departure) -> None:
        """Look at the group that departs with the batch to be executed next."""
        self._group = departure.group
        self._ends = self._of_group.setdefault(departure.group, [])
        for seq in departure.back:
            rest = self._truth[seq] - seq.num_output
            heapq.heappush(self._ends, (self._group.steps + rest, seq.order, seq))

    def end_of(self, batch: Batch, start: float) -> float:
        """Return when a batch that enters at `start` leaves the last stage."""
        return self.line.enter(batch, start)


class Flying(NamedTuple):
    """A batch under way: what it will bring, when, and the number of its step."""

    batch: Batch
    result: StepResult
    end: float
    step: int


class PipelinedReplica(Replica):
    """A `Replica` with as many batches in flight as there are stages."""

    executor: PipelinedExecutor
    recorder: LaneRecorder

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        pipeline: Pipeline,
        recorder: LaneRecorder,
        *,
        observers: Many[Observer] = (),
        check_invariants: bool = False,
        index: int = 0,
        turn: Turn | None = None,
    ) -> None:
        executor = PipelinedExecutor(pipeline, scheduler)
        super().__init__(
            env,
            scheduler,
            executor,
            recorder,
            observers=observers,
            check_invariants=check_invariants,
            index=index,
            turn=turn,
        )
        recorder.flight = self._flight = Flight(scheduler)
        self._queue: deque[Flying] = deque()
        self._depth = len(pipeline.stages)

    def close(self) -> None:
        """Note how far the unfinished came; what is under way counts for nothing."""
        if self._queue:
            self.recorder.cut(self._queue[0].step)
        super().close()

    def _run(self) -> Wait:
        while True:
            if self._aborts:
                self._apply_aborts()
            batch = self._decide()
            if batch and len(self._queue) < self._depth:
                continue
            if self._queue:
                yield from self._land()
            elif not batch.preempted:
                yield from self._idle()

    def _decide(self) -> Batch:
        """Decide the next batch and, if it computes anything, send it off."""
        scheduler, recorder, now = self.scheduler, self.recorder, self.now
        batch = scheduler.schedule(now)
        if not isinstance(batch, Batch):
            raise TypeError(f"schedule(now) returned {type(batch).__name__}, not a Batch")
        if scheduler.shed:
            self._drop_shed(now)
        if batch.num_sampled == 0 and (batch or not self._queue):
            self._guard.fruitless(batch)
        if batch or batch.preempted:
            recorder.scheduled(batch, scheduler, now, now)
        departure = self._flight.depart(batch) if batch else None
        if self.is_watched:
            self._show(batch, now)
        if departure is not None:
            step = recorder.num_steps
            self.executor.begin(departure)
            result = self.executor.execute(batch, now)
            end = self.executor.end_of(batch, now)
            recorder.departed(departure.lane, [*departure.sampled, *departure.back], end)
            self._queue.append(Flying(batch, result, end, step))
        return batch

    def _land(self) -> Wait:
        """Wait for the oldest batch and learn from it."""
        env = self.env
        batch, result, end, _ = self._queue[0]
        ends_any = result.stopped or batch.ending
        if env.peek() <= end or (ends_any and self.on_done is not None):
            while env.now < end:
                yield StepEnd(env, end, self.late)
            self.turn.time, self.turn.index = end, self.index
        self._queue.popleft()
        self.now = max(self.now, end)
        self._learn(batch, result)
        self.recorder.moved(self._flight.land(batch))
