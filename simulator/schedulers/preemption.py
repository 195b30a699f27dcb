"""Who loses its blocks when they run out: a victim rule is a key over running sequences, largest first.

vLLM's rules (3.8 of its scheduler): under FCFS the sequence admitted last, under priority the least
important. Which victim is best is what vLLM's users debate (RFC 54644: 10 to 23 % of computed tokens lost).
Of equal keys the one admitted first goes, so a key of your own should end with `seq.order`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.request import Sequence
from simulator.schedulers.context import Context

Victim = Callable[[Sequence, Context], Any]


def last_admitted(seq: Sequence, ctx: Context) -> Any:
    """The sequence admitted last, so that the oldest work is never thrown away (vLLM; rule 3.8)."""
    return seq.order


def first_admitted(seq: Sequence, ctx: Context) -> Any:
    """The sequence admitted first: the naive rule, which throws away the most work (folklore)."""
    return -seq.order


def least_important(seq: Sequence, ctx: Context) -> Any:
    """The highest `priority` number, then the latest arrival (vLLM under priority; rule 3.8)."""
    return (seq.priority, seq.arrival)


def fewest_blocks(seq: Sequence, ctx: Context) -> Any:
    """The sequence that holds the fewest blocks: little is lost, and little gained (RFC 54644)."""
    return (-seq.num_blocks, seq.order)


def most_blocks(seq: Sequence, ctx: Context) -> Any:
    """The sequence that holds the most blocks: one victim makes room for long (RFC 54644)."""
    return (seq.num_blocks, seq.order)


def cheapest_to_recompute(seq: Sequence, ctx: Context) -> Any:
    """The shortest predicted time to compute its tokens again, but for those others hold (RFC 54644)."""
    shared = ctx.shared_tokens(seq)
    rest = max(1, seq.num_computed - shared)
    return (-ctx.prefill_time(rest, shared), seq.order)


def longest_remaining_oracle(seq: Sequence, ctx: Context) -> Any:
    """The sequence with the most tokens still to come, by the truth: a reference (SRPT's choice)."""
    return (ctx.oracle_remaining(seq), seq.order)


VICTIMS: dict[str, Victim] = {
    "last_admitted": last_admitted,
    "first_admitted": first_admitted,
    "least_important": least_important,
    "fewest_blocks": fewest_blocks,
    "most_blocks": most_blocks,
    "cheapest_to_recompute": cheapest_to_recompute,
    "longest_remaining_oracle": longest_remaining_oracle,
}
