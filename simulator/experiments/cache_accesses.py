"""The requests of a trace as a cache sees them: which blocks, in which order, each needed next when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError, InputError
from simulator.kv.block_cache import Piece
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Workload

Ints = NDArray[np.int64]

MAX_SINGLES = 20_000_000
"""Blocks of a trace that are told one by one, as some evictions need it; about 2 GB."""


@dataclass(frozen=True)
class Accesses:
    """The blocks of each request, as runs of `blocks`; blocks are numbers, and each knows its prefix.

    `may_hit` is how many leading blocks of a request may hit, `num_blocks` how many it has by the trace.
    """

    blocks: TraceBlocks
    may_hit: Ints
    num_blocks: Ints
    num_prompt: Ints
    arrival: NDArray[np.float64]
    tenants: list[str] | None

    @classmethod
    def of(cls, workload: Workload, block_size: int | None = None, vllm_rules: bool = False) -> Accesses:
        """Read the prefix ids of a workload, for blocks of `block_size` tokens (None: the trace's own).

        Every id of the trace counts, also that of a last block that its prompt fills partly. Under
        `vllm_rules`, and for another block size, only full blocks are cached; under `vllm_rules` the block
        with the last prompt token never hits. InputError if the trace has no prefix ids.
        """
        ids = workload.blocks
        if ids is None or not len(ids.lo):
            raise InputError(f"{workload.source or 'trace'}: has no prefix ids (hash_ids): nothing to cache")
        size = ids.block_size if block_size is None else block_size
        if size < 1:
            raise ConfigError(f"block_size: must be >= 1, got {size}")
        prompt, covered = workload.num_prompt, ids.num_ids * ids.block_size
        every_id = size == ids.block_size and not vllm_rules
        ranges = ids.ranges(covered if every_id else prompt, size)
        blocks = TraceBlocks(ranges.lo, ranges.hi, ranges.offsets, size)
        num_blocks = ids.num_ids if every_id else -(-np.minimum(covered, prompt) // size)
        may_hit = np.maximum(prompt - 1, 0) // size if vllm_rules else num_blocks
        return cls(blocks.pieces(), may_hit, num_blocks, prompt, workload.arrival, workload.tenants)

    def __len__(self) -> int:
        return len(self.num_prompt)

    @property
    def block_size(self) -> int:
        return self.blocks.block_size

    @property
    def num_distinct(self) -> int:
        """Blocks that a cache would need to keep all."""
        return self.blocks.num_distinct

    @cached_property
    def singles(self) -> Accesses:
        """The same with every piece cut into its blocks; ConfigError if they are too many."""
        length = self.blocks.hi - self.blocks.lo
        total = int(length.sum())
        if total > MAX_SINGLES:
            raise ConfigError(
                f"cache: {total:,} blocks are more than the {MAX_SINGLES:,} that an eviction with queues or "
                "of your own can be replayed with; give a larger --block-size, or cut the trace"
            )
        ends = np.concatenate([[0], np.cumsum(length)])
        ids = np.repeat(self.blocks.lo - ends[:-1], length) + np.arange(total)
        single = TraceBlocks(ids, ids + 1, ends[self.blocks.offsets], self.block_size)
        return replace(self, blocks=single)

    @cached_property
    def _names(self) -> tuple[Ints, Ints]:
        """Which run is the first of each piece, and which piece each run is."""
        _, first, piece = np.unique(self.blocks.lo, return_index=True, return_inverse=True)
        return first, piece

    @cached_property
    def pieces(self) -> list[Piece]:
        """The pieces by number."""
        first, _ = self._names
        runs, offsets = self.blocks, self.blocks.offsets
        length = runs.hi - runs.lo
        ends = np.cumsum(length)
        request = np.searchsorted(offsets, first, side="right") - 1
        start_of = np.concatenate([[0], ends])[offsets[:-1]]
        tokens = self.num_prompt[request] - (ends[first] - start_of[request] - 1) * self.block_size
        tokens = np.clip(tokens, 1, self.block_size)
        return [Piece(n, t) for n, t in zip(length[first].tolist(), tokens.tolist(), strict=True)]

    @cached_property
    def rows(self) -> list[tuple[float, list[int], list[float], str]]:
        """One row per request: a time, its pieces, the request that needs each next, and the tenant.

        Times are arrivals in seconds, equal ones set apart by the least there is: their order decides.
        """
        _, piece = self._names
        request = np.repeat(np.arange(len(self)), np.diff(self.blocks.offsets))
        by_piece = np.lexsort((request, piece))
        after = np.full(len(piece), np.inf)
        same = piece[by_piece[1:]] == piece[by_piece[:-1]]
        after[by_piece[:-1][same]] = request[by_piece[1:][same]]
        names, nexts, at = piece.tolist(), after.tolist(), self.blocks.offsets.tolist()
        tenants = self.tenants or [""] * len(self)
        return [
            (now, names[at[i] : at[i + 1]], nexts[at[i] : at[i + 1]], tenants[i])
            for i, now in enumerate(_increasing(self.arrival))
        ]

    def unlimited_hits(self) -> Ints:
        """Hits of each request in a cache that forgets nothing."""
        return np.minimum(self.blocks.hit_blocks(), self.may_hit)

    def tokens(self, hits: Ints) -> int:
        """Prompt tokens in the blocks that hit, given as blocks of each request."""
        return int(np.minimum(hits * self.block_size, self.num_prompt).sum())


def _increasing(times: NDArray[np.float64]) -> Iterator[float]:
    last = -np.inf
    for time in times.tolist():
        last = time if time > last else float(np.nextafter(last, np.inf))
        yield last
