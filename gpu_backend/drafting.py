"""Where draft tokens come from: the sequence itself, or a smaller model with KV in the same blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gpu_backend.rows import Row
from gpu_backend.runner import Runner
from gpu_backend.sampling import SamplingParams, Stream, restrict, sample
from gpu_backend.speculative import propose_ngram
from gpu_backend.token_book import TokenBook

LONGEST_NGRAM = 5  # vLLM's prompt_lookup_max and prompt_lookup_min, as `servetwin export` gives them
SHORTEST_NGRAM = 1

Sampling = Callable[[int], SamplingParams]
"""How the answer of the request with this index is drawn."""


@dataclass(slots=True)
class Proposal:
    """Draft tokens of one sequence, and what they were drawn from: (drafts, vocab), None if not drawn."""

    tokens: list[int]
    probs: Tensor | None = None


NOTHING = Proposal([])


class Proposer(Protocol):
    """Proposes tokens behind the last known one of each sequence."""

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[Proposal]:
        """Return a proposal of at most `wanted` tokens for each row, empty for rows that sampled nothing.

        Each row ends before its sequence's last known token, which is in the token book, if it samples.
        """
        ...


class NgramProposer:
    """Proposes what followed the last tokens where they occurred before (prompt lookup)."""

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[Proposal]:
        return [
            Proposal(self._look_up(row, k)) if row.samples and k else NOTHING
            for row, k in zip(rows, wanted, strict=True)
        ]

    def _look_up(self, row: Row, k: int) -> list[int]:
        return propose_ngram(self._tokens[row.seq][: row.end + 1], LONGEST_NGRAM, SHORTEST_NGRAM, k)


class DraftModelProposer:
    """Lets a smaller model decode ahead, greedily or by the request's own sampling.

    Its KV has pages of its own under the target's block numbers, so prefix hits and preemption need nothing
    more. The first pass computes what the target computed and the token that it added, each further pass a
    draft (vLLM's draft model does the same). What was swapped to a tier comes back without its KV here: then
    fewer drafts are accepted, and the tokens stay right.
    """

    def __init__(self, runner: Runner, sampling: Sampling) -> None:
        self._runner = runner
        self._sampling = sampling

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[Proposal]:
        first = [replace(row, num_tokens=row.num_tokens + row.samples, num_draft=0) for row in rows]
        drafting = [(row, k) for row, k in zip(first, wanted, strict=True) if row.samples and k]
        drafts: dict[int, list[int]] = {id(row): [] for row in first}
        probs: dict[int, list[Tensor]] = {id(row): [] for row in first}
        for row in first:
            self._runner.tables.grow(row.seq, -(-row.end // self._runner.kv.block_size))
            row.samples = any(row is each for each, _ in drafting)
        work, owners = first, [row for row, _ in drafting]
        depth = 0
        while owners:
            logits = self._runner.run(work)
            params = [self._sampling(row.seq.index) for row in owners]
            positions = [row.end + depth for row in owners]
            ids = sample(logits, params, positions, Stream.DRAFT).tolist()
            spread = None if all(each.is_greedy for each in params) else restrict(logits, params).softmax(-1)
            for i, (row, token) in enumerate(zip(owners, ids, strict=True)):
                self._runner.tokens[row.seq][row.end + depth] = token
                drafts[id(row)].append(token)
                if spread is not None:
                    probs[id(row)].append(spread[i])
            depth += 1
            owners = [row for row, k in drafting if k > depth]
            work = [Row(row.seq, row.end + depth - 1, 1, samples=True) for row in owners]
            for each in work:
                self._runner.tables.grow(each.seq, -(-each.end // self._runner.kv.block_size))
        if not drafting and first:
            self._runner.run(first)
        return [
            Proposal(drafts[id(row)], torch.stack(probs[id(row)]) if probs[id(row)] else None)
            for row in first
        ]
