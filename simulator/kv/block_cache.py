"""A cache of blocks that requests use one after the other: a block pool without time.

A request holds its blocks, first what is cached of its prefix, then new ones that evict others; then it lets
go of them, the last block first. Nothing else runs meanwhile, so no request ever waits. One that needs more
blocks than there are keeps the first that fit. Cached prefixes have no holes.

Prefixes come as pieces: blocks that every request has all of or none of. A piece is cached from its head up
to some block, as runs of blocks with the same history; a key function that does not tell the blocks of a
run apart costs as much for a run as for a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulator.kv.cached_block import Block
from simulator.kv.eviction import Eviction, as_queue, next_victim

ATTENTION_CONTEXT = 30_000
"""Tokens of context whose attention costs as much as the rest of a token's forward pass: for Llama-3.1-8B
2 * 8.0e9 FLOP over 4 * 32 layers * 4096 FLOP a token of context (specs/models.py)."""


class Piece(NamedTuple):
    """Consecutive blocks of a prefix. `tokens` are those of its last block, which may be partly filled."""

    length: int
    tokens: int


class ReplayContext:
    """What a policy may look at during a replay."""

    __slots__ = ("evicted_key", "free_blocks", "next_uses", "now", "num_blocks")

    def __init__(self, num_blocks: int, num_pieces: int) -> None:
        self.now = 0.0
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks
        self.evicted_key: object = 0.0
        self.next_uses = [float("inf")] * num_pieces

    def next_use(self, block: Block) -> float:
        return self.next_uses[block.piece]


class BlockCache:
    """`num_blocks` blocks of `block_size` tokens under one eviction, for requests made of `pieces`.

    A class is made into a new object; a function becomes a `ByKey`. Only a function in `ONE_KEY_A_RUN` may
    be given pieces of more than one block.
    """

    def __init__(self, num_blocks: int, eviction: Eviction, pieces: Sequence[Piece], block_size: int) -> None:
        if num_blocks < 0:
            raise ValueError(f"num_blocks must be >= 0, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_unused = num_blocks
        self.ctx = ReplayContext(num_blocks, len(pieces))
        self._pieces = pieces
        self._block_size = block_size
        self._price = self._recompute_time
        self._queue = as_queue(eviction)
        self._put_back: Callable[[Block], None] = getattr(self._queue, "put_back", _cannot_split)
        self._runs: list[list[Block]] = [[] for _ in pieces]
        self._cached = [0] * len(pieces)

    def request(self, now: float, pieces: Sequence[int], tenant: str = "") -> int:
        """Serve one request, whose prefix these pieces are; return how many of its blocks were cached."""
        ctx, queue, cached = self.ctx, self._queue, self._cached
        ctx.now = now
        room, depth, num_hits = self.num_blocks, 0, 0
        held: list[Block] = []
        missing: list[tuple[int, int, int]] = []  # piece, blocks of it, depth of the last of them
        for piece in pieces:
            if not room:
                break
            wanted = min(self._pieces[piece].length, room)
            for block in self._runs[piece]:
                block.num_hits += 1
                block.held = True
                queue.hit(block, ctx)
                held.append(block)
            num_hits += cached[piece]
            room -= wanted
            depth += wanted
            if wanted > cached[piece]:
                missing.append((piece, wanted - cached[piece], depth - 1))
        ctx.free_blocks = room
        self._make_room(self.num_blocks - room - num_hits)
        for piece, size, last in missing:
            held.append(self._new(piece, size, last, held[-1] if held else None, tenant))
        self._release(held)
        return num_hits

    def cached_blocks(self) -> int:
        """Count the blocks cached."""
        return sum(self._cached)

    def _new(self, piece: int, size: int, depth: int, parent: Block | None, tenant: str) -> Block:
        self._cached[piece] += size
        length, tokens = self._pieces[piece]
        num_tokens = tokens if self._cached[piece] == length else self._block_size
        block = Block(
            created=self.ctx.now,
            depth=depth,
            num_tokens=num_tokens,
            tenant=tenant,
            price=self._price,
            size=size,
            parent=parent,
            piece=piece,
        )
        if parent is not None:
            parent.num_children += 1
        self._runs[piece].append(block)
        return block

    def _recompute_time(self, num_tokens: int, depth: int) -> float:
        """Price a block in forward passes of one token without context: a replay knows no GPU."""
        return num_tokens * (1 + depth * self._block_size / ATTENTION_CONTEXT)

    def _release(self, held: list[Block]) -> None:
        ctx, queue = self.ctx, self._queue
        for block in reversed(held):
            block.held = False
            block.last_used = ctx.now
            ctx.free_blocks += block.size
            queue.release(block, ctx)

    def _make_room(self, num_new: int) -> None:
        """Take blocks for a request: unused ones, then those evicted from the tails of runs."""
        overdue = num_new - self.num_unused
        self.num_unused = max(-overdue, 0)
        while overdue > 0:
            block = next_victim(self._queue, self.ctx)
            n = min(overdue, block.size)
            overdue -= n
            block.size -= n
            self._cached[block.piece] -= n
            self.ctx.evicted_key = block.key
            if block.size:
                block.depth -= n
                block.num_tokens = self._block_size
                self._put_back(block)
                continue
            self._runs[block.piece].pop()
            if block.parent is not None:
                block.parent.num_children -= 1
                block.parent = None


def _cannot_split(block: Block) -> None:
    raise ValueError("an eviction that keeps queues of its own needs pieces of one block")
