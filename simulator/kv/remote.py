"""Blocks that lie on another replica: a memory of which nothing is known but who needs what from there.

It stands behind the tiers of a block manager, so that a sequence whose prompt was computed elsewhere is one
whose KV must be fetched (`schedulers.fetching`). Nothing can be put there, and no hash finds anything.
"""

from __future__ import annotations

from simulator.kv.block_manager import BlockManager
from simulator.kv.tiers import Tier, TierMemory, Tiers
from simulator.request import Claim, Sequence

ENDLESS = 2**62  # blocks: other replicas say what they can hold


class RemoteMemory(TierMemory):
    """Holds only claims of sequences that come from there."""

    @property
    def num_claimable(self) -> int:
        """None: nobody is swapped out to another replica."""
        return 0


def connect(kv: BlockManager) -> None:
    """Let sequences come from other replicas, by a tier that stands for those; before anything runs."""
    if kv.tiers is None:
        kv.tiers = Tiers(())
    kv.tiers.memories.append(RemoteMemory(Tier("remote", ENDLESS, 1, bandwidth=1.0, offload=False)))
    kv.tiers.outgoing.append(0)


def remote_tier(kv: BlockManager) -> int:
    """Return the index of the tier that `connect` made."""
    assert kv.tiers is not None, "connect comes first"
    return len(kv.tiers.memories) - 1


def lies_elsewhere(kv: BlockManager, tier: int, seq: Sequence, num_tokens: int) -> None:
    """Note of a new sequence that the KV of its first tokens lies on another replica."""
    assert kv.tiers is not None, "connect has made one"
    num_blocks = kv.blocks_for(num_tokens)
    kv.tiers.memories[tier].num_reserved += num_blocks
    seq.claims = [Claim(tier, (), num_blocks)]
    seq.swapped = num_tokens
