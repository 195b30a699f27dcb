"""An executor whose steps take as long as they did in a recorded run: what is decided when time is right?

While a step computes what the recorded one computed, it ends when that one ended, to the bit. From the first
step that is unlike on, recorded durations are played in their order, each kind of step (with or without
decodes, with or without prompts) its own; a kind that has no more is priced by the latency model.
Transfers: a step waits for copies as long as it did, and a fetch is complete when the tier's link says, but
not after the recorded step that first computed the sequence.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import NamedTuple

from simulator.batch import Batch, Move, Stall, StepResult
from simulator.engine.decisions import Decision
from simulator.engine.links import Moved
from simulator.engine.oracle import SimulatedExecutor
from simulator.latency.base import Features
from simulator.metrics.tables import StepTable
from simulator.request import Request, Sequence

WORK = (
    "num_tokens",
    "num_seqs",
    "num_decodes",
    "decode_kv",
    "decode_kv_max",
    "prefill_tokens",
    "prefill_work",
    "prefill_kv_max",
)
"""The sums by which two steps are held to compute the same."""
EQUAL = 1e-9  # s; stalls that differ by less are the same, added up in another order


class RecordedStep(NamedTuple):
    """One forward pass of the recorded run; `number` counts that run's steps from 0. Times in seconds."""

    number: int
    work: tuple[float, ...]
    end: float
    seconds: float  # without what it waited for copies


class RecordedExecutor:
    """Plays the recorded steps' times. `simulated` knows the truth, and the model that goes on from there.

    Implements `simulator.engine.executor.Executor`.
    """

    def __init__(
        self, simulated: SimulatedExecutor, steps: StepTable, decisions: Many[Decision] | None = None
    ) -> None:
        self.latency = simulated.latency
        self._simulated = simulated
        self._left = deque(_forward_passes(steps))
        self._by_kind: dict[tuple[bool, bool], deque[RecordedStep]] = {}
        self._starts: list[float] = steps.start.tolist()
        self._stalls: list[float] = steps.stall.tolist()
        self._computed: dict[str, list[int]] = {}  # the steps with a chunk of each sequence
        for number, decision in enumerate(decisions or ()):
            for name, _, _ in decision["chunks"]:
                self._computed.setdefault(name, []).append(number)
        self._is_alike = True
        self.last_alike = -1  # number of the last recorded step that was executed as it was recorded
        self.num_unlike = 0  # recorded steps that were left when the first one was unlike
        self.num_played = 0  # steps that took a recorded time
        self.num_predicted = 0  # steps that took what the model predicts: the recorded ones had run out
        self.first_predicted: tuple[int, float] | None = None  # the first of these: its number, and when (s)

    def tell(self, seq: Sequence, request: Request) -> None:
        """Learn which request a sequence serves."""
        self._simulated.tell(seq, request)

    def forget(self, seq: Sequence) -> int:
        """Drop a sequence that has left the engine; return its true output length."""
        return self._simulated.forget(seq)

    def remaining(self, seq: Sequence) -> int:
        """Return how many tokens a sequence will really still get."""
        return self._simulated.remaining(seq)

    def execute(self, batch: Batch, start: float) -> StepResult:
        """Say what each sequence sampled."""
        return self._simulated.execute(batch, start)

    def steps_before_end(self) -> float:
        """No step is skipped: each has its own time."""
        return 0.0

    def move(self, moves: Iterable[Move], now: float) -> Moved:
        """Begin the transfers of a batch and say when they are done."""
        moved = self._simulated.move(moves, now)
        step = bisect_left(self._starts, now)
        if not self._is_alike or self._starts[step : step + 1] != [now]:
            return moved
        start, stall, seconds = moved.start, moved.stall, self._stalls[step]
        if abs(sum(stall) - seconds) > EQUAL:
            swap = seconds * (stall.swap / sum(stall) if sum(stall) else 1.0)
            start, stall = now + seconds, Stall(swap, seconds - swap)
        arrivals = {seq: min(moment, self._needed(seq.id, step)) for seq, moment in moved.arrivals.items()}
        return Moved(start, stall, arrivals)

    def _needed(self, name: str, step: int) -> float:
        """Return when the first step after this one begins that computed a sequence."""
        steps = self._computed.get(name, [])
        place = bisect_right(steps, step)
        return self._starts[steps[place]] if place < len(steps) else math.inf

    def end_of(self, batch: Batch, start: float) -> float:
        """Return when a step begun at `start` ends: as recorded, while it is the step that was recorded."""
        work = _work(batch)
        if self._is_alike and self._left and self._left[0].work == work:
            step = self._left.popleft()
            self.last_alike = step.number
            self.num_played += 1
            return step.end if step.end > start else start + step.seconds
        if self._is_alike:
            self._is_alike = False
            self.num_unlike = len(self._left)
            for step in self._left:
                self._by_kind.setdefault(_kind(step.work), deque()).append(step)
        left = self._by_kind.get(_kind(work))
        if left:
            self.num_played += 1
            return start + left.popleft().seconds
        if self.first_predicted is None:
            self.first_predicted = self.num_played, start
        self.num_predicted += 1
        return self._simulated.end_of(batch, start)


def _work(step: Features) -> tuple[float, ...]:
    return tuple(getattr(step, name) for name in WORK)


def _kind(work: tuple[float, ...]) -> tuple[bool, bool]:
    return work[WORK.index("num_decodes")] > 0, work[WORK.index("prefill_tokens")] > 0


def _forward_passes(steps: StepTable) -> list[RecordedStep]:
    columns = [getattr(steps, name).tolist() for name in WORK]
    seconds = (steps.end - steps.start - steps.stall).tolist()
    rows = zip(zip(*columns, strict=True), steps.end.tolist(), seconds, strict=True)
    return [RecordedStep(i, *row) for i, row in enumerate(rows) if row[0][0]]
