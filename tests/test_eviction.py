"""Evictions: each against a plain second version of itself, all against rules that none may break."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cache_reference import ReferenceCache, most_hits, sieve_hits, slru_hits
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.experiments.cache_accesses import Accesses
from simulator.kv.block_cache import BlockCache, Piece
from simulator.kv.cached_block import Block
from simulator.kv.eviction import EVICTIONS, ONE_KEY_A_RUN, PREFIX_LAST, Eviction, belady, lru
from simulator.workload.trace_blocks import TraceBlocks

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=30)
KEYS = {name: each for name, each in EVICTIONS.items() if not isinstance(each, type)}


LIBCACHESIM = {
    20: [3996, 3386, 5561, 5592, 5839],
    50: [5339, 4787, 7042, 7269, 7283],
    400: [11058, 10311, 12014, 12050, 12138],
}
"""Hits by capacity of LRU, FIFO, LFU, SIEVE and S3-FIFO in libcachesim 0.3.5, on the trace of its test."""


def chained(prompts: list[list[int]]) -> list[list[int]]:
    """Number the prefixes of token lists, by first appearance."""
    names: dict[tuple[int, ...], int] = {}
    return [[names.setdefault(tuple(p[: i + 1]), len(names)) for i in range(len(p))] for p in prompts]


def accesses(prompts: list[list[int]]) -> Accesses:
    """Make accesses of chained ids, one token a block, one request a second."""
    count = np.array([len(p) for p in prompts])
    ids = np.array([id for p in prompts for id in p], np.int64)
    blocks = TraceBlocks.of_ids(ids, np.concatenate([[0], np.cumsum(count)]), 1).pieces()
    return Accesses(blocks, count, count, count, np.arange(len(prompts), dtype=np.float64), None)


def replay(a: Accesses, eviction: Eviction, num_blocks: int) -> list[int]:
    cache = BlockCache(num_blocks, eviction, a.pieces, 1)
    hits = []
    for now, pieces, next_uses, tenant in a.rows:
        for piece, next_use in zip(pieces, next_uses, strict=True):
            cache.ctx.next_uses[piece] = next_use
        hits.append(cache.request(now, pieces, tenant))
        assert cache.cached_blocks() + cache.num_unused == num_blocks
    return hits


def mru(block: Block, ctx: Any) -> float:
    """A key that falls with every use: what a user may write."""
    return -block.last_used


@settings(max_examples=150, deadline=None)
@given(PROMPTS, st.integers(1, 12), st.sampled_from([*KEYS.values(), mru]))
def test_a_key_evicts_what_a_cache_of_single_blocks_would(
    tokens: list[list[int]], num_blocks: int, eviction: Any
) -> None:
    prompts = chained(tokens)
    a = accesses(prompts)
    reference = ReferenceCache(
        num_blocks, eviction, SimpleNamespace(now=0.0, evicted_key=0.0), eviction not in PREFIX_LAST
    )
    expected = [reference.request(float(i), ids) for i, ids in enumerate(prompts)]
    assert replay(a.singles, eviction, num_blocks) == expected
    if eviction in ONE_KEY_A_RUN:
        assert replay(a, eviction, num_blocks) == expected


@settings(max_examples=60, deadline=None)
@given(PROMPTS, st.integers(1, 12), st.sampled_from(sorted(EVICTIONS)))
def test_no_cached_block_is_out_of_reach(tokens: list[list[int]], num_blocks: int, name: str) -> None:
    prompts = chained(tokens)
    a = accesses(prompts).singles
    cache = BlockCache(num_blocks, EVICTIONS[name], a.pieces, 1)
    parent = {id: before for p in prompts for before, id in zip([None, *p], p, strict=False)}
    piece_of = dict(zip(a.blocks.lo.tolist(), [p for row in a.rows for p in row[1]], strict=True))
    for now, pieces, _, _ in a.rows:
        cache.request(now, pieces)
        cached = {id for id, piece in piece_of.items() if cache._cached[piece]}
        assert all(parent[id] in {None, *cached} for id in cached)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=9), st.integers(1, 6)
)
def test_belady_is_the_best_that_can_be_done(tokens: list[list[int]], num_blocks: int) -> None:
    prompts = chained(tokens)
    a = accesses(prompts)
    best = most_hits(prompts, num_blocks)
    assert sum(replay(a, belady, num_blocks)) == best
    assert all(sum(replay(a.singles, each, num_blocks)) <= best for each in EVICTIONS.values())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 14), min_size=1, max_size=120), st.integers(1, 10))
def test_queues_of_single_blocks_do_as_in_their_papers(ids: list[int], num_blocks: int) -> None:
    a = accesses([[2 * id] for id in ids])
    assert sum(replay(a, EVICTIONS["sieve"], num_blocks)) == sieve_hits(ids, num_blocks)
    assert sum(replay(a, EVICTIONS["slru"], num_blocks)) == slru_hits(ids, num_blocks)


@pytest.mark.parametrize("num_blocks", [50, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 400))])
def test_hits_are_those_of_libcachesim(num_blocks: int) -> None:
    rng = random.Random(0)
    ids = [int(2000 * rng.random() ** 4) for _ in range(20_000)]
    a = accesses([[2 * id] for id in ids])
    names = ("lru", "fifo", "lfu", "sieve", "s3fifo")
    assert [sum(replay(a, EVICTIONS[name], num_blocks)) for name in names] == LIBCACHESIM[num_blocks]


def test_a_run_is_evicted_from_its_tail_and_keeps_what_is_left() -> None:
    a = accesses([[0, 1, 2, 3], [10], [0, 1, 2, 3]])
    assert replay(a, lru, 4) == [0, 0, 3]


def test_an_old_prefix_is_as_young_as_its_youngest_answer() -> None:
    """Under bare FIFO block 0 would go first, and 5 with it; it counts as young as 5."""
    prompts = [[0], [20], [0, 5], [30], [0, 5]]
    assert replay(accesses(prompts).singles, EVICTIONS["fifo"], 3) == [0, 0, 1, 0, 2]


def test_a_request_longer_than_the_cache_keeps_what_fits() -> None:
    a = accesses([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    for eviction in EVICTIONS.values():
        assert replay(a.singles, eviction, 3) == [0, 3]
        assert replay(a.singles, eviction, 0) == [0, 0]


@pytest.mark.parametrize("name", sorted(EVICTIONS))
def test_a_cache_for_all_forgets_nothing(name: str) -> None:
    prompts = chained([[0, 1], [0, 2], [0, 1, 1], [3], [0, 2]])
    assert replay(accesses(prompts).singles, EVICTIONS[name], 10**12) == [0, 1, 2, 0, 2]


class Careless:
    """Evicts the block released last, whether or not others follow it."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def hit(self, block: Block, ctx: Any) -> None: ...

    def release(self, block: Block, ctx: Any) -> None:
        self.blocks.append(block)

    def evict(self, ctx: Any) -> Any:
        return self.blocks.pop()


class Vague(Careless):
    def evict(self, ctx: Any) -> Any:
        return "the second"


@pytest.mark.parametrize(
    ("eviction", "complaint"),
    [
        (Careless, "Careless.evict returned a block with followers"),
        (Vague, "Vague.evict returned 'the second'"),
        (lambda block, ctx: float("nan"), "nan"),
    ],
)
def test_a_wrong_eviction_is_told(eviction: Eviction, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        replay(accesses([[0, 1], [8]]).singles, eviction, 2)


def test_a_policy_reads_the_facts_of_its_block() -> None:
    seen = []

    def spy(block: Block, ctx: Any) -> float:
        seen.append((ctx.now, block.depth, block.num_hits, block.created, block.num_tokens, ctx.free_blocks))
        return 0.0

    cache = BlockCache(4, spy, [Piece(1, 16), Piece(1, 5)], 16)
    cache.request(1.0, [0, 1])
    cache.request(2.0, [0])
    assert seen == [(1.0, 1, 0, 1.0, 5, 3), (1.0, 0, 0, 1.0, 16, 4), (2.0, 0, 1, 1.0, 16, 4)]
