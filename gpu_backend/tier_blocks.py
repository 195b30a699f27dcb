"""What lies in the memories below the GPU, as tensors: swapped sequences and offloaded prefixes.

The tiers of `simulator.kv.tiers` decide what is kept and given up; this holds the KV of it, a block of all
layers in one piece of (pinned) host memory. Copies are decided while a step is scheduled and done before it
computes, in the order decided: out first, so that nothing is overwritten before it is elsewhere, then in.
Left out: a tier below host memory (an nvme) is host memory too, and copies run in line with the step.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gpu_backend.block_tables import BlockTables
from gpu_backend.kv_tensors import KvTensors
from simulator.kv.tiers import Tiers, prefix_hashes
from simulator.request import Sequence


class Stored(NamedTuple):
    """A tier takes a hashed block: from this block of the GPU, or (None) from the tier above."""

    tier: int
    block_hash: int
    source: int | None


class Dropped(NamedTuple):
    """A tier gives a hashed block up."""

    tier: int
    block_hash: int


class TierBlocks:
    """The KV held below the GPU. Implements `simulator.kv.watch.TierWatcher`."""

    def __init__(self, tiers: Tiers, tables: BlockTables, kv: KvTensors) -> None:
        self._tables = tables
        self._kv = kv
        self._held: list[dict[int, Tensor]] = [{} for _ in tiers.memories]  # by hash
        self._swapped: dict[Sequence, dict[int, Tensor]] = {}  # blocks that no hash names, by place
        self._events: list[Stored | Dropped] = []
        tiers.watcher = self

    def stored(self, tier: int, block: int) -> None:
        self._events.append(Stored(tier, block, self._tables.find(block)))

    def dropped(self, tier: int, block: int) -> None:
        self._events.append(Dropped(tier, block))

    def flush(self) -> None:
        """Do what the tiers decided since the last call, and forget what no sequence claims any longer."""
        for seq in [seq for seq in self._swapped if not seq.claims]:
            del self._swapped[seq]
        events, self._events = self._events, []
        sources = [each.source for each in events if isinstance(each, Stored) and each.source is not None]
        copies = iter(self._kv.copy_out(sources)) if sources else iter(())
        for each in events:
            held = self._held[each.tier]
            if isinstance(each, Dropped):
                held.pop(each.block_hash, None)
            elif each.source is not None:
                held[each.block_hash] = next(copies)
            elif each.tier and each.block_hash in self._held[each.tier - 1]:
                held[each.block_hash] = self._held[each.tier - 1][each.block_hash]

    def swap_out(self, seq: Sequence) -> None:
        """Keep the blocks of a victim that no hash names; the others are told by `stored`."""
        claim = seq.claims[0]
        if claim.num_unhashed:
            first = len(claim.hashes)
            blocks = self._tables.left[seq][first : first + claim.num_unhashed]
            self._swapped[seq] = dict(enumerate(self._kv.copy_out(blocks), first))

    def fetch(self, seq: Sequence) -> None:
        """Copy to the GPU what a sequence has below it, into the blocks that it was given and lack KV.

        What is found nowhere is hit in a block that this step fills, or is computed again.
        """
        tables, size = self._tables, self._tables.block_size
        num_tokens = seq.num_computed
        blocks = tables.grow(seq, -(-num_tokens // size))
        hashes = list(prefix_hashes(seq.hash_ranges, 0, len(blocks)))
        swapped = self._swapped.get(seq, {})
        pieces, targets = [], []
        for i, block in enumerate(blocks):
            have = min(size, num_tokens - i * size)
            if tables.filled[block] >= have:
                continue
            piece = swapped.get(i)
            if piece is None and i < len(hashes):
                piece = next((held[hashes[i]] for held in self._held if hashes[i] in held), None)
            if piece is not None:
                pieces.append(piece)
                targets.append(block)
                tables.filled[block] = have
        if pieces:
            self._kv.copy_in(pieces, targets)
