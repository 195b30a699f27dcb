"""A step with drafts on the real engine: verify what was proposed, propose what comes next.

What is accepted is what the model accepts; the simulation's acceptance model has no part in it. What became
of each proposal is noted as a `Verification`, one that a preemption took away as not accepted, so that a
simulation fed with the log proposes and accepts the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from gpu_backend.drafting import NOTHING, Proposal, Proposer, Sampling
from gpu_backend.rows import Row
from gpu_backend.speculative import verify_all
from gpu_backend.token_book import TokenBook
from simulator.batch import Batch, Sampled, StepResult
from simulator.engine.oracle import SimulatedExecutor
from simulator.request import Sequence as Seq
from simulator.speculative import Verification


class Speculator:
    """Keeps the drafts of every sequence between two steps."""

    def __init__(
        self,
        proposer: Proposer,
        tokens: TokenBook,
        sampling: Sampling,
        *,
        num_tokens: int,
        max_model_len: int,
    ) -> None:
        self.log: list[Verification] = []
        self._proposer = proposer
        self._tokens = tokens
        self._sampling = sampling
        self._num_tokens = num_tokens
        self._max_model_len = max_model_len
        self._proposals: dict[Seq, Proposal] = {}
        self._asked: dict[Seq, int] = {}  # at how many output tokens each proposal was made

    def before(self, batch: Batch, rows: Iterable[Row]) -> None:
        """Put the drafts to be verified behind the known tokens; rows of placeholders verify nothing."""
        decodes = {chunk.seq for chunk in batch.chunks if chunk.is_decode}
        for row in rows:
            if row.is_padding:
                continue
            if row.seq not in decodes:
                self._note(row.seq, 0)
                self._proposals.pop(row.seq, None)
            drafts = self._drafts(row)
            first = row.end - row.num_draft
            self._tokens[row.seq][first : first + len(drafts.tokens)] = drafts.tokens

    def after(
        self,
        batch: Batch,
        rows: Sequence[Row],
        logits: Tensor,
        simulated: SimulatedExecutor,
        stops: Collection[int],
    ) -> StepResult:
        """Say what the step gave each sequence, and propose. `logits`: 1 + num_draft rows of each sampler."""
        samplers = [row for row in rows if row.samples]
        emitted = self._verified(samplers, logits)
        result = StepResult([], sampled={}, drafts={})
        assert result.sampled is not None, "just made"
        assert result.drafts is not None, "just made"
        wanted = []
        most = self._num_tokens if batch.num_to_draft is None else batch.num_to_draft
        for row, ids in zip(samplers, emitted, strict=True):
            seq, rest = row.seq, simulated.remaining(row.seq)
            self._note(seq, len(ids) - 1)
            stop = next((i for i, token in enumerate(ids, 1) if token in stops), None)
            num_tokens = min(len(ids), rest, stop or rest)
            result.sampled[seq] = Sampled(num_tokens, len(ids) - 1)
            end = row.end - row.num_draft  # of what was known before
            self._tokens[seq][end : end + num_tokens] = ids[:num_tokens]
            row.num_tokens += num_tokens - 1 - row.num_draft
            if num_tokens in (rest, stop):
                result.stopped.append(seq)
                row.samples = False
            else:
                self._asked[seq] = seq.num_output + num_tokens
            wanted.append(min(most, self._max_model_len - row.end - 2) if row.samples else 0)
        self._propose(rows, dict(zip((row.seq for row in samplers), wanted, strict=True)), result.drafts)
        return result

    def forget(self, seq: Seq) -> None:
        """Drop what is kept of a sequence; a proposal that its client did not wait for was not accepted."""
        self._note(seq, 0)
        self._proposals.pop(seq, None)

    def _note(self, seq: Seq, num_accepted: int) -> None:
        """Log what became of a sequence's proposal, if it has one that is open."""
        position = self._asked.pop(seq, None)
        if position is not None:
            drafted = len(self._proposals.get(seq, NOTHING).tokens)
            self.log.append(Verification(seq.id, position, drafted, num_accepted))

    def _drafts(self, row: Row) -> Proposal:
        """Return what of a sequence's proposal the row verifies: the budget may have cut it."""
        whole = self._proposals.get(row.seq, NOTHING)
        n = min(row.num_draft, len(whole.tokens))
        return Proposal(whole.tokens[:n], None if whole.probs is None else whole.probs[:n])

    def _verified(self, samplers: Sequence[Row], logits: Tensor) -> list[list[int]]:
        """Return the tokens that each sequence emits: accepted drafts and one more."""
        drafts = [self._drafts(row) for row in samplers]
        kept: list[int] = []  # rows of logits; those of placeholders beyond the first are dropped
        at = 0
        for row, proposal in zip(samplers, drafts, strict=True):
            kept.extend(range(at, at + 1 + len(proposal.tokens)))
            at += 1 + row.num_draft
        if len(kept) < at:
            logits = logits[torch.tensor(kept, device=logits.device)]
        probs = [each.probs for each in drafts if each.probs is not None]
        return verify_all(
            logits,
            [each.tokens for each in drafts],
            torch.cat(probs) if probs else None,
            [self._sampling(row.seq.index) for row in samplers],
            [row.end - row.num_draft for row in samplers],
        )

    def _propose(self, rows: Sequence[Row], wanted: dict[Seq, int], drafts: dict[Seq, int]) -> None:
        going = [row for row in rows if not row.is_padding]
        counts = [max(wanted.get(row.seq, 0), 0) for row in going]
        for row, proposal in zip(going, self._proposer.propose(going, counts), strict=True):
            self._proposals[row.seq] = proposal
            if proposal.tokens:
                drafts[row.seq] = len(proposal.tokens)
