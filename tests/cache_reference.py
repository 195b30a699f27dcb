"""A cache of single blocks with nothing clever in it, to hold `simulator.kv.block_cache` against.

A prompt is a list of ids, each standing for its block and all before it. Whatever is cached is searched from
end to end; policies are written down a second time, over lists.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from simulator.kv.cached_block import Block


class ReferenceCache:
    """`num_blocks` blocks under a key function; keys are raised to those of cached followers if `raised`."""

    def __init__(self, num_blocks: int, key: Callable[[Block, Any], Any], ctx: Any, raised: bool) -> None:
        self.num_blocks = num_blocks
        self.key = key
        self.ctx = ctx
        self.raised = raised
        self.cached: dict[int, Block] = {}  # by id, in order of release; a block held is released last
        self.parent: dict[int, int | None] = {}
        self.keys: dict[int, Any] = {}

    def request(self, now: float, ids: list[int]) -> int:
        self.ctx.now = now
        held = ids[: self.num_blocks]
        hits = len(list(itertools.takewhile(self.cached.__contains__, held)))
        for id in held[:hits]:
            self.cached[id].num_hits += 1
        new = [id for id in held if id not in self.cached]
        while len(self.cached) + len(new) > self.num_blocks:
            free = [id for id in self.cached if id not in held]
            victim = min(free, key=self.keys.__getitem__)  # the first of equals: released first
            self.ctx.evicted_key = self.keys[victim]
            del self.cached[victim], self.keys[victim]
        for id in new:
            depth = ids.index(id)
            block = Block(created=now, depth=depth, price=lambda n, depth: 1 + depth / 30_000)
            self.cached[id], self.parent[id] = block, ids[depth - 1] if depth else None
        for child, id in zip([None, *held[::-1]], held[::-1], strict=False):
            self._release(id, child, now)
        return hits

    def _release(self, id: int, child: int | None, now: float) -> None:
        block = self.cached.pop(id)
        block.last_used = now
        followers = {other for other in self.cached if self.parent[other] == id}
        key = self.key(block, self.ctx)
        if self.raised:
            floors = [self.keys[child]] if child in followers else []
            floors += [self.keys[id]] if followers - {child} and id in self.keys else []
            key = max([key, *floors])
        self.cached[id], self.keys[id] = block, key


def sieve_hits(ids: list[int], num_blocks: int) -> int:
    """Replay single blocks under SIEVE: one list, oldest first, and the index of the hand."""
    queue: list[int] = []
    visited: set[int] = set()
    hand = hits = 0
    for id in ids:
        if id in queue:
            hits += 1
            visited.add(id)
            continue
        if len(queue) == num_blocks:
            while queue[hand] in visited:
                visited.discard(queue[hand])
                hand = (hand + 1) % len(queue)
            del queue[hand]
            hand = hand if hand < len(queue) else 0
        queue.append(id)
    return hits


def slru_hits(ids: list[int], num_blocks: int) -> int:
    """Replay single blocks under SLRU with four fifths protected: two lists, oldest first."""
    probation: list[int] = []
    protected: list[int] = []
    hits = 0
    for id in ids:
        if id in probation or id in protected:
            hits += 1
            (probation if id in probation else protected).remove(id)
            protected.append(id)
            if len(protected) > int(0.8 * num_blocks):
                probation.append(protected.pop(0))
            continue
        if len(probation) + len(protected) == num_blocks:
            (probation or protected).pop(0)
        probation.append(id)
    return hits


def most_hits(prompts: list[list[int]], num_blocks: int) -> int:
    """Try every choice of what to evict, and return the most blocks that can hit."""
    best = {frozenset[int](): 0}
    for ids in prompts:
        held = ids[:num_blocks]
        after: dict[frozenset[int], int] = {}
        for cached, hits in best.items():
            now = hits + len(list(itertools.takewhile(cached.__contains__, held)))
            others = sorted(cached - set(held))
            for kept in itertools.combinations(others, min(len(others), num_blocks - len(held))):
                state = frozenset((*held, *kept))
                after[state] = max(after.get(state, 0), now)
        best = after
    return max(best.values())
