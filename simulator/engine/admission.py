"""The server's front door: which requests it refuses, and what the engine may know of the others."""

from __future__ import annotations

from simulator.kv.prefix import PrivateIds
from simulator.request import HashRange, Request, Sequence
from simulator.schedulers.base import Scheduler


def why_rejected(request: Request, scheduler: Scheduler) -> str | None:
    """Say why a request could never be served, None if it can."""
    if request.num_prompt >= scheduler.max_model_len:
        return "prompt >= max_model_len"
    output = request.num_output if request.num_output < request.max_tokens else request.max_tokens
    length = request.num_prompt + output
    if length > scheduler.max_model_len:
        length = scheduler.max_model_len
    kv = scheduler.kv
    slots = length - 1
    if scheduler.speculation is not None:
        slots = min(slots + scheduler.spare_slots, scheduler.max_model_len)
    if kv.blocks_for(slots) > kv.pool.num_blocks:
        return "needs more KV blocks than there are"
    return None


def make_sequence(
    index: int, request: Request, scheduler: Scheduler, private: PrivateIds, now: float
) -> Sequence:
    """Make what the engine may know of a request: everything but the true output length."""
    ranges: list[HashRange] = []
    shared = 0
    if scheduler.kv.enable_prefix_caching:
        if request.block_hashes:
            ranges = list(request.block_hashes)
            shared = sum(hi - lo for lo, hi in ranges)
        longest = request.num_prompt + request.max_tokens
        if longest > scheduler.max_model_len:
            longest = scheduler.max_model_len
        rest = scheduler.kv.blocks_for(longest) - shared
        if rest > 0:
            ranges.append(private.take(rest))
    return Sequence(
        request.id,
        request.num_prompt,
        request.max_tokens,
        index=index,
        arrival=now,
        priority=request.priority,
        tenant=request.tenant,
        deadline=None if request.ttft_limit is None else now + request.ttft_limit,
        predicted_len=request.predicted_len,
        hash_ranges=ranges,
        hash_private_from=shared,
    )
