"""Prefix ids of a trace, and the block hashes that they become in the simulated cache.

A trace with block size B gives each request one id per B prompt tokens; an id stands for its block and all
before it (Mooncake FAST'25, ceil(prompt/B) ids; kv-cache-tester, floor(prompt/B)). A cache with blocks of
b tokens knows its block i by the id that covers the block's last token, and by i. When b divides B, that
is the integer id * (B/b) + j for the j-th block within the id, so that consecutive ids form one range.
Ids that are not chained in this way (one id at two places) are renumbered until they are.

Ids are kept as runs of consecutive ones: a session of an agent repeats its prefix in every turn, and the
94 million ids of the kv-cache-tester sessions are 164 thousand runs.
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
    """Ids of a whole trace, each of `block_size` tokens, as runs lo[k]..hi[k]-1.

    Request i owns the runs offsets[i]..offsets[i+1]-1. No run is empty.
    """

    lo: Ints
    hi: Ints
    offsets: Ints
    block_size: int

    @classmethod
    def of_ids(cls, ids: Ints, offsets: Ints, block_size: int) -> TraceBlocks:
        """Make runs of ids given one by one; request i owns ids[offsets[i]:offsets[i+1]]."""
        joins = np.diff(ids, prepend=0) == 1
        joins[offsets[:-1][offsets[:-1] < len(ids)]] = False
        first = np.flatnonzero(~joins)
        last = np.append(first[1:], len(ids))[: len(first)] - 1
        return cls(ids[first], ids[last] + 1, np.searchsorted(first, offsets), block_size)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_ids(self) -> Ints:
        """Ids of each request."""
        total = np.concatenate([[0], np.cumsum(self.hi - self.lo)])
        return np.diff(total[self.offsets])

    @property
    def num_distinct(self) -> int:
        """Ids that differ, over all requests."""
        pieces = self.pieces()
        first = np.unique(pieces.lo, return_index=True)[1]
        return int((pieces.hi - pieces.lo)[first].sum())

    def of(self, i: int) -> list[int]:
        runs = slice(self.offsets[i], self.offsets[i + 1])
        pairs = zip(self.lo[runs].tolist(), self.hi[runs].tolist(), strict=True)
        return [id for lo, hi in pairs for id in range(lo, hi)]

    def take(self, rows: Ints) -> TraceBlocks:
        """Put request `rows[i]` at row i."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        k = np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return TraceBlocks(self.lo[k], self.hi[k], offsets, self.block_size)

    def pieces(self) -> TraceBlocks:
        """Cut the runs until any two are equal or have no id in common."""
        return self._cut(np.unique(np.concatenate([self.lo, self.hi])))

    def hit_blocks(self) -> Ints:
        """Count, per request, the leading ids that earlier requests had: hits of an unlimited cache."""
        pieces = self.pieces()
        seen = np.ones(len(pieces.lo), bool)
        seen[np.unique(pieces.lo, return_index=True)[1]] = False
        return pieces._leading(seen)

    def shared_blocks(self) -> Ints:
        """Count, per request, the leading ids that other requests have too, earlier or later ones."""
        pieces = self.pieces()
        _, same, count = np.unique(pieces.lo, return_inverse=True, return_counts=True)
        return pieces._leading(count[same] > 1)

    def _leading(self, kept: NDArray[np.bool_]) -> Ints:
        """Count, per request, the ids before its first run that is not kept."""
        found, first = self.num_ids, np.flatnonzero(~kept)
        np.minimum.at(found, self._request()[first], self._index()[first])
        return found

    def ranges(self, num_prompt: Ints, block_size: int) -> BlockRanges:
        """Name the full blocks of `block_size` tokens of each prompt, as far as ids cover them.

        A last id that covers only part of its block names something only for prompts that end there too.
        """
        b = self.block_size
        runs = self if b % block_size == 0 else self._singles()
        runs = runs._split_last(runs.num_ids * b > num_prompt).pieces()
        index, request = runs._index(), runs._request()
        start, end = index * b, np.minimum((index + runs.hi - runs.lo) * b, num_prompt[request])
        lo = runs._chained(index, np.where(end % b > 0, end, 0))
        per_id = -(-b // block_size)
        if len(lo) and (lo.min() < 0 or int(lo.max() + (runs.hi - runs.lo).max()) * per_id >= MAX_HASH):
            lo = _renumbered(lo, runs.hi - runs.lo)
        count = end // block_size - start // block_size
        lo, request, count = (lo * per_id)[count > 0], request[count > 0], count[count > 0]
        joins = np.zeros(len(lo), bool)
        joins[1:] = (request[1:] == request[:-1]) & (lo[1:] == lo[:-1] + count[:-1])
        first = np.flatnonzero(~joins)
        last = np.append(first[1:], len(lo)) - 1 if len(lo) else first
        offsets = np.searchsorted(request[first], np.arange(len(self) + 1))
        return BlockRanges(lo[first], lo[last] + count[last], offsets)

    def _request(self) -> Ints:
        """Request of each run."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def _index(self) -> Ints:
        """Place of each run's first id within its request."""
        before = np.concatenate([[0], np.cumsum(self.hi - self.lo)])
        index: Ints = before[:-1] - np.repeat(before[self.offsets[:-1]], np.diff(self.offsets))
        return index

    def _cut(self, at: Ints) -> TraceBlocks:
        """Cut the runs at the ids `at`, sorted, which include all ends of runs."""
        first, last = np.searchsorted(at, self.lo), np.searchsorted(at, self.hi)
        ends = np.concatenate([[0], np.cumsum(last - first)])
        k = np.repeat(first - ends[:-1], last - first) + np.arange(ends[-1])
        return TraceBlocks(at[k], at[k + 1], ends[self.offsets], self.block_size)

    def _singles(self) -> TraceBlocks:
        """Cut the runs into runs of one id."""
        length = self.hi - self.lo
        ends = np.concatenate([[0], np.cumsum(length)])
        ids = np.repeat(self.lo - ends[:-1], length) + np.arange(ends[-1])
        return TraceBlocks(ids, ids + 1, ends[self.offsets], self.block_size)

    def _split_last(self, which: NDArray[np.bool_]) -> TraceBlocks:
        """Make the last id of these requests a run of its own."""
        last = (self.offsets[1:] - 1)[which]
        cut = self.hi.copy()
        cut[last] -= 1
        lo, hi = np.insert(self.lo, last + 1, cut[last]), np.insert(cut, last + 1, self.hi[last])
        offsets = self.offsets + np.concatenate([[0], np.cumsum(which)])
        full = np.concatenate([[0], np.cumsum(hi > lo)])
        return TraceBlocks(lo[hi > lo], hi[hi > lo], full[offsets], self.block_size)

    def _chained(self, index: Ints, partial: Ints) -> Ints:
        """Return the `lo` of pieces of which each has one place, one predecessor and one `partial`."""
        before = np.roll(self.hi, 1)
        before[index == 0] = -1
        _, first, same = np.unique(self.lo, return_index=True, return_inverse=True)
        facts = np.stack([index, before, partial])
        if not len(first) or (facts == facts[:, first[same]]).all():
            return self.lo
        fresh = int(self.hi.max())
        names: dict[tuple[int, int, int], int] = {}
        taken: set[int] = set()
        chained = self.lo.copy()
        parent = -1
        columns = (self.lo, self.hi - self.lo, index, partial)
        for k, (lo, length, place, part) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            key = (parent if place else -1, lo, part)
            if key not in names:
                names[key] = fresh if lo in taken else lo
                fresh += length if lo in taken else 0
                taken.add(lo)
            chained[k] = parent = names[key]
        return chained


def _renumbered(lo: Ints, length: Ints) -> Ints:
    """Number the pieces densely from 0, each as many ids as it is long."""
    _, first, same = np.unique(lo, return_index=True, return_inverse=True)
    ends: Ints = np.cumsum(length[first])
    return (ends - length[first])[same]
