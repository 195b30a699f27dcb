"""Which sequence holds how many blocks: allocation, prefix hits, release and copy-on-write.

Rules of section 5-7 of vLLM 0.33's scheduler. A sequence holds ceil(slots / block_size) blocks for the
slots allocated to it, so only hashed and shared blocks need a record (`Sequence.runs`, pairs of a run and
a count); the rest is arithmetic. Blocks whose hash nobody else can know are registered when the sequence
lets go of them, all others when they are scheduled (rule 6.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

from simulator.kv.block_pool import BlockPool, Run
from simulator.kv.eviction import Eviction, lru
from simulator.kv.held_blocks import check_blocks, held_runs
from simulator.kv.keyed_pool import KeyedPool, PoolContext
from simulator.kv.tiers import Tiers
from simulator.kv.watch import BlockWatcher
from simulator.request import Sequence


class Hit(NamedTuple):
    """A cached prefix found for a sequence."""

    runs: list[tuple[Run, int]]
    num_blocks: int
    num_free: int  # of these, blocks that nobody holds: taking them costs a free block each (rule 5.2)


NO_HIT = Hit([], 0, 0)


class BlockManager:
    """Allocate paged KV memory to sequences.

    `num_blocks` are the usable blocks (vLLM's number less its null block). `watermark` blocks stay free
    when something is admitted while others run. `eviction` says which cached block goes first; all but `lru`
    need to `attach` a context. `tiers` is the memory below the GPU's, if there is any.
    """

    pool: BlockPool | KeyedPool

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        enable_prefix_caching: bool = True,
        watermark_blocks: int = 0,
        tiers: Tiers | None = None,
        eviction: Eviction = lru,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1, got {block_size}")
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.watermark_blocks = watermark_blocks
        self.tiers = tiers
        if eviction is lru:
            self.pool = BlockPool(num_blocks)
        else:
            self.pool = KeyedPool(num_blocks, block_size, eviction)
        if tiers is not None and tiers.offloads:
            self.pool.on_evict = tiers.evicted
        self.watcher: BlockWatcher | None = None
        self.lookahead: int | None = None  # under speculation: slots kept beyond those of a step
        self._max_slots = 0  # of a sequence, then
        self.num_queries = 0  # tokens looked up at admissions
        self.num_hits = 0  # of these, tokens found

    def attach(self, ctx: PoolContext) -> None:
        """Let the eviction look at the state of a scheduler."""
        if isinstance(self.pool, KeyedPool):
            self.pool.ctx = ctx

    def look_ahead(self, num_slots: int, max_model_len: int) -> None:
        """Expect draft tokens, and keep so many slots beyond those of a step, up to max_model_len (5.4)."""
        self.lookahead, self._max_slots = num_slots, max_model_len

    def watch(self, watcher: BlockWatcher) -> None:
        """Tell a real engine what happens to the blocks; before any are taken."""
        offload = self.pool.on_evict

        def tell(lo: int, hi: int) -> None:
            watcher.evicted(lo, hi)
            if offload is not None:
                offload(lo, hi)

        self.watcher = watcher
        self.pool.on_evict = tell

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_used(self) -> int:
        return self.pool.num_blocks - self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens.

        >>> BlockManager(10, 16).blocks_for(33)
        3
        """
        return -(-num_tokens // self.block_size)

    def lookup(self, seq: Sequence) -> Hit:
        """Find the cached prefix of a waiting sequence; its last token is always computed (rule 6.3)."""
        if not self.enable_prefix_caching or not seq.hash_ranges:
            return NO_HIT
        runs = self.pool.match(seq.hash_ranges, (seq.num_prompt + seq._output - 1) // self.block_size)
        if not runs:
            return NO_HIT
        return Hit(runs, sum(n for _, n in runs), sum(n for run, n in runs if not run.refs))

    def has_room(self, hit: Hit, n: int, *, must_fit: int, watermark: bool) -> bool:
        """Say whether a waiting sequence's hits and n more tokens fit, and `must_fit` tokens in all."""
        pool, size = self.pool, self.block_size
        room = pool.num_unhashed_free + pool.num_cached_free - hit.num_free
        if watermark:
            room -= self.watermark_blocks
        return -(-n // size) <= room and -(-must_fit // size) - hit.num_blocks <= room

    def admit(
        self, seq: Sequence, hit: Hit, n: int, *, must_fit: int, watermark: bool, publish: bool = True
    ) -> bool:
        """Give a waiting sequence its hits and slots for n more tokens; False and no change if that fails.

        `must_fit` is the number of tokens that must find room now although only some are scheduled. Without
        `publish` nobody can hit the blocks of the n tokens yet, since their KV is still elsewhere.
        """
        slots = n
        if n and publish and self.lookahead is not None:
            start = hit.num_blocks * self.block_size
            slots = min(start + n + self.lookahead, self._max_slots) - start
            n = min(n, seq.num_prompt + seq._output - start)  # without placeholders of drafts
        if not self.has_room(hit, slots, must_fit=must_fit, watermark=watermark):
            return False
        if slots != n:
            seq.slots = start + slots
        pool, size = self.pool, self.block_size
        hit_runs, num_hit, _ = hit
        for run, count in hit_runs:
            pool.hold(run, count)
            seq.runs.append([run, count])
        seq.num_hashed = num_hit
        if self.watcher is not None:
            self.watcher.hit(seq, num_hit)
        self.num_queries += seq.num_prompt + seq._output
        self.num_hits += num_hit * size
        pool.take(-(-slots // size))
        if publish and seq.hash_private_from:
            self._register(seq, min(num_hit + n // size, seq.hash_private_from))
        return True

    def allocate(self, seq: Sequence, n: int) -> bool:
        """Give a running sequence slots for n more tokens; False and no change if blocks are short."""
        if self.lookahead is not None:
            return self._allocate_ahead(seq, n, self.lookahead)
        size, pool = self.block_size, self.pool
        computed = seq._computed if seq.group is None else seq.num_computed
        need = -(-(computed + n) // size) + -computed // size
        shared = self._shared_partial(seq, computed) if seq.runs else None
        if need + (shared is not None) > pool.num_unhashed_free + pool.num_cached_free:
            return False
        if shared is not None:  # copy-on-write: the writer gets a block of its own
            seq.runs.pop()
            seq.num_hashed -= 1
            shared.refs -= 1
            need += 1
        if need:
            pool.take(need)
        if seq.num_hashed < seq.hash_private_from:
            self._register(seq, min((computed + n) // size, seq.hash_private_from))
        return True

    def _allocate_ahead(self, seq: Sequence, n: int, lookahead: int) -> bool:
        """Do the same where the last of the n may be drafts; blocks of rejected ones are still held (5.7)."""
        end = seq.num_computed + n
        slots = min(end + lookahead, self._max_slots)
        need = self.blocks_for(slots) - self.blocks_for(max(seq.num_computed, seq.slots))
        if need > self.pool.num_free:
            return False
        if need > 0:
            self.pool.take(need)
        seq.slots = max(seq.slots, slots)
        if seq.num_hashed < seq.hash_private_from:
            self._register(seq, min(min(end, seq.num_tokens) // self.block_size, seq.hash_private_from))
        return True

    def release(self, seq: Sequence, num_slots: int, *, publish: bool = True) -> None:
        """Take back all blocks of a sequence to which `num_slots` token slots are allocated.

        Without `publish`, those not yet in the prefix cache are freed as if nothing were in them.
        """
        pool, size = self.pool, self.block_size
        full, held = num_slots // size, -(-num_slots // size)
        if seq.slots:
            held, seq.slots = max(held, -(-seq.slots // size)), 0
        if held > pool.num_blocks - pool.num_unhashed_free - pool.num_cached_free:
            raise ValueError(f"{seq!r} releases more blocks than are in use: double free")
        if (
            publish and not seq.runs and len(seq.hash_ranges) == 1
        ):  # plain: all of its own, nothing published yet
            if self.watcher is not None:
                self.watcher.released(seq, num_slots, publish)
            lo, hi = seq.hash_ranges[0]
            hashed = full if full < hi - lo else hi - lo
            pool.num_unhashed_free += held - hashed
            if hashed:
                pool.leave_cached(lo, lo + hashed, seq)
            return
        if publish:
            self._register(seq, full)
        if self.watcher is not None:
            self.watcher.released(seq, num_slots, publish)
        pool.give(held - seq.num_hashed)
        for run in reversed(list(held_runs(seq))):
            self.pool.drop(run)
        seq.runs = []
        seq.num_hashed = 0

    def publish(self, seq: Sequence, n: int) -> None:
        """Register the blocks that n more tokens of a running sequence fill, as far as hashes are known."""
        self._register(seq, (seq.num_computed + n) // self.block_size)

    def arrived(self, seq: Sequence) -> None:
        """Publish the blocks that a fetch has filled, as far as others may know their hashes."""
        self._register(seq, min(seq.num_computed // self.block_size, seq.hash_private_from))

    def shared_blocks(self, seq: Sequence) -> int:
        """Count the blocks of a sequence that others hold too."""
        return sum(len(run) for run in held_runs(seq) if run.refs > 1) if seq.runs else 0

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let a new sequence share all blocks of its parent; a partly filled one is copied on write.

        Blocks that either fills afterwards are not published in the prefix cache.
        """
        computed = parent.num_computed
        self._register(parent, computed // self.block_size)
        full = computed // self.block_size - parent.num_hashed
        for size in (full, 1 if computed % self.block_size else 0):
            if size and self.blocks_for(computed) > parent.num_hashed:
                parent.runs.append([Run(0, size, hashed=False), size])
                parent.num_hashed += size
        parent.hash_ranges = []
        child.runs = [list(piece) for piece in parent.runs]
        child.num_hashed = parent.num_hashed
        for run in held_runs(child):
            run.refs += 1

    def _shared_partial(self, seq: Sequence, computed: int) -> Run | None:
        if computed % self.block_size == 0 or seq.num_hashed * self.block_size < computed:
            return None
        run = cast(Run, seq.runs[-1][0])
        return run if not run.hashed and run.refs > 1 else None

    def _register(self, seq: Sequence, upto: int) -> None:
        """Publish the blocks `num_hashed`..`upto`-1 of a sequence, as far as their hashes are known."""
        have = seq.num_hashed
        if upto <= have:
            return
        first = 0  # block index at which the current range begins
        for lo, hi in seq.hash_ranges:
            size = hi - lo
            if have < first + size:
                end = min(upto, first + size)
                self._publish_range(seq, lo + have - first, lo + end - first)
                have = end
                if have == upto:
                    break
            first += size
        if self.watcher is not None:
            self.watcher.published(seq, seq.num_hashed, have)
        seq.num_hashed = have

    def _publish_range(self, seq: Sequence, lo: int, hi: int) -> None:
        if seq.runs:
            last = seq.runs[-1]
            run = cast(Run, last[0])
            if run.hi == lo and self.pool.extend(run, hi):
                last[1] = run.hi - run.lo
                return
        seq.runs.extend([run, run.hi - run.lo] for run in self.pool.publish(lo, hi, seq))

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless every block is free or owned, and every reference is accounted for."""
        check_blocks(self.pool, self.block_size, sequences)
