"""Who loses its blocks when they run out: a victim rule is a key over running sequences, largest first.

vLLM's rules (3.8 of its scheduler): under FCFS the sequence admitted last, under priority the least
important.
A victim's blocks are freed and its tokens recomputed later (recompute preemption; vLLM V1 has no swap).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.request import Sequence
from simulator.schedulers.context import Context

Victim = Callable[[Sequence, Context], Any]


def last_admitted(seq: Sequence, ctx: Context) -> Any:
    """The sequence admitted last, so that the oldest work is never thrown away."""
    return seq.order


def least_important(seq: Sequence, ctx: Context) -> Any:
    """The highest `priority` number, then the latest arrival."""
    return (seq.priority, seq.arrival)


def first_admitted(seq: Sequence, ctx: Context) -> Any:
    """The sequence admitted first: the naive rule, which throws away the most work."""
    return -seq.order


VICTIMS: dict[str, Victim] = {
    "first_admitted": first_admitted,
    "last_admitted": last_admitted,
    "least_important": least_important,
}
