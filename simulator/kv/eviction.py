"""Which cached block goes first: an eviction is a key over free cached blocks, smallest first.

The key is asked for once, when the block becomes free; a hit takes the block out, so that the key stays
right while it waits, and one heap serves all of them. Equal keys go in order of release, which is the tail
of a prefix before its head. `lru` is then exactly vLLM's order (rules 7.1 to 7.3 of its scheduler).

A block is of use only while all blocks before it are cached. So a key counts at least as much as that of
every cached block that follows (`ByKey`): of `fifo`, an old prefix is as young as the youngest answer to
it. Under `lru` and the oracle this holds by itself, since whoever needs a block needs its prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import log2
from typing import Any, Protocol

from simulator.errors import ConfigError
from simulator.kv.cached_block import Block, EvictionContext, FutureContext
from simulator.kv.eviction_queues import S3Fifo, Sieve, Slru

Key = Any  # a number or tuple, comparable with the other keys of the same eviction
EvictionKey = Callable[[Block, Any], Key]

HALF_LIFE = 600.0
"""Seconds in which an unused block's score halves under `decay`: an assumption, some think times long."""


class EvictionQueue(Protocol):
    """An eviction that keeps state of its own; a new object serves each cache."""

    def hit(self, block: Block, ctx: EvictionContext) -> None: ...
    def release(self, block: Block, ctx: EvictionContext) -> None: ...
    def evict(self, ctx: EvictionContext) -> Block: ...


Eviction = EvictionKey | type[EvictionQueue]


def lru(block: Block, ctx: EvictionContext) -> Key:
    """Least recently released first, of one sequence the tail first: vLLM's order."""
    return block.last_used


def fifo(block: Block, ctx: EvictionContext) -> Key:
    """Oldest first, used or not."""
    return block.created


def lfu(block: Block, ctx: EvictionContext) -> Key:
    """Fewest hits first, then least recently released."""
    return block.num_hits


def gdsf(block: Block, ctx: EvictionContext) -> Key:
    """Least recompute time saved per token first, with ageing (GreedyDual-Size-Frequency, HPL-98-69).

    The key of the block evicted last is the age from which all later keys are counted.
    """
    return ctx.evicted_key + (block.num_hits + 1) * block.recompute_time / block.num_tokens


def decay(block: Block, ctx: EvictionContext) -> Key:
    """Lowest score first: uses so far, halved for every `HALF_LIFE` since the last one (its logarithm)."""
    return log2(block.num_hits + 1) + block.last_used / HALF_LIFE


def belady(block: Block, ctx: FutureContext) -> Key:
    """Furthest next use first: an oracle, and the best that a replay allows (Belady, IBM Sys. J. 1966)."""
    return -ctx.next_use(block)


EVICTIONS: dict[str, Eviction] = {
    "lru": lru,
    "fifo": fifo,
    "lfu": lfu,
    "gdsf": gdsf,
    "decay": decay,
    "sieve": Sieve,
    "s3fifo": S3Fifo,
    "slru": Slru,
}
"""Evictions that a server could use; `belady` is none of them."""

ONE_KEY_A_RUN: frozenset[object] = frozenset({lru, fifo, lfu, gdsf, decay, belady})
"""Keys that are equal for blocks cached and freed together, once raised: the last block's is the highest."""

PREFIX_LAST: frozenset[object] = frozenset({lru, belady})
"""Keys that are never below those of cached followers, without being raised."""


class ByKey:
    """Any key function as an `EvictionQueue`: one heap of (key, number of the release)."""

    def __init__(self, eviction: EvictionKey) -> None:
        self._eviction = eviction
        self._is_raised = eviction not in PREFIX_LAST
        self._heap: list[tuple[Key, int, Block]] = []  # entries whose block was hit since are stale
        self._releases = 0

    def hit(self, block: Block, ctx: EvictionContext) -> None:
        block.order = 0

    def release(self, block: Block, ctx: EvictionContext) -> None:
        """Ask for the key, and raise it to that of the cached followers.

        The follower just released is `child`. Keys of others are not above this block's own last key, which
        was raised to theirs: a bound, exact unless the highest of them was evicted meanwhile.
        """
        key = self._eviction(block, ctx)
        if key != key:
            raise ConfigError("kv.eviction: the key of a block is nan, which has no place in an order")
        if self._is_raised:
            child = block.child
            if child is not None and key < child.key:
                key = child.key
            if block.num_children > (child is not None) and key < block.key:
                key = block.key
        self._releases += 1
        block.key, block.order = key, self._releases
        heapq.heappush(self._heap, (key, block.order, block))

    def put_back(self, block: Block) -> None:
        """Let the rest of a run wait where the run was."""
        heapq.heappush(self._heap, (block.key, block.order, block))

    def evict(self, ctx: EvictionContext) -> Block:
        while True:
            _key, order, block = heapq.heappop(self._heap)
            if block.order == order:
                return block
