"""Evictions that keep queues of their own, which no single key can express.

`hit` says that a request found a free block and now holds it, `release` that a block became free, `evict`
asks for a block that is not `pinned`, and forgets it. Blocks of a prefix are released tail first. SIEVE and
S3-FIFO look only at blocks at the end of their queues, where a pinned one passes as if it had just been hit,
and count by `block.num_hits`, so that hits of a block in use count too.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from simulator.kv.cached_block import Block, EvictionContext


class Sieve:
    """Pass over blocks that were hit since the hand last came by, in order of creation (NSDI 2024, alg. 1).

    The queue is cut at the hand: `_ahead` is still to be looked at, `_behind` older and looked at.
    """

    def __init__(self) -> None:
        self._ahead: deque[Block] = deque()
        self._behind: deque[Block] = deque()
        self._seen: dict[Block, int] = {}  # hits when the hand last came by

    def hit(self, block: Block, ctx: EvictionContext) -> None:
        pass

    def release(self, block: Block, ctx: EvictionContext) -> None:
        if block not in self._seen:
            self._seen[block] = 0
            self._ahead.append(block)

    def evict(self, ctx: EvictionContext) -> Block:
        found = None
        while found is None:
            block = self._ahead.popleft()
            if block.pinned or block.num_hits > self._seen[block]:
                self._seen[block] = block.num_hits
                self._behind.append(block)
            else:
                found = block
            if not self._ahead:
                self._ahead, self._behind = self._behind, self._ahead
        del self._seen[found]
        return found


class S3Fifo:
    """Try new blocks in a small queue; keep those hit twice in a main one (SOSP 2023, alg. 1).

    As in the authors' libCacheSim, the main queue also takes new blocks until the first eviction.
    """

    small_share = 0.1  # of the capacity; section 4.1 of the paper
    ghost_share = 0.9  # evicted blocks remembered, as a share of the capacity; the same
    promote_at = 2  # hits in the small queue that lead to the main one; the same
    max_count = 3  # hits a block's two bits can count

    def __init__(self) -> None:
        self._small: deque[Block] = deque()
        self._main: deque[Block] = deque()
        self._spent: dict[Block, int] = {}  # hits that no longer count
        self._ghosts: OrderedDict[tuple[int, int], None] = OrderedDict()  # names of blocks, oldest first
        self._has_evicted = False

    def hit(self, block: Block, ctx: EvictionContext) -> None:
        pass

    def release(self, block: Block, ctx: EvictionContext) -> None:
        if block in self._spent:
            return
        self._spent[block] = 0
        name = (block.piece, block.depth)
        is_filling = not self._has_evicted and len(self._small) >= int(ctx.num_blocks * self.small_share)
        if name in self._ghosts:
            del self._ghosts[name]
            self._main.append(block)
        else:
            (self._main if is_filling else self._small).append(block)
        while len(self._ghosts) > int(ctx.num_blocks * self.ghost_share):
            self._ghosts.popitem(last=False)

    def evict(self, ctx: EvictionContext) -> Block:
        self._has_evicted = True
        main_share = ctx.num_blocks - int(ctx.num_blocks * self.small_share)
        found = None
        if len(self._main) > main_share:
            found = self._from_main()
        found = found or self._from_small() or self._from_main()
        assert found is not None, "the cache asks only while a block is not pinned"
        del self._spent[found]
        return found

    def _from_small(self) -> Block | None:
        while self._small:
            block = self._small.popleft()
            if not block.pinned and block.num_hits - self._spent[block] < self.promote_at:
                self._ghosts[block.piece, block.depth] = None
                return block
            self._spent[block] = block.num_hits
            self._main.append(block)
        return None

    def _from_main(self) -> Block | None:
        num_pinned = 0  # seen in a row
        while num_pinned < len(self._main):
            block = self._main.popleft()
            count = block.num_hits - self._spent[block]
            if not block.pinned and not count:
                return block
            num_pinned = num_pinned + 1 if block.pinned else 0
            if not block.pinned:
                self._spent[block] = block.num_hits - min(count, self.max_count) + 1
            self._main.append(block)
        return None


class Slru:
    """Two LRU lists: new blocks are on probation, a hit protects (Karedla et al., IEEE Computer 1994).

    The protected list holds at most `protected_share` of the capacity; its oldest go back on probation.
    No pinned block is ever next: a prefix is hit and released whole, its head last.
    """

    protected_share = 0.8  # of the capacity; the paper's best lies between 0.6 and 0.8

    def __init__(self) -> None:
        self._probation: OrderedDict[Block, None] = OrderedDict()  # oldest first
        self._protected: OrderedDict[Block, None] = OrderedDict()  # held blocks are in neither list

    def hit(self, block: Block, ctx: EvictionContext) -> None:
        self._probation.pop(block, None)
        self._protected.pop(block, None)

    def release(self, block: Block, ctx: EvictionContext) -> None:
        (self._protected if block.num_hits else self._probation)[block] = None
        while len(self._protected) > int(ctx.num_blocks * self.protected_share):
            oldest, _ = self._protected.popitem(last=False)
            self._probation[oldest] = None

    def evict(self, ctx: EvictionContext) -> Block:
        return (self._probation or self._protected).popitem(last=False)[0]
