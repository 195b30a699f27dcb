"""The executor of a simulation with speculative decoding: an acceptance model says what a step gives."""

from __future__ import annotations

import math

from simulator.batch import Batch, Sampled, StepResult
from simulator.decode_group import DecodeGroup
from simulator.engine.links import Links
from simulator.engine.oracle import SimulatedExecutor
from simulator.latency.base import LatencyModel
from simulator.request import Sequence
from simulator.speculative import Acceptance


class SpeculatingExecutor(SimulatedExecutor):
    """Execute batches of chunks, accepting drafts as `acceptance` says; placeholders are never accepted."""

    def __init__(
        self,
        latency: LatencyModel,
        group: DecodeGroup,
        links: Links | None,
        acceptance: Acceptance,
    ) -> None:
        super().__init__(latency, group, links)
        self._acceptance = acceptance

    def forget(self, seq: Sequence) -> int:
        """Drop a sequence that has left the engine; return its true output length."""
        self._acceptance.forget(seq)
        return super().forget(seq)

    def execute(self, batch: Batch, start: float) -> StepResult:
        """Say what each sequence sampled, which answers ended, and how much is drafted for the others."""
        stopped: list[Sequence] = []
        sampled: dict[Sequence, Sampled] = {}
        drafts: dict[Sequence, int] = {}
        most = math.inf if batch.num_to_draft is None else batch.num_to_draft
        for chunk in batch.chunks:
            if not chunk.samples:
                continue
            seq, position = chunk.seq, chunk.seq.num_output
            accepted = 0
            if chunk.is_decode and chunk.num_draft:
                accepted = self._acceptance.num_accepted(seq, position, chunk.num_draft)
            rest = self.remaining(seq)
            num_tokens = min(accepted + 1, rest)
            sampled[seq] = Sampled(num_tokens, accepted)
            if num_tokens == rest:
                stopped.append(seq)
            else:
                proposed = self._acceptance.num_proposed(seq, position + num_tokens)
                drafts[seq] = proposed if proposed < most else int(most)
        return StepResult(stopped, sampled=sampled, drafts=drafts)

    def steps_before_end(self) -> float:
        """No step is skipped."""
        return 0
