"""The executor of a simulation: a latency model instead of a GPU, and the true lengths instead of a model.

The only place besides the recorder that knows when an answer really ends. A heap over the decode group's
step counter finds the next end without looking at the other sequences.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator

import simpy

from simulator.batch import Batch, DecodeGroup, StepResult
from simulator.latency.base import LatencyModel
from simulator.request import Sequence

LATE = simpy.events.EventPriority(2)
"""SimPy priority of a step's end: everything else that bears the same time stamp comes first."""


class StepEnd(simpy.events.Event):
    """A timeout that fires after all other events of its moment, so that equal stamps have arrived."""

    def __init__(self, env: simpy.Environment, delay: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=LATE, delay=delay)


class SimulatedExecutor:
    """Execute batches by waiting as long as the latency model says.

    `num_output[i]` is the true output length of the request with index i, capped by what may be generated.
    """

    def __init__(self, env: simpy.Environment, latency: LatencyModel, group: DecodeGroup) -> None:
        self.env = env
        self.latency = latency
        self._group = group
        self._truth: dict[Sequence, int] = {}
        self._ends: list[tuple[int, int, Sequence]] = []  # (group step at which it ends, order, sequence)

    def tell(self, seq: Sequence, num_output: int) -> None:
        """Tell the executor, and nobody else, how long a sequence's answer becomes."""
        self._truth[seq] = num_output

    def forget(self, seq: Sequence) -> int:
        """Drop a sequence that has left the engine; return its true output length."""
        return self._truth.pop(seq)

    def execute(self, batch: Batch) -> Generator[simpy.events.Event, None, StepResult]:
        """Let one forward pass go by and say which sequences sampled the end of their answer."""
        yield StepEnd(self.env, self.latency.step_time(batch))
        return StepResult(self._stopped(batch))

    def _stopped(self, batch: Batch) -> list[Sequence]:
        stopped = []
        steps = self._group.steps
        for chunk in batch.chunks:
            if chunk.samples:
                seq = chunk.seq
                rest = self._truth[seq] - seq.num_output
                if rest <= 0:
                    stopped.append(seq)
                else:
                    heapq.heappush(self._ends, (steps + rest, seq.order, seq))
        while self._ends and self._ends[0][0] <= steps:
            _, order, seq = heapq.heappop(self._ends)
            if seq.group is None or seq.order != order:
                continue  # preempted, aborted or ended since this entry was made
            rest = self._truth[seq] - seq.num_output
            if rest <= 0:
                stopped.append(seq)
            else:  # it was left out of a step
                heapq.heappush(self._ends, (steps + rest, order, seq))
        return stopped
