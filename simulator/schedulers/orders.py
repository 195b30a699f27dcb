"""Who is served first: an order is a key over waiting sequences, smallest first.

The two orders of vLLM (rules 1.3 and 4.2 of its scheduler). A user's order is a function of the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.request import Sequence
from simulator.schedulers.context import Context

Key = Any  # a number or tuple, comparable with the other keys of the same order
Order = Callable[[Sequence, Context], Key]


def fcfs(seq: Sequence, ctx: Context) -> Key:
    """First come, first served; a preempted sequence comes before all that wait."""
    return seq.enqueued


def priority(seq: Sequence, ctx: Context) -> Key:
    """Lower `priority` first, then earlier arrival (vLLM's direction; SGLang's is the opposite)."""
    return (seq.priority, seq.arrival, seq.id)


ORDERS: dict[str, Order] = {"fcfs": fcfs, "priority": priority}
