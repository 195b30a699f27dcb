"""The pool of KV blocks: how many are free, which hold a cached prefix, and which go first.

Rules 5.1, 6.3 and 7.1-7.3 of vLLM 0.33's scheduler: free blocks without a hash are used first; then the
cached ones in the order of their release, of one sequence the tail before the head. Blocks of a prefix
are numbered so that followers have consecutive hashes; blocks that share their holders then form one
`Run`, and no operation touches blocks one by one. Two sequences that compute the same block keep two copies.

    hash    0   1   2   3   4   5   6   7
    A holds [---- run 0..4 -----)[-- 5..7 --)      B, which hit the first five blocks, holds run 0..4 too
    B holds [---- run 0..4 -----)

Left out: which physical block is which, since no decision depends on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from simulator.kv.block_counts import BlockCounts
from simulator.request import HashRange


class Run:
    """Blocks `lo`..`hi`-1 (hashes) held by the same sequences; `next` is what a split cut off its tail."""

    __slots__ = ("hashed", "hi", "lo", "next", "refs", "released")

    def __init__(self, lo: int, hi: int, hashed: bool = True) -> None:
        self.lo = lo
        self.hi = hi
        self.hashed = hashed
        self.refs = 1
        self.released = 0  # number of the release that freed it; meaningful while refs == 0
        self.next: Run | None = None

    def __len__(self) -> int:
        return self.hi - self.lo

    def __repr__(self) -> str:
        return f"Run({self.lo}..{self.hi}, refs={self.refs})"


class BlockPool(BlockCounts):
    """Counts and cached runs of one GPU's KV blocks.

    Cached prefixes have no holes: a block is cached only while its predecessor is, which release order
    guarantees. `_copies[lo]` lists the runs that begin with hash `lo`, earliest registered first; all of
    them end at the same hash.
    """

    is_timeless = True
    """Whether it makes no difference when exactly a block is published."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._copies: dict[int, list[Run]] = {}
        self._heap: list[tuple[int, int, Run]] = []  # (released, -lo, run); stale entries are skipped
        self._releases = 0
        self._overdue = 0  # cached blocks already taken whose hashes can still be found

    @property
    def num_steady(self) -> int:
        """Free blocks that go in an order known beforehand, and of which nobody must be told."""
        return self.num_free if self.on_evict is None else self.num_unhashed_free

    def _take_cached(self, n: int) -> None:
        """Count n cached blocks as taken.

        Which ones go does not depend on what is released later, so they go when the hashes are next needed.
        """
        self.num_cached_free -= n
        self.num_evicted += n
        self._overdue += n
        if self.on_evict is not None:
            self._evict()

    def match(self, ranges: Sequence[HashRange], limit: int) -> list[tuple[Run, int]]:
        """Find the longest cached prefix of `ranges`, at most `limit` blocks: runs and blocks of each."""
        found: list[tuple[Run, int]] = []
        copies = self._copies
        if self._overdue and ranges and ranges[0][0] in copies:
            self._evict()
        for lo, hi in ranges:
            while lo < hi and limit > 0:
                here = copies.get(lo)
                if here is None:
                    return found
                run = here[0]
                n = min(run.hi, hi) - lo
                n = min(n, limit)
                found.append((run, n))
                limit -= n
                lo += n
        return found

    def hold(self, run: Run, n: int) -> None:
        """Add a holder to the first n blocks of a run, splitting it if it is longer."""
        if self._overdue:
            self._evict()
        if n < run.hi - run.lo:
            self._split(run, run.lo + n)
        if run.refs == 0:
            self.num_cached_free -= n
        run.refs += 1

    def drop(self, run: Run) -> None:
        """Take one holder away; without holders the run is free, but stays cached if it is hashed."""
        if run.refs < 1:
            raise ValueError(f"{run!r} is released twice")
        run.refs -= 1
        if run.refs:
            return
        if not run.hashed:
            self.give(len(run))
            return
        self.num_cached_free += run.hi - run.lo
        self._releases += 1
        run.released = self._releases
        heapq.heappush(self._heap, (run.released, -run.lo, run))

    def publish(self, lo: int, hi: int, seq: object = None) -> list[Run]:
        """Register freshly filled blocks under their hashes; the caller holds the runs returned.

        Whose they are (`seq`) is of no matter here, but in a `KeyedPool`.
        """
        if self._overdue:
            self._evict()
        runs: list[Run] = []
        while lo < hi:
            here = self._copies.get(lo)
            if here is None:
                run = Run(lo, hi)
                self._copies[lo] = [run]
            else:
                if here[0].hi > hi:
                    self._split(here[0], hi)
                run = Run(lo, here[0].hi)
                here.append(run)
            runs.append(run)
            lo = run.hi
        return runs

    def leave_cached(self, lo: int, hi: int, seq: object = None) -> None:
        """Register freshly filled blocks that nobody holds any longer; like `publish` and `drop` in one."""
        if self._overdue:
            self._evict()
        if lo in self._copies:
            for run in reversed(self.publish(lo, hi)):
                self.drop(run)
            return
        run = Run(lo, hi)
        run.refs = 0
        self._releases = run.released = self._releases + 1
        self._copies[lo] = [run]
        self.num_cached_free += hi - lo
        heapq.heappush(self._heap, (run.released, -lo, run))

    def extend(self, run: Run, hi: int) -> bool:
        """Lengthen a run to `hi` in place if nobody else holds or copies it; else change nothing."""
        if self._overdue:
            self._evict()
        if run.refs != 1 or not run.hashed or len(self._copies[run.lo]) > 1 or run.hi in self._copies:
            return False
        run.hi = hi
        return True

    def _split(self, run: Run, at: int) -> None:
        """Cut a run and its copies at hash `at`; holders reach the tails through `next`."""
        tails = []
        for copy in self._copies[run.lo]:
            tail = Run(at, copy.hi)
            tail.refs, tail.released, tail.next = copy.refs, copy.released, copy.next
            copy.hi, copy.next = at, tail
            tails.append(tail)
            if not tail.refs:
                heapq.heappush(self._heap, (tail.released, -at, tail))
        self._copies[at] = tails

    def _evict(self) -> None:
        """Forget the hashes of the overdue blocks: the cached free ones that were released first."""
        n, self._overdue = self._overdue, 0
        heap, tell = self._heap, self.on_evict
        while n:
            released, _, run = heap[0]
            if run.refs or run.released != released:
                heapq.heappop(heap)
                continue
            here = self._copies[run.lo]
            size = run.hi - run.lo
            if size > n and len(here) == 1:
                run.hi -= n
                if tell is not None:
                    tell(run.hi, run.hi + n)
                return
            if size <= n:
                heapq.heappop(heap)
                here.remove(run)
                if not here:
                    del self._copies[run.lo]
                    if tell is not None:
                        tell(run.lo, run.hi)
                run.released = 0
                n -= size
            else:
                self._split(run, run.hi - n)

    def cached_runs(self) -> Iterator[Run]:
        """Yield every run that a lookup could find, copies included."""
        if self._overdue:
            self._evict()
        for here in self._copies.values():
            yield from here
