"""What each tenant is served, counted in computed tokens; the base of fair orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.batch import Batch

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


def charge(scheduler: Scheduler, batch: Batch, k: int = 1) -> None:
    """Tell an order that charges for service what k steps like this one serve."""
    served = scheduler.waiting.served
    if served is None:
        return
    for chunk in batch.chunks:
        served(chunk.seq, k * chunk.num_tokens)
    if batch.num_decodes:
        left_out = set(batch.postponed)
        for seq in scheduler.running:
            if seq.group is scheduler.decodes and seq not in left_out:
                served(seq, k)


def service(scheduler: Scheduler, tenant: str) -> int:
    """Count the tokens computed for a tenant so far."""
    running = (seq.num_computed - seq.joined_with for seq in scheduler.running if seq.tenant == tenant)
    return scheduler.past_service.get(tenant, 0) + sum(running)
