"""The radix tree of KV blocks, one block at a time: what `simulator.kv.keyed_pool` must agree with.

A block's hash is the tuple of all tokens up to its end; one block a hash. Whatever may go is searched from
end to end. A function's keys are raised by the rule that `ByKey` states, written down a second time; a class
is given the blocks one by one. Slow on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simulator.kv.cached_block import Block

Prefix = tuple[object, ...]


class ReferenceTree:
    """The blocks of one GPU under one eviction, and the block table of every running sequence, by its id."""

    def __init__(self, num_blocks: int, block_size: int, eviction: Any, ctx: Any) -> None:
        self.block_size = block_size
        self.queue = eviction() if isinstance(eviction, type) else None
        self.key = eviction
        self.ctx = ctx
        self.num_unhashed = num_blocks
        self.num_evicted = 0
        self.cached: dict[Prefix, Block] = {}
        self.holders: dict[Prefix, set[str]] = {}
        self.free: dict[Prefix, None] = {}  # in order of release
        self.keys: dict[Prefix, Any] = {}  # of the last release
        self.floors: dict[Prefix, Any] = {}  # highest key of followers freed since
        self.last: Prefix | None = None  # freed last
        self.tables: dict[str, list[Prefix | None]] = {}

    @property
    def num_free(self) -> int:
        return self.num_unhashed + len(self.free)

    def hashes(self, tokens: list[object], upto: int) -> list[Prefix]:
        return [tuple(tokens[: (i + 1) * self.block_size]) for i in range(upto)]

    def lookup(self, tokens: list[object]) -> list[Prefix]:
        found: list[Prefix] = []
        for prefix in self.hashes(tokens, (len(tokens) - 1) // self.block_size):
            if prefix not in self.cached:
                break
            found.append(prefix)
        return found

    def admit(self, id: str, tokens: list[object], n: int, num_shared: int, must_fit: int) -> bool:
        """Allocate to a waiting sequence its hits and slots for n more tokens."""
        hits = self.lookup(tokens)
        slots = len(hits) * self.block_size + n
        for total in (must_fit, slots):
            need = max(0, -(-total // self.block_size) - len(hits)) + sum(hit in self.free for hit in hits)
            if need > self.num_free:
                return False
        self.tables[id] = []
        for hit in hits:
            self._hold(id, hit)
            self.tables[id].append(hit)
        self._grow(id, tokens, slots, num_shared)
        return True

    def allocate(self, id: str, tokens: list[object], slots: int, num_shared: int) -> bool:
        """Allocate to a running sequence up to `slots` slots."""
        if -(-slots // self.block_size) - len(self.tables[id]) > self.num_free:
            return False
        self._grow(id, tokens, slots, num_shared)
        return True

    def release(self, id: str, tokens: list[object], slots: int) -> None:
        self._register(id, tokens, slots // self.block_size)
        table = self.tables.pop(id)
        self.num_unhashed += table.count(None)
        for prefix in reversed([each for each in table if each is not None]):
            self.holders[prefix].discard(id)
            if not self.holders[prefix]:
                self._free(prefix)

    def _grow(self, id: str, tokens: list[object], slots: int, num_shared: int) -> None:
        table = self.tables[id]
        for _ in range(-(-slots // self.block_size) - len(table)):
            if self.num_unhashed:
                self.num_unhashed -= 1
            else:
                self._evict()
            table.append(None)
        self._register(id, tokens, min(slots // self.block_size, num_shared))

    def _register(self, id: str, tokens: list[object], upto: int) -> None:
        table = self.tables[id]
        for i, prefix in enumerate(self.hashes(tokens, upto)):
            if table[i] is not None:
                continue
            table[i] = prefix
            if prefix in self.cached:
                self._hold(id, prefix)
                self.num_unhashed += 1
                continue
            block = Block(
                created=self.ctx.now,
                depth=i,
                num_tokens=self.block_size,
                tenant=id,
                price=lambda n, depth: self.ctx.recompute_time(n, depth * self.block_size),
                parent=self.cached[table[i - 1]] if i else None,  # type: ignore[index]  # filled in order
                piece=hash(prefix),
            )
            if block.parent is not None:
                block.parent.num_children += 1
            self.cached[prefix], self.holders[prefix] = block, {id}

    def _hold(self, id: str, prefix: Prefix) -> None:
        self.cached[prefix].num_hits += 1
        self.holders[prefix].add(id)
        if prefix in self.free:
            del self.free[prefix]
            self.cached[prefix].held = True
            if self.queue is not None:
                self.queue.hit(self.cached[prefix], self.ctx)

    def _free(self, prefix: Prefix) -> None:
        block = self.cached[prefix]
        block.held = False
        block.last_used = self.ctx.now
        if self.queue is not None:
            self.queue.release(block, self.ctx)
        else:
            self.keys[prefix] = self._raised(prefix, self.key(block, self.ctx))
            parent = prefix[: -self.block_size]
            self.floors[parent] = max([self.keys[prefix], *_known(self.floors, parent)])
            self.floors.pop(prefix, None)
            self.last = prefix
        self.free[prefix] = None

    def _raised(self, prefix: Prefix, key: Any) -> Any:
        followers = {each for each in self.cached if each[: -self.block_size] == prefix}
        last = {self.last} if self.last in followers and self.last in self.free else set()
        keys = [self.keys[each] for each in last]
        if followers - last:
            keys += [*_known(self.keys, prefix), *_known(self.floors, prefix)]
        return max([key, *keys])

    def _evict(self) -> None:
        if self.queue is None:
            victim = min(self.free, key=lambda prefix: self.keys[prefix])  # of equals the one freed first
            self.ctx.evicted_key = self.keys.pop(victim)
        else:
            block = self.queue.evict(self.ctx)
            victim = next(prefix for prefix, each in self.cached.items() if each is block)
        assert all(each[: -self.block_size] != victim for each in self.cached), "has followers"
        block = self.cached.pop(victim)
        block.size = 0
        if block.parent is not None:
            block.parent.num_children -= 1
        del self.free[victim], self.holders[victim]
        self.floors.pop(victim, None)
        self.num_evicted += 1


def _known(keys: dict[Prefix, Any], prefix: Prefix) -> Iterable[Any]:
    return [keys[prefix]] if prefix in keys else []
