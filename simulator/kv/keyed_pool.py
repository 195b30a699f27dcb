"""The pool of KV blocks under any eviction but `lru`: a radix tree, as SGLang's cache (Zheng et al., 2024).

Runs of blocks as in `block_pool`, with one difference: there is one run a hash. A sequence that computes what
is cached meanwhile holds the cached blocks and gives its own back, where vLLM keeps both copies. So a block's
predecessor is cached as long as it is, and held by all that hold it, and some free cached block never has
followers: it may go.

Blocks go when they are taken, since what is released later may have to go first. A run carries the `Block`
that its eviction judges. Runs are longer than a block only under keys that do not tell their blocks apart
(`ONE_KEY_A_RUN`), and grow no more: what is cached at another time is another run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, cast

from simulator.kv.block_counts import BlockCounts
from simulator.kv.block_pool import Run
from simulator.kv.cached_block import Block, EvictionContext
from simulator.kv.eviction import ONE_KEY_A_RUN, Eviction, as_queue, next_victim
from simulator.request import HashRange, Sequence


class PoolContext(EvictionContext, Protocol):
    """What the scheduler tells the pool; the pool tells policies the key of the block evicted last."""

    evicted_key: Any

    def recompute_time(self, num_tokens: int, start: int) -> float:
        """Price computing tokens again behind `start` others, s."""
        ...


class CachedRun(Run):
    """A run under its hash, with what a policy may know of it."""

    __slots__ = ("block",)

    def __init__(self, lo: int, hi: int, block: Block) -> None:
        super().__init__(lo, hi)
        self.block = block


class KeyedPool(BlockCounts):
    """Counts and cached runs of one GPU's KV blocks of `block_size` tokens, with the face of `BlockPool`.

    `ctx` must be set before anything is cached.
    """

    is_timeless = False
    """Whether it makes no difference when exactly a block is published: policies know its time."""

    ctx: PoolContext

    def __init__(self, num_blocks: int, block_size: int, eviction: Eviction) -> None:
        super().__init__(num_blocks)
        self._block_size = block_size
        self._queue = as_queue(eviction)
        self._put_back: Callable[[Block], None] | None = getattr(self._queue, "put_back", None)
        self._makes_runs = eviction in ONE_KEY_A_RUN
        self._keeps_state = isinstance(eviction, type)
        self._runs: dict[int, CachedRun] = {}  # by first hash
        self._prices: dict[int, float] = {}  # of a block by its depth, s
        self._price = self._recompute_time

    @property
    def num_steady(self) -> int:
        """Free blocks that go in an order known beforehand, and of which nobody must be told.

        A class is asked when a block must go.
        """
        return self.num_unhashed_free if self._keeps_state or self.on_evict else self.num_free

    def match(self, ranges: Iterable[HashRange], limit: int) -> list[tuple[Run, int]]:
        """Find the longest cached prefix of `ranges`, at most `limit` blocks: runs and blocks of each."""
        found: list[tuple[Run, int]] = []
        for lo, hi in ranges:
            while lo < hi and limit > 0:
                run = self._runs.get(lo)
                if run is None:
                    return found
                n = min(run.hi - lo, hi - lo, limit)
                found.append((run, n))
                limit -= n
                lo += n
        return found

    def hold(self, run: Run, n: int) -> None:
        """Add a holder, who found them cached, to the first n blocks of a run; split it if it is longer."""
        assert isinstance(run, CachedRun)
        if n < run.hi - run.lo:
            self._split(run, run.lo + n)
        block = run.block
        block.num_hits += 1
        if not run.refs:
            self.num_cached_free -= n
            block.held = True
            self._queue.hit(block, self.ctx)
        run.refs += 1

    def drop(self, run: Run) -> None:
        """Take one holder away; without holders the run is free, but stays cached if it is hashed."""
        if run.refs < 1:
            raise ValueError(f"{run!r} is released twice")
        run.refs -= 1
        if run.refs:
            return
        if not isinstance(run, CachedRun):
            self.give(len(run))
            return
        self.num_cached_free += run.hi - run.lo
        block = run.block
        block.held = False
        block.last_used = self.ctx.now
        self._queue.release(block, self.ctx)

    def publish(self, lo: int, hi: int, seq: Sequence) -> list[Run]:
        """Register blocks that a sequence has filled, next to those it holds; it holds the runs returned.

        Blocks that are cached already take the place of its own.
        """
        runs: list[Run] = []
        parent = _last_held(seq)
        while lo < hi:
            run = self._runs.get(lo)
            if run is None:
                run = self._new(lo, hi if self._makes_runs else lo + 1, parent, seq.tenant)
            else:
                n = min(run.hi, hi) - lo
                self.hold(run, n)
                self.num_unhashed_free += n
            runs.append(run)
            parent = run.block
            lo = run.hi
        return runs

    def leave_cached(self, lo: int, hi: int, seq: Sequence) -> None:
        """Register freshly filled blocks that nobody holds any longer; like `publish` and `drop` in one."""
        for run in reversed(self.publish(lo, hi, seq)):
            self.drop(run)

    def extend(self, run: Run, hi: int) -> bool:
        """Lengthen no run: blocks cached later have other facts."""
        return False

    def cached_runs(self) -> Iterator[CachedRun]:
        """Yield every run that a lookup could find."""
        yield from self._runs.values()

    def _new(self, lo: int, hi: int, parent: Block | None, tenant: str) -> CachedRun:
        size = hi - lo
        block = Block(
            created=self.ctx.now,
            depth=(parent.depth if parent else -1) + size,
            num_tokens=self._block_size,
            tenant=tenant,
            price=self._price,
            size=size,
            parent=parent,
            piece=lo,
        )
        if parent is not None:
            parent.num_children += 1
        run = self._runs[lo] = CachedRun(lo, hi, block)
        return run

    def _recompute_time(self, num_tokens: int, depth: int) -> float:
        price = self._prices.get(depth)
        if price is None:
            price = self._prices[depth] = self.ctx.recompute_time(num_tokens, depth * self._block_size)
        return price

    def _split(self, run: CachedRun, at: int) -> None:
        """Cut a run at hash `at`; holders reach the tail through `next`.

        The tail keeps the block, so that it waits where the run did and followers still hang at its end.
        """
        block, n = run.block, at - run.lo
        head = Block(
            created=block.created,
            depth=block.depth - block.size + n,
            num_tokens=self._block_size,
            tenant=block.tenant,
            price=self._price,
            size=n,
            parent=block.parent,
            piece=run.lo,
        )
        head.num_hits, head.last_used, head.held = block.num_hits, block.last_used, block.held
        head.key, head.num_children = block.key, 1
        block.size, block.parent, block.piece = block.size - n, head, at
        tail = self._runs[at] = CachedRun(at, run.hi, block)
        tail.refs, tail.next = run.refs, run.next
        run.hi, run.next, run.block = at, tail, head

    def _take_cached(self, n: int) -> None:
        """Forget n blocks, one run after the other from its tail, as the eviction says."""
        ctx, runs = self.ctx, self._runs
        while n:
            block = next_victim(self._queue, ctx)
            run = runs[block.piece]
            gone = min(n, block.size)
            n -= gone
            self.num_cached_free -= gone
            self.num_evicted += gone
            ctx.evicted_key = block.key
            if self.on_evict is not None:
                self.on_evict(run.hi - gone, run.hi)
            block.size -= gone
            if block.size:
                run.hi -= gone
                block.depth -= gone
                assert self._put_back is not None, "only keys are given runs of more than one block"
                self._put_back(block)
                continue
            del runs[block.piece]
            parent, block.parent = block.parent, None
            if parent is not None:
                parent.num_children -= 1
                before = runs[parent.piece]
                if before.next is run:
                    before.next = None


def _last_held(seq: Sequence) -> Block | None:
    """Return the last cached block that a sequence holds, through whatever splits there were."""
    if not seq.runs:
        return None
    run, count = cast("tuple[CachedRun, int]", seq.runs[-1])
    while count > len(run):
        count -= len(run)
        run = cast(CachedRun, run.next)
    return run.block
