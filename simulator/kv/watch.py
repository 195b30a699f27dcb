"""What a real engine must be told of the block counts to know which physical block is which.

The pools count and the tiers name hashes, since no decision depends on the place of a block. An engine that
computes with the blocks keeps tables of its own (`gpu_backend.block_tables`) from these events, which come in
the order in which the decisions are taken. Evicted hashes are told through the pool's `on_evict`.
"""

from __future__ import annotations

from typing import Protocol

from simulator.request import Sequence


class BlockWatcher(Protocol):
    """Told what happens to the blocks of sequences on the GPU."""

    def hit(self, seq: Sequence, num_blocks: int) -> None:
        """A sequence that holds nothing takes the first blocks of its hashes from the cache."""
        ...

    def published(self, seq: Sequence, first: int, end: int) -> None:
        """Blocks `first`..`end`-1 of a sequence can be hit from now on; they are filled by this step."""
        ...

    def released(self, seq: Sequence, num_slots: int, publish: bool) -> None:
        """A sequence of `num_slots` tokens gives its blocks back; with `publish` full ones stay cached."""
        ...

    def evicted(self, lo: int, hi: int) -> None:
        """The last copies of hashes lo..hi-1 leave the cache."""
        ...


class TierWatcher(Protocol):
    """Told which hashed blocks come to a memory below the GPU and leave it."""

    def stored(self, tier: int, block: int) -> None:
        """A tier takes a block, from the tier above if that is giving it up, else from the GPU."""
        ...

    def dropped(self, tier: int, block: int) -> None:
        """A tier gives a block up; what the tier below took of it was told before."""
        ...
