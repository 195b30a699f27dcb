"""What preemption and the tiers did in a run, in a sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def memory_notes(own: Mapping[str, Any]) -> list[str]:
    """Return the sentences for our part of a summary; none where nothing was preempted or moved."""
    notes = []
    if own["num_preemptions"]:
        notes.append(f"{own['num_preemptions']:,} preemptions: {_lost(own)}")
    if "transfers" not in own and (own["offloaded_tokens"] or own["fetched_tokens"]):
        out, stall = own["offloaded_tokens"], own["offload_stall_s"]
        back, wait = own["fetched_tokens"], own["fetch_wait_s"]
        notes.append(
            f"tiers: {out:,} tokens offloaded (steps held back {stall:,.1f} s), {back:,} fetched (sequences "
            f"waited {wait:,.1f} s)"
        )
    if own["broken_livelocks"]:
        notes.append(
            f"order and victim rule undid each other {own['broken_livelocks']:,} times; the scheduler then "
            "preempted the one admitted last and admitted nobody until a token was sampled"
        )
    return notes


def _lost(own: Mapping[str, Any]) -> str:
    parts = []
    if again := own["recomputed_tokens"]:
        parts.append(f"{again:,} tokens computed again ({own['recompute_s']:,.1f} s of steps)")
    if swapped := own["swapped_tokens"]:
        parts.append(f"{swapped:,} swapped out (steps held back {own['swap_stall_s']:,.1f} s)")
    return ", ".join(parts) or "what was lost was found in the cache again"
