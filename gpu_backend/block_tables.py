"""Which physical block holds what: the tables behind the scheduler's counts.

The scheduler counts blocks and names cached ones by hashes (`simulator.kv`); it never says which block is
which, since no decision depends on it. This keeps the tables from what a `BlockWatcher` is told. One block
serves each hash, where vLLM's pool may count two copies, so never more blocks are held here than are counted
there. An evicted block stays intact until the step that may overwrite it has begun; what must be copied away
before is found in `leaving` and `left`. `filled` says how many tokens of a block have their KV, so that a hit
on a block that was published and never computed (its owner lost it in the same step) is seen and mended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.kv.tiers import prefix_hashes
from simulator.request import Sequence

Blocks = NDArray[np.int32]


class Table(NamedTuple):
    """A sequence's row in the matrix of tables."""

    row: int
    blocks: list[int]  # how many of the row count, and what they are


class BlockTables:
    """Physical blocks 0..num_blocks-1 and who holds them. Implements `simulator.kv.watch.BlockWatcher`.

    `matrix` holds a row of block numbers for every live sequence, (rows, max_blocks), so that the tables of a
    batch are one indexing. Entries beyond a sequence's blocks are old block numbers, still valid.
    """

    def __init__(self, num_blocks: int, block_size: int, max_blocks: int, num_rows: int = 16) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.matrix: Blocks = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self.filled: Blocks = np.zeros(num_blocks, dtype=np.int32)
        self.tables: dict[Sequence, Table] = {}
        self.unsure: set[Sequence] = set()  # took blocks of others and has had no row since
        self.leaving: dict[int, int] = {}  # hash -> block evicted since the last step began, still intact
        self.left: dict[Sequence, list[int]] = {}  # blocks of sequences released since then
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._rows = list(range(num_rows - 1, -1, -1))
        self._by_hash: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and that no hash names."""
        return len(self._free)

    def of(self, seq: Sequence) -> Blocks:
        """Return a sequence's row of the matrix."""
        row: Blocks = self.matrix[self.tables[seq].row]
        return row

    def find(self, block_hash: int) -> int | None:
        """Return the block that holds a hash, or held it until this step."""
        return self._by_hash.get(block_hash, self.leaving.get(block_hash))

    def grow(self, seq: Sequence, num_blocks: int) -> list[int]:
        """Give a sequence free blocks until it has `num_blocks`; return them all."""
        table = self.tables.get(seq)
        if table is None:
            table = self.tables[seq] = Table(self._take_row(), [])
        blocks = table.blocks
        while len(blocks) < num_blocks:
            self._append(table, self._take())
        return blocks

    def step_begins(self) -> None:
        """Forget what left: the step that begins now may overwrite it."""
        self.leaving.clear()
        self.left.clear()

    # What the block manager tells.

    def hit(self, seq: Sequence, num_blocks: int) -> None:
        table = self.tables[seq] = Table(self._take_row(), [])
        self.unsure.add(seq)
        for block_hash in prefix_hashes(seq.hash_ranges, 0, num_blocks):
            block = self._by_hash.get(block_hash)
            if block is None:  # published, and lost before it was computed
                block = self._take()
                self._name(block, block_hash)
            else:
                self._refs[block] += 1
            self._append(table, block)

    def published(self, seq: Sequence, first: int, end: int) -> None:
        blocks = self.grow(seq, end)
        for i, block_hash in enumerate(prefix_hashes(seq.hash_ranges, first, end), first):
            mine, theirs = blocks[i], self._by_hash.get(block_hash)
            if theirs is None:
                self._name(mine, block_hash)
            elif theirs != mine:
                self._refs[theirs] += 1
                blocks[i] = self.of(seq)[i] = theirs
                self._drop(mine)
                self.unsure.add(seq)

    def released(self, seq: Sequence, num_slots: int, publish: bool) -> None:
        row, blocks = self.tables.pop(seq)
        self.unsure.discard(seq)
        self._rows.append(row)
        if publish:
            full = min(num_slots // self.block_size, len(blocks))
            for block, block_hash in zip(blocks, prefix_hashes(seq.hash_ranges, 0, full), strict=False):
                if block_hash not in self._by_hash and self.filled[block] == self.block_size:
                    self._name(block, block_hash)
        self.left[seq] = blocks
        for block in blocks:
            self._drop(block)

    def evicted(self, lo: int, hi: int) -> None:
        for block_hash in range(lo, hi):
            block = self._by_hash.pop(block_hash, None)
            if block is not None:
                del self._hash_of[block]
                self.leaving[block_hash] = block
                if not self._refs[block]:
                    self._free.append(block)

    # Inside.

    def _take(self) -> int:
        if not self._free:
            raise RuntimeError("the scheduler counts a free block where none is: tables and counts disagree")
        block = self._free.pop()
        self._refs[block] = 1
        self.filled[block] = 0
        return block

    def _drop(self, block: int) -> None:
        """Take a holder away; a block without any stays if it is full and has a hash."""
        self._refs[block] -= 1
        if self._refs[block]:
            return
        block_hash = self._hash_of.get(block)
        if block_hash is not None:
            if self.filled[block] == self.block_size:
                return
            del self._hash_of[block], self._by_hash[block_hash]
        self._free.append(block)

    def _name(self, block: int, block_hash: int) -> None:
        self._by_hash[block_hash] = block
        self._hash_of[block] = block_hash

    def _append(self, table: Table, block: int) -> None:
        self.matrix[table.row, len(table.blocks)] = block
        table.blocks.append(block)

    def _take_row(self) -> int:
        if not self._rows:
            more = len(self.matrix)
            self._rows = list(range(2 * more - 1, more - 1, -1))
            self.matrix = np.concatenate([self.matrix, np.zeros_like(self.matrix)])
        return self._rows.pop()

    def check(self) -> None:
        """Raise AssertionError unless every block is free, cached or held by as many as refer to it."""
        held = [0] * self.num_blocks
        for table in self.tables.values():
            for block in table.blocks:
                held[block] += 1
        assert held == self._refs, "references and tables disagree"
        cached = {block for block in self._hash_of if not self._refs[block]}
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a cached block is free"
        assert len(free) + len(cached) + sum(map(bool, held)) == self.num_blocks, "a block is lost"
