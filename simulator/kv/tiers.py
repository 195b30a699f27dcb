"""Memory tiers below the GPU: what each holds, how long a transfer takes, what a full one gives up.

A tier keeps two kinds of blocks. *Offloaded* blocks are copies of what the GPU evicted from its prefix
cache, under their hashes: least recently evicted or fetched first, of one prefix the tail first. *Claimed*
blocks are what a sequence needs back, swapped out or being read by a transfer: nothing overwrites them. What
a full tier gives up goes to the tier below if that one offloads, else it is dropped. Fetched blocks stay, so
that their next eviction from the GPU needs no second copy. Looked up block by block: only runs with tiers
pay for that.
Left out: buffers between tiers, and which physical block is which.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.kv.watch import TierWatcher
from simulator.request import Claim, HashRange


@dataclass(frozen=True, slots=True)
class Tier:
    """One memory below the GPU: its size in blocks, its link in bytes/s and seconds a transfer."""

    name: str
    num_blocks: int
    bytes_per_block: int
    bandwidth: float  # bytes/s, in each direction
    latency: float = 0.0  # s, of every transfer
    offload: bool = True  # whether it takes blocks that are evicted above it; if not, only swapped ones

    def __post_init__(self) -> None:
        if self.num_blocks < 1 or self.bytes_per_block < 1:
            raise ValueError(
                f"tier {self.name!r}: num_blocks and bytes_per_block must be >= 1, "
                f"got {self.num_blocks}, {self.bytes_per_block}"
            )
        if not (0 < self.bandwidth < math.inf and 0 <= self.latency < math.inf):
            raise ValueError(
                f"tier {self.name!r}: bandwidth must be > 0 and latency >= 0, both finite, "
                f"got {self.bandwidth}, {self.latency}"
            )

    def transfer_time(self, num_blocks: int) -> float:
        """Seconds that a transfer of this many blocks takes on an idle link.

        >>> Tier("host", 100, bytes_per_block=1000, bandwidth=1e6, latency=0.5).transfer_time(250)
        0.75
        """
        return self.latency + num_blocks * self.bytes_per_block / self.bandwidth


class TierMemory:
    """What one tier holds at a moment."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.offloaded: OrderedDict[int, None] = OrderedDict()  # hashes, the first to go first
        self.claimed: dict[int, int] = {}  # hash -> how many claims hold it
        self.num_reserved = 0  # claimed blocks that no hash names

    def __contains__(self, block: int) -> bool:
        return block in self.offloaded or block in self.claimed

    @property
    def num_used(self) -> int:
        return len(self.offloaded) + len(self.claimed) + self.num_reserved

    @property
    def num_claimable(self) -> int:
        """Blocks that are not claimed yet."""
        return self.tier.num_blocks - len(self.claimed) - self.num_reserved

    def claim(self, block: int) -> None:
        """Keep a block, which may be new here, until it is given back."""
        self.offloaded.pop(block, None)
        self.claimed[block] = self.claimed.get(block, 0) + 1

    def give_back(self, block: int) -> None:
        """Take one claim away; a block without claims becomes the last to be given up."""
        self.claimed[block] -= 1
        if not self.claimed[block]:
            del self.claimed[block]
            self.offloaded[block] = None


class Room(NamedTuple):
    """Where a sequence can be swapped to, and how many blocks must be copied there."""

    tier: int
    num_copied: int


class Tiers:
    """All tiers, the one next to the GPU first."""

    def __init__(self, tiers: Iterable[Tier]) -> None:
        self.memories = [TierMemory(tier) for tier in tiers]
        self.outgoing = [0] * len(self.memories)  # offloaded to each since `take_outgoing`
        self.watcher: TierWatcher | None = None
        self._first = next((i for i, each in enumerate(self.memories) if each.tier.offload), None)

    @property
    def offloads(self) -> bool:
        """Whether any tier takes what the GPU evicts."""
        return self._first is not None

    def __getitem__(self, index: int) -> Tier:
        return self.memories[index].tier

    def evicted(self, lo: int, hi: int) -> None:
        """Take blocks that the GPU evicts, the tail first, so that the head is given up last."""
        assert self._first is not None, "only a pool above a tier that offloads reports evictions"
        for block in range(hi - 1, lo - 1, -1):
            self._offload(self._first, block)

    def take_outgoing(self) -> list[tuple[int, int]]:
        """Return (tier, blocks) of what was offloaded since the last call."""
        found = [(tier, n) for tier, n in enumerate(self.outgoing) if n]
        self.outgoing = [0] * len(self.memories)
        return found

    def match(self, ranges: Sequence[HashRange], first: int, end: int) -> list[list[int]]:
        """Find blocks `first`..`end`-1 of a prefix, up to the first that no tier has: hashes by tier."""
        found: list[list[int]] = [[] for _ in self.memories]
        for block in prefix_hashes(ranges, first, end):
            for memory, here in zip(self.memories, found, strict=True):
                if block in memory:
                    here.append(block)
                    break
            else:
                break
        return found

    def claim(self, hashes: Iterable[Sequence[int]]) -> list[Claim]:
        """Claim blocks that `match` found."""
        claims = [Claim(tier, blocks) for tier, blocks in enumerate(hashes) if blocks]
        for tier, blocks, _ in claims:
            for block in blocks:
                self.memories[tier].claim(block)
        return claims

    def give_back(self, claims: Iterable[Claim]) -> None:
        """End claims: blocks with a hash stay as offloaded ones, room without is free."""
        for tier, hashes, num_unhashed in claims:
            memory = self.memories[tier]
            memory.num_reserved -= num_unhashed
            for block in reversed(hashes):
                memory.give_back(block)

    def find_room(self, hashes: Sequence[int], num_blocks: int) -> Room | None:
        """Find the first tier with room for a sequence's blocks, the first of which have these hashes."""
        for i, memory in enumerate(self.memories):
            num_copied, claimable = num_blocks, memory.num_claimable
            if memory.tier.offload:
                num_copied -= sum(block in memory for block in hashes)
                claimable -= sum(block in memory.offloaded for block in hashes)
            if num_copied <= claimable:
                return Room(i, num_copied)
        return None

    def swap_out(self, tier: int, hashes: Sequence[int], num_blocks: int) -> Claim:
        """Claim room in a tier that `find_room` named, giving up others' offloaded blocks."""
        memory = self.memories[tier]
        known = list(hashes) if memory.tier.offload else []
        new = [block for block in known if block not in memory]
        for block in known:
            if block in memory:
                memory.claim(block)
        for block in new:
            self._make_room(tier)
            memory.claim(block)
            if self.watcher is not None:
                self.watcher.stored(tier, block)
        for _ in range(num_blocks - len(known)):
            self._make_room(tier)
            memory.num_reserved += 1
        return Claim(tier, known, num_blocks - len(known))

    def _offload(self, tier: int, block: int) -> None:
        memory = self.memories[tier]
        if block in memory.offloaded:
            memory.offloaded.move_to_end(block)
        elif block not in memory.claimed and self._make_room(tier):
            memory.offloaded[block] = None
            self.outgoing[tier] += 1
            if self.watcher is not None:
                self.watcher.stored(tier, block)

    def _make_room(self, tier: int) -> bool:
        """Free a block of a full tier; False if all are claimed."""
        memory = self.memories[tier]
        if memory.num_used < memory.tier.num_blocks:
            return True
        if not memory.offloaded:
            return False
        block, _ = memory.offloaded.popitem(last=False)
        if tier + 1 < len(self.memories) and self.memories[tier + 1].tier.offload:
            self._offload(tier + 1, block)
        if self.watcher is not None:
            self.watcher.dropped(tier, block)
        return True

    def check(self, claims: Iterable[Claim]) -> None:
        """Raise AssertionError unless every claimed block has an owner and no tier is overfull."""
        owned = list(claims)
        for i, memory in enumerate(self.memories):
            mine = [claim for claim in owned if claim.tier == i]
            reserved = sum(claim.num_unhashed for claim in mine)
            hashed = Counter(itertools.chain.from_iterable(claim.hashes for claim in mine))
            name = memory.tier.name
            assert memory.num_reserved == reserved, f"{name}: {memory.num_reserved} != {reserved} reserved"
            assert memory.claimed == hashed, f"{name}: claims {memory.claimed} != {hashed}"
            assert not memory.claimed.keys() & memory.offloaded.keys(), f"{name}: claimed and to be given up"
            assert memory.num_used <= memory.tier.num_blocks, f"{name}: {memory.num_used} blocks"


def prefix_hashes(ranges: Iterable[HashRange], first: int, end: int) -> Iterator[int]:
    """Yield the hashes of blocks `first`..`end`-1 of a prefix, as far as they are known.

    >>> list(prefix_hashes([(10, 13), (40, 45)], 2, 5))
    [12, 40, 41]
    """
    at = 0
    for lo, hi in ranges:
        if at >= end:
            return
        yield from range(lo + max(0, first - at), lo + min(hi - lo, end - at))
        at += hi - lo
