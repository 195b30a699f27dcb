"""Bringing a sequence's KV back from the tiers below the GPU before it runs.

What the GPU's prefix cache lacks of a sequence may lie in a tier: because it was swapped out there, or
because the GPU evicted blocks that it shares. Admission then takes GPU blocks for all of that and asks for
the transfers; the sequence computes nothing until `Scheduler.arrived` is called, and nobody else can hit its
new blocks before. It holds its seat and its blocks meanwhile and is nobody's victim.
Left out: whether computing again would be quicker than a slow tier; what is found is fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulator.batch import Batch, Move
from simulator.kv.block_manager import Hit
from simulator.kv.tiers import Tiers
from simulator.request import Sequence
from simulator.schedulers.preempting import give_claims_back

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


class Fetch(NamedTuple):
    """What lies in the tiers of a sequence, beyond its hits on the GPU."""

    hashes: list[list[int]]  # by tier
    num_unhashed: int  # blocks that only the sequence's swapped copy has
    num_tokens: int  # whose KV the GPU has on arrival, hits included


def find_fetch(scheduler: Scheduler, seq: Sequence, hit: Hit) -> Fetch | None:
    """Find what lies below the GPU of a waiting sequence; None without tiers or if nothing does."""
    kv = scheduler.kv
    if kv.tiers is None:
        return None
    known = hit.num_blocks
    hashes = kv.tiers.match(seq.hash_ranges, known, (seq.num_tokens - 1) // kv.block_size)
    known += sum(len(blocks) for blocks in hashes)
    num_unhashed = max(kv.blocks_for(seq.swapped) - known, 0)
    if known + num_unhashed == hit.num_blocks:
        return None
    return Fetch(hashes, num_unhashed, max(known * kv.block_size, seq.swapped))


def add_evicted(tiers: Tiers, batch: Batch) -> None:
    """Put into the batch the copies of what the GPU has evicted for it: one transfer a tier."""
    evicted = [Move(None, tier, n, "out") for tier, n in tiers.take_outgoing()]
    if evicted:
        batch.moves = [*batch.moves, *evicted]


def begin_fetch(scheduler: Scheduler, batch: Batch, seq: Sequence, hit: Hit, fetch: Fetch) -> None:
    """Take the head of the queue out, give it blocks, and put its transfers into the batch."""
    kv = scheduler.kv
    assert kv.tiers is not None, "a fetch was found"
    new = fetch.num_tokens - hit.num_blocks * kv.block_size
    moves = [len(blocks) for blocks in fetch.hashes]
    if fetch.num_unhashed:
        moves[seq.claims[0].tier] += fetch.num_unhashed
    seq.claims = [*seq.claims, *kv.tiers.claim(fetch.hashes)]  # before the GPU evicts anything into them
    admitted = kv.admit(seq, hit, new, must_fit=0, watermark=False, publish=False)
    assert admitted, "the caller has looked for room"
    scheduler.waiting.pop()
    scheduler.fetching[seq] = None
    seq.state = "fetching"
    seq._computed = fetch.num_tokens
    batch.moves = [*batch.moves, *(Move(seq, tier, n, "in") for tier, n in enumerate(moves) if n)]


def finish_fetch(scheduler: Scheduler, seq: Sequence) -> None:
    """Let a sequence run whose blocks have come; one that was aborted meanwhile is passed over."""
    if seq.state != "fetching":
        return
    del scheduler.fetching[seq]
    seq.cached = seq._computed
    scheduler.kv.arrived(seq)
    scheduler.join_running(seq, seq._computed)


def cancel_fetch(scheduler: Scheduler, seq: Sequence) -> None:
    """Forget a sequence that is being fetched: what has come of its blocks is worth nothing."""
    del scheduler.fetching[seq]
    scheduler.kv.release(seq, seq._computed, publish=False)
    give_claims_back(scheduler, seq)
    seq.state = "finished"
