"""How many tokens each sequence drafts for its next step, decided anew in every step.

Drafts are nearly free while a step is bound by memory and cost what other tokens cost once it is bound by
arithmetic, so their best number falls with the batch. `PerBatchSize` is vLLM's table (dynamic speculative
decoding). `Goodput` takes the number with most expected tokens per second, as in Liu et al., "Optimizing
Speculative Decoding for Serving Large Language Models Using Goodput" (arXiv 2406.14066): the price from the
latency model, the acceptance from what this scheduler has seen. Left out: another number for each sequence,
and acceptance that drifts during a run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simulator.batch import Batch
from simulator.latency.drafting import DraftingStep
from simulator.speculative import expected_tokens

if TYPE_CHECKING:
    from simulator.schedulers.context import Context

PRIOR_TRIED = 10.0
"""Verifications that a position counts before any was seen: of the pooled rate, or at first `PRIOR_RATE`."""
PRIOR_RATE = 0.8
"""An assumed acceptance on the friendly side, so that drafts are tried before they are judged."""


class DraftLength(Protocol):
    """Chooses how many tokens are drafted; may keep what it has learnt."""

    def choose(self, batch: Batch, ctx: Context) -> int:
        """Return how many tokens each sequence that samples in this step drafts for its next one, >= 0."""
        ...

    def learnt(self, num_draft: int, num_accepted: int) -> None:
        """Learn what became of one verification."""
        ...


class Range(NamedTuple):
    """Batch sizes from `first` to `last`, both included, and how many tokens are drafted there."""

    first: int
    last: int
    num_tokens: int


class PerBatchSize:
    """Look the number up by how many sequences the step has (vLLM: num_speculative_tokens_per_batch_size).

    A size between two ranges, or beyond the last, has the number of the range before it.

    >>> table = PerBatchSize([Range(1, 16, 3), Range(64, 128, 0)])
    >>> [table.at(n) for n in (1, 16, 40, 64, 500)]
    [3, 3, 3, 0, 0]
    """

    def __init__(self, ranges: Iterable[Iterable[int]]) -> None:
        self.ranges = sorted(Range(*each) for each in ranges)
        last = 0
        for each in self.ranges:
            if not last < each.first <= each.last:
                raise ValueError(f"{list(each)} must begin after {last} and not end before it begins")
            if each.num_tokens < 0:
                raise ValueError(f"{list(each)}: the number of drafts must be >= 0")
            last = each.last
        if not self.ranges or self.ranges[0].first != 1:
            raise ValueError("the first range must begin at batch size 1")
        self._firsts = [each.first for each in self.ranges]

    def at(self, batch_size: int) -> int:
        """Return the number for a batch size >= 1."""
        return self.ranges[bisect_right(self._firsts, batch_size) - 1].num_tokens

    def choose(self, batch: Batch, ctx: Context) -> int:
        return self.at(batch.num_seqs) if batch.num_seqs else 0

    def learnt(self, num_draft: int, num_accepted: int) -> None:
        """Nothing: the table stays."""


class Goodput:
    """Draft as many tokens, at most `num_tokens`, as give most expected tokens per second.

    The step priced is the next one as if it only decoded: all sequences that sample now, each with k drafts
    to verify, and the proposal of k more. Of equal numbers the smallest.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._tried = [0] * num_tokens  # verifications that reached this draft, the ones before it accepted
        self._accepted = [0] * num_tokens

    def choose(self, batch: Batch, ctx: Context) -> int:
        contexts = [chunk.start + chunk.num_tokens for chunk in batch.chunks if chunk.samples]
        n = len(contexts)
        if not n:
            return 0
        kv, longest = sum(contexts), max(contexts)
        best, most = 0, 0.0
        reached = list(accumulate(self.rates(), mul))
        for k in range(self.num_tokens + 1):
            step = DraftingStep.verifying(n, kv, longest, k)
            speed = expected_tokens(reached[:k]) / ctx.step_time(step)
            if speed > most:
                best, most = k, speed
        return best

    def learnt(self, num_draft: int, num_accepted: int) -> None:
        for i in range(min(num_draft, num_accepted + 1, self.num_tokens)):
            self._tried[i] += 1
            self._accepted[i] += i < num_accepted

    def rates(self) -> list[float]:
        """Estimate how often each draft is accepted if those before it are.

        A position that was seen rarely leans on all of them.
        """
        total = PRIOR_RATE * PRIOR_TRIED + sum(self._accepted)
        pooled = total / (PRIOR_TRIED + sum(self._tried))
        return [
            (accepted + pooled * PRIOR_TRIED) / (tried + PRIOR_TRIED)
            for accepted, tried in zip(self._accepted, self._tried, strict=True)
        ]
