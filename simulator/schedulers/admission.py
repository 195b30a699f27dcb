"""Whom the server takes in: rules that are asked in their order, before memory and seats are.

`rule(seq, ctx)` answers ADMIT, WAIT or SHED. It is asked when a sequence arrives (`ctx.arriving`), where only
SHED counts, and again while the sequence is the first in the queue: WAIT keeps it there, and so all behind
it; SHED turns it away. What was admitted once is not asked about again after a preemption. A class is a rule
with arguments, made into a new object for each run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from simulator.latency.base import StepFeatures
from simulator.request import Sequence
from simulator.schedulers.context import Context

Verdict = Literal["admit", "wait", "shed"]
ADMIT: Verdict = "admit"
WAIT: Verdict = "wait"
SHED: Verdict = "shed"

Admission = Callable[[Sequence, Context], Verdict]


def reserve_output(seq: Sequence, ctx: Context) -> Verdict:
    """Admit if prompt + max_tokens of all that run would fit: nobody is ever preempted (Orca, OSDI 2022)."""
    own = ctx.most_blocks(seq)
    if own > ctx.num_blocks:
        return SHED
    if ctx.arriving:
        return ADMIT
    reserved = sum(ctx.most_blocks(other) for other in ctx.running)
    return ADMIT if reserved + own <= ctx.num_blocks else WAIT


def shed_late(seq: Sequence, ctx: Context) -> Verdict:
    """Turn away whose first token cannot come by its deadline (load shedding)."""
    if seq.deadline is None:
        return ADMIT
    cached = ctx.cached_tokens(seq)
    quickest = ctx.step_time(StepFeatures.prefill([(seq.num_tokens - cached, cached)]))
    return SHED if ctx.now + quickest > seq.deadline else ADMIT


class QueueLimit:
    """Turn arrivals away while `limit` sequences wait (a bounded queue, M/M/c/K)."""

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ValueError(f"queue_limit: limit must be a whole number >= 1, got {limit!r}")
        self.limit = limit

    def __call__(self, seq: Sequence, ctx: Context) -> Verdict:
        return SHED if ctx.arriving and ctx.num_waiting >= self.limit else ADMIT


class TokenBucket:
    """Turn away what exceeds a tenant's rate of prompt + max_tokens (a token bucket, as API limits have it).

    Each tenant's bucket gains `tokens_per_s` up to `burst` tokens, times its weight.
    """

    def __init__(self, tokens_per_s: float, burst: float) -> None:
        for name, value in (("tokens_per_s", tokens_per_s), ("burst", burst)):
            if not 0 < value < float("inf"):
                raise ValueError(f"token_bucket: {name} must be > 0 and finite, got {value!r}")
        self.tokens_per_s = tokens_per_s
        self.burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}  # tenant -> tokens in it, at which moment

    def __call__(self, seq: Sequence, ctx: Context) -> Verdict:
        if not ctx.arriving:
            return ADMIT
        weight = ctx.weight(seq.tenant)
        full = self.burst * weight
        tokens, since = self._buckets.get(seq.tenant, (full, ctx.now))
        tokens = min(full, tokens + (ctx.now - since) * self.tokens_per_s * weight)
        cost = seq.num_prompt + seq.limit
        fits = cost <= tokens
        self._buckets[seq.tenant] = (tokens - cost if fits else tokens, ctx.now)
        return ADMIT if fits else SHED


ADMISSIONS: dict[str, Admission | type[QueueLimit] | type[TokenBucket]] = {
    "reserve_output": reserve_output,
    "shed_late": shed_late,
    "queue_limit": QueueLimit,
    "token_bucket": TokenBucket,
}
