"""Who is served first: an order is a key over waiting sequences, smallest first.

A key that looks at the sequence alone is asked for once, when the sequence enters the queue; one that looks
at `ctx` (the time, the cache, the service so far) is asked for again whenever somebody may be admitted.
Equal keys go in order of arrival. Running work is never preempted for a better key.

An order that charges for service is a small object with `key(seq, ctx)` and `served(seq, n)`; see `fairness`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from simulator.request import Sequence
from simulator.schedulers.context import Context
from simulator.schedulers.fairness import DeficitRoundRobin, VirtualCounters

Key = Any  # a number or tuple, comparable with the other keys of the same order


class ServiceOrder(Protocol):
    """An order with a memory; a class is made into a new object for each run, an object is copied."""

    def key(self, seq: Sequence, ctx: Context) -> Key: ...
    def served(self, seq: Sequence, n: int) -> None: ...


Order = Callable[[Sequence, Context], Key] | ServiceOrder | type[ServiceOrder]

AGEING = 10.0
"""Seconds of waiting that count as much as one level of priority under `aged_priority`: an assumption."""


def fcfs(seq: Sequence, ctx: Context) -> Key:
    """First come, first served; a preempted sequence comes before all that wait (vLLM; rules 1.3, 4.2)."""
    return seq.enqueued


def lifo(seq: Sequence, ctx: Context) -> Key:
    """Last come, first served: in overload some answers are quick and the others never come (folklore)."""
    return -seq.arrival


def priority(seq: Sequence, ctx: Context) -> Key:
    """Lower `priority` first, then earlier arrival (vLLM's direction, SGLang's is the opposite; rule 1.3)."""
    return (seq.priority, seq.arrival, seq.id)


def aged_priority(seq: Sequence, ctx: Context) -> Key:
    """Priority, where `AGEING` seconds of waiting count as one level, so nobody starves (Unix schedulers)."""
    return seq.priority + seq.arrival / AGEING


def sjf_prompt(seq: Sequence, ctx: Context) -> Key:
    """Shortest prompt first: all of the work that is known (Smith, Naval Res. Log. Q. 1956)."""
    return seq.num_prompt


def sjf_predicted(seq: Sequence, ctx: Context) -> Key:
    """Shortest predicted answer first; without a predictor `max_tokens` (Fu et al., NeurIPS 2024)."""
    return (seq.max_tokens if seq.predicted_len is None else seq.predicted_len) - seq.num_output


def srpt_oracle(seq: Sequence, ctx: Context) -> Key:
    """Shortest remaining answer first, by the truth: a reference (Schrage, Operations Research 1968)."""
    return (ctx.oracle_remaining(seq), seq.num_prompt)


def edf(seq: Sequence, ctx: Context) -> Key:
    """Earliest deadline first: arrival plus its SLO for the first token (Liu and Layland, JACM 1973)."""
    return float("inf") if seq.deadline is None else seq.deadline


def longest_prefix(seq: Sequence, ctx: Context) -> Key:
    """Most cached tokens first, so that hits come before eviction does (SGLang, NeurIPS 2024)."""
    return -ctx.cached_tokens(seq)


ORDERS: dict[str, Order] = {
    "fcfs": fcfs,
    "lifo": lifo,
    "priority": priority,
    "aged_priority": aged_priority,
    "sjf_prompt": sjf_prompt,
    "sjf_predicted": sjf_predicted,
    "srpt_oracle": srpt_oracle,
    "edf": edf,
    "longest_prefix": longest_prefix,
    "virtual_counters": VirtualCounters,
    "deficit_round_robin": DeficitRoundRobin,
}
