"""Prefix ids of a trace, and the block hashes that they become in the simulated cache.

A trace with block size B gives each request one id per B prompt tokens; an id stands for its block and all
before it (Mooncake FAST'25, ceil(prompt/B) ids; kv-cache-tester, floor(prompt/B)). A cache with blocks of
b tokens knows its block i by the id that covers the block's last token, and by i. When b divides B, that
is the integer id * (B/b) + j for the j-th block within the id, so that consecutive ids form one range.
Ids that are not chained in this way (one id at two places) are renumbered until they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.request import HashRange

Ints = NDArray[np.int64]

MAX_HASH = 1 << 59
"""Hashes stay below this; `simulator.kv.prefix.PRIVATE_BASE` begins above."""


@dataclass(frozen=True, slots=True)
class BlockRanges:
    """Hash ranges of all requests: request i owns `lo[offsets[i]:offsets[i+1]]`, and the same of `hi`."""

    lo: Ints
    hi: Ints
    offsets: Ints

    def of(self, i: int) -> tuple[HashRange, ...]:
        rows = slice(self.offsets[i], self.offsets[i + 1])
        return tuple(zip(self.lo[rows].tolist(), self.hi[rows].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class TraceBlocks:
    """Ids of a whole trace: request i owns `ids[offsets[i]:offsets[i+1]]`, each of `block_size` tokens."""

    ids: Ints
    offsets: Ints
    block_size: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, i: int) -> list[int]:
        ids: list[int] = self.ids[self.offsets[i] : self.offsets[i + 1]].tolist()
        return ids

    def rows(self, lo: int, hi: int) -> TraceBlocks:
        """Keep the requests lo..hi-1."""
        offsets = self.offsets[lo : hi + 1]
        return TraceBlocks(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0], self.block_size)

    def reordered(self, order: Ints) -> TraceBlocks:
        """Put request `order[i]` at row i."""
        counts = np.diff(self.offsets)[order]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        start = np.repeat(self.offsets[:-1][order] - offsets[:-1], counts)
        return TraceBlocks(self.ids[start + np.arange(offsets[-1])], offsets, self.block_size)

    def ranges(self, num_prompt: Ints, block_size: int) -> BlockRanges:
        """Name the full blocks of `block_size` tokens of each prompt, as far as ids cover them.

        A last id that covers only part of its block names something only for prompts that end there too.
        """
        index, end = self._index(), self._end(num_prompt)
        start = index * self.block_size
        ids = self._chained(index, np.where(end - start < self.block_size, end, 0))
        per_id = -(-self.block_size // block_size)
        if len(ids) and (ids.min() < 0 or int(ids.max()) * per_id >= MAX_HASH):
            ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
        count = end // block_size - start // block_size
        lo, count = (ids * per_id)[count > 0], count[count > 0]
        request = self._request()[end // block_size > start // block_size]
        joins = np.zeros(len(lo), bool)
        joins[1:] = (request[1:] == request[:-1]) & (lo[1:] == lo[:-1] + count[:-1])
        first = np.flatnonzero(~joins)
        last = np.append(first[1:], len(lo)) - 1 if len(lo) else first
        offsets = np.searchsorted(request[first], np.arange(len(self) + 1))
        return BlockRanges(lo[first], lo[last] + count[last], offsets)

    def hit_blocks(self) -> Ints:
        """Count, per request, the leading ids that earlier requests had: hits of an unlimited cache."""
        seen = np.ones(len(self.ids), bool)
        seen[np.unique(self.ids, return_index=True)[1]] = False
        index = self._index()
        hits = np.diff(self.offsets)
        new = np.flatnonzero(~seen)
        np.minimum.at(hits, self._request()[new], index[new])
        return hits

    def _request(self) -> Ints:
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def _index(self) -> Ints:
        """Place of each id within its request."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    def _end(self, num_prompt: Ints) -> Ints:
        """Prompt tokens up to the end of each id's block."""
        return np.minimum((self._index() + 1) * self.block_size, num_prompt[self._request()])

    def _chained(self, index: Ints, partial: Ints) -> Ints:
        """Return ids of which each has one place, one predecessor and one value of `partial`."""
        before = np.roll(self.ids, 1)
        before[index == 0] = -1
        _, first, same = np.unique(self.ids, return_index=True, return_inverse=True)
        facts = np.stack([index, before, partial])
        if not len(first) or (facts == facts[:, first[same]]).all():
            return self.ids
        fresh = int(self.ids.max()) + 1
        names: dict[tuple[int, int, int], int] = {}
        taken: set[int] = set()
        chained = self.ids.copy()
        parent = -1
        rows = zip(self.ids.tolist(), index.tolist(), partial.tolist(), strict=True)
        for k, (id, place, part) in enumerate(rows):
            key = (parent if place else -1, id, part)
            if key not in names:
                names[key] = fresh + len(names) if id in taken else id
                taken.add(id)
            chained[k] = parent = names[key]
        return chained
