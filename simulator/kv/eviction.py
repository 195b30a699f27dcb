"""Which cached block goes first: an eviction is a key over free cached blocks, smallest first.

The key is asked for once, when the block becomes free; a hit takes the block out, so that the key stays
right while it waits, and one heap serves all of them. Equal keys go in order of release, which is the tail
of a prefix before its head. `lru` is then exactly vLLM's order (rules 7.1 to 7.3 of its scheduler).

A block is of use only while all blocks before it are cached. So a key counts at least as much as that of
every cached block that follows (`ByKey`): of `fifo`, an old prefix is as young as the youngest answer to
it. Under `lru` and the oracle this holds by itself, since whoever needs a block needs its prefix.

An eviction serves caches with time (`keyed_pool`) and without (`block_cache`) alike.
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
    """An eviction that keeps state of its own; a new object serves each cache.

    For each block, `release` (it became free) and `hit` (a request took the free block) alternate. Hits by
    others while a request holds it show in `block.num_hits` alone.
    """

    def hit(self, block: Block, ctx: EvictionContext) -> None: ...
    def release(self, block: Block, ctx: EvictionContext) -> None: ...
    def evict(self, ctx: EvictionContext) -> Block: ...


Eviction = EvictionKey | type[EvictionQueue]


def lru(block: Block, ctx: EvictionContext) -> Key:
    """Least recently released first, of one sequence the tail first (vLLM; rules 7.1 to 7.3)."""
    return block.last_used


def fifo(block: Block, ctx: EvictionContext) -> Key:
    """Oldest first, used or not (folklore)."""
    return block.created


def lfu(block: Block, ctx: EvictionContext) -> Key:
    """Fewest hits first, then least recently released (folklore)."""
    return block.num_hits


def gdsf(block: Block, ctx: EvictionContext) -> Key:
    """Least recompute time saved per token first, with ageing (GreedyDual-Size-Frequency, HPL-98-69).

    The key of the block evicted last is the age from which all later keys are counted.
    """
    return ctx.evicted_key + (block.num_hits + 1) * block.recompute_time / block.num_tokens


def decay(block: Block, ctx: EvictionContext) -> Key:
    """Lowest score first: the logarithm of the uses so far, halved for every `HALF_LIFE` since the last."""
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


def as_queue(eviction: Eviction) -> EvictionQueue:
    """Make what serves one cache: a new object of a class, or a heap of a function's keys."""
    if isinstance(eviction, type) and all(hasattr(eviction, each) for each in ("release", "hit", "evict")):
        queue: EvictionQueue = eviction()
        return queue
    if isinstance(eviction, type) or not callable(eviction):
        raise ConfigError(
            f"kv.eviction: {eviction!r:.80} is neither a function of (block, ctx) nor a class with release, "
            "hit and evict"
        )
    return ByKey(eviction)


def next_victim(queue: EvictionQueue, ctx: EvictionContext) -> Block:
    """Ask for the block that goes next; ConfigError if it may not go."""
    block: object = queue.evict(ctx)
    if isinstance(block, Block) and block.size and not block.pinned:
        return block
    raise ConfigError(
        f"kv.eviction: {_name(queue)}.evict returned {_described(block)}; it must be a block that was "
        "released and is neither evicted yet nor pinned (block.pinned)"
    )


def _described(block: object) -> str:
    if not isinstance(block, Block):
        return f"{block!r:.80}"
    state = "evicted before" if not block.size else "held by a request" if block.held else "with followers"
    return f"a block {state} (depth {block.depth})"


def _name(policy: object) -> str:
    if isinstance(policy, ByKey):
        policy = policy.eviction
    return getattr(policy, "__name__", type(policy).__name__)


class ByKey:
    """Any key function as an `EvictionQueue`: one heap of (key, number of the release)."""

    def __init__(self, eviction: EvictionKey) -> None:
        self.eviction = eviction
        self._is_raised = eviction not in PREFIX_LAST
        self._heap: list[tuple[Key, int, Block]] = []  # entries whose block was hit since are stale
        self._releases = 0
        self._last: Block | None = None  # the block freed last

    def hit(self, block: Block, ctx: EvictionContext) -> None:
        block.order = 0

    def release(self, block: Block, ctx: EvictionContext) -> None:
        """Ask for the key, and raise it to that of the cached followers."""
        key = self.eviction(block, ctx)
        try:
            if key != key:
                raise self._unordered(block, key, "has no place in an order")
            if self._is_raised:
                key = self._raised(block, key)
            self._releases += 1
            block.key, block.order = key, self._releases
            heapq.heappush(self._heap, (key, block.order, block))
        except (TypeError, ValueError) as error:
            raise self._unordered(block, key, f"does not compare with another: {error}") from error
        self._last = block

    def _raised(self, block: Block, key: Key) -> Key:
        """Raise a key to those of cached followers, and let the predecessor know of it.

        Exact for the follower freed just before. Keys of others are not above the block's own last key, which
        was raised to theirs, and its `floor`: a bound, exact unless the highest was evicted meanwhile.
        """
        last, others = self._last, block.num_children
        if last is not None and last.parent is block:
            others -= 1
            if key < last.key:
                key = last.key
        if others:
            for bound in (block.key, block.floor):
                if bound is not None and key < bound:
                    key = bound
        block.floor = None
        parent = block.parent
        if parent is not None and (parent.floor is None or parent.floor < key):
            parent.floor = key
        return key

    def put_back(self, block: Block) -> None:
        """Let the rest of a run wait where the run was."""
        heapq.heappush(self._heap, (block.key, block.order, block))

    def evict(self, ctx: EvictionContext) -> Block:
        while True:
            key, order, block = self._heap[0]
            try:
                heapq.heappop(self._heap)
            except (TypeError, ValueError) as error:
                raise self._unordered(block, key, f"does not compare with another: {error}") from error
            if block.order == order:
                return block

    def _unordered(self, block: Block, key: Key, why: str) -> ConfigError:
        return ConfigError(
            f"kv.eviction: {_name(self)} gave a block (depth {block.depth}) the key {key!r:.40}, which {why}"
        )
