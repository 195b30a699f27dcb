"""The records of a replica whose batches overlap: pipeline parallelism.

Each decode group is a lane with a step clock of its own: all its members get a token in every step of the
lane that decodes. A stint lies in the lane of its first step. Steps are written when they are decided, with
the end that the stages give them; those still under way when a run stops are taken back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from simulator.batch import Batch
from simulator.metrics.recorder import Recorder
from simulator.metrics.request_log import RequestLog
from simulator.metrics.spans import span_columns
from simulator.metrics.tables import Floats, Ints
from simulator.metrics.token_times import Stints, stints
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler

NO_LANE = -1


class LaneRecorder(Recorder):
    """A `Recorder` of overlapping steps."""

    def __init__(self, log: RequestLog, num_blocks: int) -> None:
        super().__init__(log, num_blocks)
        self._lane = array("i")  # of every step

    def scheduled(self, batch: Batch, scheduler: Scheduler, now: float, start: float) -> None:
        """Note a decided step; one that computes nothing ends no earlier than those under way."""
        if not batch.num_tokens:
            start = max(start, self._ends[-1]) if self._ends else start
            self._lane.append(NO_LANE)
        super().scheduled(batch, scheduler, now, start)

    def departed(self, lane: int, newcomers: Iterable[Sequence], end: float) -> None:
        """Note that the step just scheduled is computed in this lane until `end`."""
        step = len(self._ends)
        for seq in newcomers:
            self._joined[seq] = step
        self._lane.append(lane)
        self._ends.append(end)

    def moved(self, seqs: Iterable[Sequence]) -> None:
        """Note that sequences leave their lane."""
        for seq in seqs:
            self._end_stint(seq)

    def cut(self, num_steps: int) -> None:
        """Forget the steps from this one on: the run stops before they end."""
        del self._ends[num_steps:], self._lane[num_steps:]
        self._joined = {seq: step for seq, step in self._joined.items() if step < num_steps}
        over = np.asarray(self._stints, dtype=np.int64).reshape(-1, 3)
        over = over[over[:, 1] < num_steps]
        over[:, 2] = np.minimum(over[:, 2], num_steps - 1)  # those of other lanes were under way at its end
        self._stints = array("q", over.ravel().tolist())

    def stints(self, counts: NDArray[np.bool_]) -> Stints:
        """Return the stints that are over of the requests that count, lanes together."""
        ends, spans = np.asarray(self._ends), self._ended_stints()
        lane_of = np.asarray(self._lane, dtype=np.int64)[spans[1]]
        parts = [
            stints(ends, decoding, spans[:, lane_of == lane], counts)
            for lane, decoding in enumerate(self._clocks())
        ]
        joined = Stints(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        order = np.lexsort((joined.began, joined.request))
        return joined._replace(
            request=joined.request[order], began=joined.began[order], ended=joined.ended[order]
        )

    @property
    def num_output(self) -> Ints:
        """Tokens that each request got in its stints that are over."""
        spans = self._ended_stints()
        lane_of = np.asarray(self._lane, dtype=np.int64)[spans[1]]
        found = np.zeros(len(self.status), np.int64)
        for lane, decoding in enumerate(self._clocks()):
            request, first, last = spans[:, lane_of == lane]
            np.add.at(found, request, 1 + decoding[last] - decoding[first])
        return found

    @property
    def first_token_at(self) -> Floats:
        """When each request got its first token, s; NaN before its first stint is over."""
        request, first, _ = self._ended_stints()
        found = np.full(len(self.status), np.inf)
        np.minimum.at(found, request, np.asarray(self._ends)[first])
        return np.where(np.isinf(found), np.nan, found)

    def _clocks(self) -> list[Ints]:
        """Return for each lane how many of its steps have decoded anything, until every step."""
        spans, lanes = span_columns(self._spans), np.asarray(self._lane, dtype=np.int64)
        decoded = spans["num_decodes"][: len(lanes)] > 0
        return [
            np.cumsum(decoded & (lanes == lane), dtype=np.int64)
            for lane in range(int(lanes.max(initial=0)) + 1)
        ]
