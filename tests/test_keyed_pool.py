"""The paged memory under every eviction: against a tree of single blocks in random traffic, and by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from reference_tree import ReferenceTree

from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.kv.cached_block import Block
from simulator.kv.eviction import EVICTIONS, ONE_KEY_A_RUN, Eviction
from simulator.kv.held_blocks import held_runs
from simulator.kv.keyed_pool import CachedRun, KeyedPool
from simulator.kv.prefix import PrefixIds, PrivateIds
from simulator.request import Sequence

CHUNKS = [1, 2, 3, 5, 20]


def mru(block: Block, ctx: Any) -> float:
    """A key that falls with every use."""
    return -block.last_used


def by_tenant(block: Block, ctx: Any) -> tuple[str, float]:
    return (block.tenant, block.last_used)


KEYED: dict[str, Eviction] = {
    **{name: each for name, each in EVICTIONS.items() if name != "lru"},
    "mru": mru,
    "by_tenant": by_tenant,
    "last_used": lambda block, ctx: block.last_used,
    "deepest": lambda block, ctx: -block.depth,
}


def clock(num_blocks: int) -> Any:
    return SimpleNamespace(
        now=0.0,
        evicted_key=0.0,
        num_blocks=num_blocks,
        free_blocks=0,
        recompute_time=lambda num_tokens, start: num_tokens * (1 + start / 10),
    )


class Both:
    """A block manager and a tree of single blocks that live through the same."""

    def __init__(self, rng: random.Random, eviction: Eviction) -> None:
        self.rng = rng
        num_blocks, block_size = rng.randint(4, 24), rng.choice([1, 1, 2, 3])
        self.ctx = clock(num_blocks)
        self.reference = ReferenceTree(num_blocks, block_size, eviction, clock(num_blocks))
        self.kv = BlockManager(num_blocks, block_size, eviction=eviction)
        self.kv.attach(self.ctx)
        self.makes_runs = eviction in ONE_KEY_A_RUN
        self.ids, self.private = PrefixIds(block_size), PrivateIds()
        self.tokens: dict[str, list[object]] = {}
        self.seqs: dict[str, Sequence] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []

    def act(self) -> None:
        """Do one of what a scheduler does, at random."""
        self.ctx.now += self.rng.choice([0.0, 1.0])
        self.reference.ctx.now = self.ctx.now
        acts = [self.step, self.step, self.release] if self.running else []
        acts += [self.admit, self.admit] if self.waiting else []
        acts += [self.arrive] if len(self.waiting) < 3 else []
        self.rng.choice(acts)()

    def arrive(self) -> None:
        id = f"r{len(self.tokens)}"
        family = self.rng.randint(0, 1)
        shared: list[object] = [family] * self.rng.randint(0, 8) + [9] * self.rng.choice([0, 0, 2, 4])
        tokens = shared + [(id, i) for i in range(self.rng.choice([0, 1, 4]))]
        if tokens:
            seq = Sequence(id, len(tokens), 1, tenant=id)
            seq.hash_private_from = self.ids.extend(seq.hash_ranges, 0, shared)
            seq.hash_ranges.append(self.private.take(1000))
            self.tokens[id], self.seqs[id] = tokens, seq
            self.waiting.append(id)

    def admit(self) -> None:
        id = self.rng.choice(self.waiting)
        tokens, seq = self.tokens[id], self.seqs[id]
        start = len(self.reference.lookup(tokens)) * self.kv.block_size
        n = min(self.rng.choice(CHUNKS), len(tokens) - start)
        must_fit = len(tokens) if self.rng.random() < 0.5 else 0
        fits = self.reference.admit(id, tokens, n, seq.hash_private_from, must_fit)
        assert self.kv.admit(seq, self.kv.lookup(seq), n, must_fit=must_fit, watermark=False) == fits
        if fits:
            seq._computed = start + n
            self.waiting.remove(id)
            self.running.append(id)
            self.sample(id)

    def step(self) -> None:
        chunk = self.rng.choice(CHUNKS)
        for id in self.running:
            seq, tokens = self.seqs[id], self.tokens[id]
            n = min(chunk, len(tokens) - seq.num_computed)
            fits = self.reference.allocate(id, tokens, seq.num_computed + n, seq.hash_private_from)
            assert self.kv.allocate(seq, n) == fits
            if fits:
                seq._computed += n
                self.sample(id)

    def sample(self, id: str) -> None:
        if self.seqs[id].num_computed == len(self.tokens[id]):
            self.tokens[id].append((id, len(self.tokens[id])))
            self.seqs[id]._output += 1

    def release(self) -> None:
        id = self.running.pop(self.rng.randrange(len(self.running)))
        seq = self.seqs[id]
        self.reference.release(id, self.tokens[id], seq.num_computed)
        self.kv.release(seq, seq.num_computed)
        seq._computed = 0
        if self.rng.random() < 0.3:
            self.waiting.append(id)

    def check(self) -> None:
        assert self.kv.num_free == self.reference.num_free
        assert self.kv.pool.num_unhashed_free == self.reference.num_unhashed
        assert self.kv.pool.num_evicted == self.reference.num_evicted
        self.kv.check([self.seqs[id] for id in self.running])
        self.check_lookups()
        self.check_tables()
        self.check_tree()

    def check_lookups(self) -> None:
        for id in [*self.waiting, *list(self.tokens)[-8:]]:
            if id not in self.running:
                hits = self.reference.lookup(self.tokens[id])
                hit = self.kv.lookup(self.seqs[id])
                assert hit.num_blocks == len(hits)
                assert hit.num_free == sum(each in self.reference.free for each in hits)

    def check_tables(self) -> None:
        """Whoever holds blocks holds them with the same others; the last of a run knows what it knows."""
        for id in self.running:
            held = [each for each in self.reference.tables[id] if each is not None]
            at = 0
            for run in held_runs(self.seqs[id]):
                prefixes = held[at : at + len(run)]
                at += len(run)
                assert [len(self.reference.holders[each]) for each in prefixes] == [run.refs] * len(run)
                assert isinstance(run, CachedRun)
                assert facts(run.block) == facts(self.reference.cached[prefixes[-1]])
            assert at == len(held)

    def check_tree(self) -> None:
        """No block is cached without its predecessor, which its holders hold too."""
        assert isinstance(self.kv.pool, KeyedPool)
        runs = list(self.kv.pool.cached_runs())
        refs = {run.block: run.refs for run in runs}
        assert sum(len(run) for run in runs) == len(self.reference.cached)
        for run in runs:
            assert len(run) == run.block.size
            assert run.block.held == (run.refs > 0)
            assert self.makes_runs or len(run) == 1
            parent = run.block.parent
            assert (run.block.depth == len(run) - 1) if parent is None else (refs[parent] >= run.refs)
        parents = Counter(run.block.parent for run in runs)
        assert all(block.num_children == parents[block] for block in refs)


def facts(block: Block) -> tuple[object, ...]:
    return (
        block.num_hits,
        block.last_used,
        block.created,
        block.depth,
        block.num_tokens,
        block.tenant,
        block.recompute_time,
        block.pinned,
    )


@pytest.mark.parametrize("name", sorted(KEYED))
def test_runs_do_as_a_tree_of_single_blocks(name: str) -> None:
    for seed in range(14):
        both = Both(random.Random(f"{name} {seed}"), KEYED[name])
        for _ in range(250):
            both.act()
            both.check()


# By hand. One token a block; hashes 0, 1, .. are those of a family of prompts.

PRIVATE = PrivateIds()


def manager(num_blocks: int, eviction: Eviction) -> BlockManager:
    kv = BlockManager(num_blocks, 1, eviction=eviction)
    kv.attach(clock(num_blocks))
    return kv


def at(kv: BlockManager, now: float) -> None:
    assert isinstance(kv.pool, KeyedPool)
    kv.pool.ctx.now = now  # type: ignore[misc]  # read-only for policies


def computed(kv: BlockManager, num_shared: int, num_private: int = 0, chunk: int | None = None) -> Sequence:
    """Return a sequence that has computed its prompt, or what it found cached and a chunk of the rest."""
    n = num_shared + num_private
    ranges = [(0, num_shared), PRIVATE.take(100)] if num_shared else [PRIVATE.take(100)]
    seq = Sequence("s", n, 100, hash_ranges=ranges, hash_private_from=num_shared)
    hit = kv.lookup(seq)
    chunk = n - hit.num_blocks if chunk is None else chunk
    assert kv.admit(seq, hit, chunk, must_fit=0, watermark=False)
    seq._computed = hit.num_blocks + chunk
    return seq


def done(kv: BlockManager, seq: Sequence) -> None:
    kv.release(seq, seq.num_computed)


def grow(kv: BlockManager, seq: Sequence, n: int = 1) -> bool:
    """Compute n more tokens, if there is room."""
    fits = kv.allocate(seq, n)
    seq._computed += n * fits
    return fits


def tree(kv: BlockManager) -> Iterator[CachedRun]:
    """Yield what is cached, by hash."""
    assert isinstance(kv.pool, KeyedPool)
    yield from sorted(kv.pool.cached_runs(), key=lambda run: run.lo)


def cached(kv: BlockManager) -> list[tuple[int, int, Any]]:
    """List what is cached of the family: lo, hi, key."""
    return [(run.lo, run.hi, run.block.key) for run in tree(kv) if run.lo < 100]


def test_a_block_computed_twice_at_once_is_kept_once() -> None:
    kv = manager(10, EVICTIONS["lfu"])
    one = computed(kv, 4, chunk=1)
    two = computed(kv, 4, chunk=1)  # finds the first, computes the second
    assert grow(kv, one)
    assert [run.refs for run in held_runs(one)] == [2, 2]
    assert kv.num_used == 2
    assert grow(kv, two)
    assert grow(kv, one, 2)
    assert [run.refs for run in held_runs(one)] == [2, 2, 2, 1]
    assert kv.num_used == 4
    kv.check([one, two])
    done(kv, two)
    done(kv, one)
    assert kv.num_used == 0
    assert [run.block.num_hits for run in tree(kv)] == [1, 1, 1, 0]


def test_a_prompt_that_is_cached_whole_meets_its_last_block_again() -> None:
    kv = manager(10, EVICTIONS["fifo"])
    done(kv, computed(kv, 4))
    seq = computed(kv, 4)
    assert kv.num_hits == 3
    assert (kv.num_used, kv.pool.num_unhashed_free) == (4, 6)
    done(kv, seq)
    assert [(len(run), run.block.num_hits) for run in tree(kv)] == [(3, 1), (1, 1)]


def test_a_prefix_hit_in_part_counts_as_much_as_what_follows() -> None:
    """Under FIFO 0..4 is of time 0, its answer of time 5: so it counts, and all that is left of it."""
    kv = manager(12, EVICTIONS["fifo"])
    chat = computed(kv, 4, 2, chunk=4)
    at(kv, 5.0)
    assert grow(kv, chat, 2)
    done(kv, chat)
    assert cached(kv) == [(0, 4, 5.0)]
    again = computed(kv, 3)
    assert [(run.refs, len(run)) for run in tree(kv)][:3] == [(1, 2), (1, 1), (0, 1)]
    other = computed(kv, 0, 1)
    at(kv, 6.0)
    done(kv, other)  # freed last: no follower of the prefix
    done(kv, again)
    assert cached(kv) == [(0, 2, 5.0), (2, 3, 5.0), (3, 4, 5.0)]


def test_a_run_goes_from_its_tail_and_waits_where_it_was() -> None:
    kv = manager(6, EVICTIONS["fifo"])
    done(kv, computed(kv, 6))
    kv.pool.take(2)
    assert cached(kv) == [(0, 4, 0.0)]
    assert [(run.block.depth, run.block.size) for run in tree(kv)] == [(3, 4)]
    kv.pool.give(2)
    seq = computed(kv, 2)
    assert cached(kv) == [(0, 1, 0.0), (1, 2, 0.0), (2, 4, 0.0)]
    kv.pool.take(4)
    assert cached(kv) == [(0, 1, 0.0), (1, 2, 0.0)]
    assert [run.next for run in tree(kv)][1] is None  # what was cut off is gone
    assert (kv.pool.num_free, kv.pool.num_evicted) == (0, 4)
    done(kv, seq)
    assert kv.pool.num_free == 2


@pytest.mark.parametrize("name", ["sieve", "s3fifo", "slru"])
def test_hits_of_a_block_in_use_count(name: str) -> None:
    """The queues hear of the first two blocks when they are freed; one was hit twice before that."""
    kv = manager(20, EVICTIONS[name])
    passers_by(kv, 5)
    first = computed(kv, 2)
    done(kv, computed(kv, 1, 1))
    done(kv, computed(kv, 1, 1))
    done(kv, first)
    passers_by(kv, 10)
    assert cached(kv) == [(0, 1, None)]


def passers_by(kv: BlockManager, n: int) -> None:
    for _ in range(n):
        done(kv, computed(kv, 0, 6))


@pytest.mark.parametrize("name", sorted(EVICTIONS))
def test_only_a_policy_that_reads_the_price_asks_for_it(name: str) -> None:
    kv = manager(8, EVICTIONS[name])
    asked = []
    if isinstance(kv.pool, KeyedPool):
        kv.pool.ctx.recompute_time = lambda n, start: asked.append((n, start)) or 1.0  # type: ignore
    done(kv, computed(kv, 4))
    done(kv, computed(kv, 2))
    assert asked == ([(1, 3), (1, 1), (1, 0)] if name == "gdsf" else [])


def test_kv_01_a_double_free_is_refused() -> None:
    kv = manager(4, mru)
    seq = computed(kv, 2)
    done(kv, seq)
    with pytest.raises(ValueError, match="double free"):
        done(kv, seq)
    with pytest.raises(ValueError, match="released twice"):
        kv.pool.drop(next(tree(kv)))
    with pytest.raises(ValueError, match="double free"):
        kv.pool.give(1)
    with pytest.raises(ValueError, match="exceeds the 4 free blocks"):
        kv.pool.take(5)
    assert kv.num_free == 4


def test_kv_02_a_forked_sequence_shares_cached_blocks() -> None:
    kv = BlockManager(8, 4, eviction=EVICTIONS["lfu"])
    kv.attach(clock(8))
    parent = Sequence("p", 10, 100, hash_ranges=[(0, 3)], hash_private_from=3)
    assert kv.admit(parent, kv.lookup(parent), 10, must_fit=0, watermark=False)
    parent._computed = 10
    child = Sequence("c", 10, 100)
    child._computed = 10
    kv.fork(parent, child)
    assert grow(kv, child)
    assert kv.num_used == 4
    kv.check([parent, child])
    done(kv, child)
    done(kv, parent)
    assert (kv.num_used, cached(kv)) == (0, [(0, 2, 0)])


class Careless:
    """Evicts what it was given last, whatever became of it."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def hit(self, block: Block, ctx: Any) -> None: ...

    def release(self, block: Block, ctx: Any) -> None:
        self.blocks.append(block)

    def evict(self, ctx: Any) -> Any:
        return self.blocks[-1]


class Stubborn(Careless):
    def evict(self, ctx: Any) -> Any:
        return self.blocks[0]


class Inventive(Careless):
    def evict(self, ctx: Any) -> Any:
        return Block(depth=7)


class Silent(Careless):
    def evict(self, ctx: Any) -> Any:
        return None


def no_number(block: Block, ctx: Any) -> float:
    return float("nan")


def mixed(block: Block, ctx: Any) -> Any:
    return block.depth if block.depth % 2 else "even"


@pytest.mark.parametrize(
    ("eviction", "complaint"),
    [
        (Careless, r"Careless.evict returned a block with followers \(depth 0\); it must be"),
        (Stubborn, r"Stubborn.evict returned a block evicted before \(depth 3\); it must be"),
        (Inventive, r"Inventive.evict returned a block held by a request \(depth 7\); it must be"),
        (Silent, "Silent.evict returned None; it must be a block that was released"),
        (no_number, r"no_number gave a block \(depth 3\) the key nan, which has no place in an order"),
        (
            mixed,
            r"mixed gave a block \(depth 2\) the key 'even', which does not compare with another: '<' not",
        ),
        (dict, "<class 'dict'> is neither a function of \\(block, ctx\\) nor a class with release, hit and"),
        (3, "3 is neither a function of"),
    ],
)
def test_a_wrong_eviction_is_told(eviction: Any, complaint: str) -> None:
    def use() -> None:
        kv = manager(4, eviction)
        done(kv, computed(kv, 4))
        kv.pool.take(2)

    with pytest.raises(ConfigError, match=f"^kv.eviction: {complaint}"):
        use()
