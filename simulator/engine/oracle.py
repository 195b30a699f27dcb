"""The executor of a simulation: a latency model instead of a GPU, and the true lengths instead of a model.

The only place that knows when an answer really ends. A heap over the decode group's step counter finds the
next end without looking at the other sequences.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from simulator.batch import NOTHING_ENDED, Batch, Move, StepResult
from simulator.decode_group import DecodeGroup
from simulator.engine.links import Links, Moved
from simulator.latency.base import LatencyModel
from simulator.request import Request, Sequence


class SimulatedExecutor:
    """Execute batches in the time that the latency model says."""

    def __init__(self, latency: LatencyModel, group: DecodeGroup, links: Links | None = None) -> None:
        self.latency = latency
        self._links = links
        self._group = group
        self._truth: dict[Sequence, int] = {}
        self._ends: list[tuple[int, int, Sequence]] = []  # (group step at which it ends, order, sequence)

    def tell(self, seq: Sequence, request: Request) -> None:
        """Learn, and nobody else does, how long a sequence's answer becomes uncut."""
        self._truth[seq] = request.num_output

    def forget(self, seq: Sequence) -> int:
        """Drop a sequence that has left the engine; return its true output length."""
        return self._truth.pop(seq)

    def move(self, moves: Iterable[Move], now: float) -> Moved:
        """Begin the transfers of a batch and say when they will be done."""
        assert self._links is not None, "blocks move only between tiers"
        return self._links.move(moves, now)

    def remaining(self, seq: Sequence) -> int:
        """Return how many tokens a sequence will really still get."""
        return min(self._truth[seq], seq.limit) - seq.num_output

    def end_of(self, batch: Batch, start: float) -> float:
        """Return when a step begun at `start` ends."""
        return start + self.latency.step_time(batch)

    def execute(self, batch: Batch, start: float) -> StepResult:
        """Say which sequences sampled the end of their answer."""
        stopped: list[Sequence] = []
        steps, ends = self._group.steps, self._ends
        if batch.num_sampled > batch.num_decodes:
            for seq in [chunk.seq for chunk in batch.chunks if chunk.samples]:
                rest = self._truth[seq] - seq.num_output
                if rest <= 0:
                    stopped.append(seq)
                else:
                    heapq.heappush(ends, (steps + rest, seq.order, seq))
        while ends and ends[0][0] <= steps:
            due = self._next()
            if due is not None and ends[0][0] <= steps:
                heapq.heappop(ends)
                stopped.append(due)
        return StepResult(stopped) if stopped else NOTHING_ENDED

    def steps_before_end(self) -> float:
        """For how many further decode steps no answer ends; infinite if none decodes."""
        return self._ends[0][0] - self._group.steps - 1 if self._next() is not None else math.inf

    def _next(self) -> Sequence | None:
        """Return the decode that ends next, its entry on top; stale entries are dropped or put right."""
        ends, truth = self._ends, self._truth
        while ends:
            step, order, seq = ends[0]
            if seq.group is not self._group or seq.order != order or seq not in truth:
                heapq.heappop(ends)  # preempted, aborted or ended since this entry was made
                continue
            due = truth[seq] + seq.num_prompt - seq.offset - 1  # num_output is then the truth
            if due <= step:
                return seq
            heapq.heapreplace(ends, (due, order, seq))  # it was left out of a step
        return None
