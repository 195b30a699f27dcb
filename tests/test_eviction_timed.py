"""Evictions in timed runs: against LRU, against a replay without time, ticked against skipped."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_and_slow import few_or_many
from test_skipping import LATENCIES, assert_same, plans, requests

from simulator.batch import Batch
from simulator.engine.decisions import DecisionLog
from simulator.engine.serve import Served, serve
from simulator.experiments.cache_accesses import Accesses
from simulator.kv.block_cache import ATTENTION_CONTEXT, BlockCache
from simulator.kv.block_manager import BlockManager
from simulator.kv.block_pool import BlockPool
from simulator.kv.cached_block import Block
from simulator.kv.eviction import EVICTIONS, ONE_KEY_A_RUN, Eviction, lru
from simulator.kv.eviction_queues import Sieve
from simulator.kv.keyed_pool import KeyedPool
from simulator.latency.linear import LinearModel
from simulator.request import Request
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Workload


def last_used(block: Block, ctx: Any) -> float:
    return block.last_used


def restless(block: Block, ctx: Any) -> tuple[int, float]:
    """A key that looks at all there is to look at."""
    return (hash((ctx.now, ctx.free_blocks, len(list(ctx.running)), block.created)) % 5, block.last_used)


class Moody(Sieve):
    """An eviction that decides by the clock and by what is free when a block is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[Block, None] = {}

    def hit(self, block: Block, ctx: Any) -> None:
        del self.blocks[block]

    def release(self, block: Block, ctx: Any) -> None:
        self.blocks[block] = None

    def evict(self, ctx: Any) -> Block:
        free = [block for block in self.blocks if not block.pinned]
        chosen = free[int(4 * ctx.now + ctx.free_blocks) % len(free)]
        del self.blocks[chosen]
        return chosen


KEYED: dict[str, Eviction] = {**EVICTIONS, "restless": restless, "Moody": Moody}


class TreeWatch:
    """Sees after every step that no block is cached without its predecessor, which its holders hold too."""

    def __init__(self) -> None:
        self.num_looks = 0

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        pool = scheduler.kv.pool
        if isinstance(pool, KeyedPool):
            refs = {run.block: run.refs for run in pool.cached_runs()}
            self.num_looks += bool(refs)
            for block, holders in refs.items():
                assert block.parent is None or refs[block.parent] >= holders

    def finished(self, sequences: object, now: float) -> None:
        pass


def run(batching: str, sent: list[Request], eviction: Eviction, how: dict[str, Any], **kw: Any) -> Served:
    how = dict(how)
    kv = BlockManager(how.pop("num_blocks"), how.pop("block_size"), eviction=eviction)
    latency = how.pop("latency")
    outside = {name: how.pop(name) for name in ("plan", "async_scheduling", "horizon") if name in how}
    return serve(sent, BATCHING[batching](kv, latency=latency, **how), latency, **outside, **kw)


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[list[Request], dict[str, Any]]:
    """A load with shared prefixes and impatient clients, and a server with little memory."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    sent = draw(requests(block_size))
    seats = draw(st.integers(1, 6))
    return sent, {
        "plan": draw(plans(len(sent))),
        "latency": draw(st.sampled_from(LATENCIES)),
        "block_size": block_size,
        "num_blocks": draw(st.sampled_from([12, 20, 40])) * 4 // min(block_size, 4),
        "max_num_seqs": seats,
        "max_num_batched_tokens": draw(st.sampled_from([seats, 8, 64])) + seats,
        "max_model_len": 150,
        "async_scheduling": draw(st.booleans()),
        "horizon": draw(st.sampled_from([None, None, 7.0])),
    }


@pytest.mark.parametrize("name", sorted(KEYED))
@few_or_many(15, 60, load=settings_of(), batching=st.sampled_from(sorted(BATCHING)))
def test_skipping_changes_not_a_bit(
    name: str, load: tuple[list[Request], dict[str, Any]], batching: str
) -> None:
    sent, how = load
    skipped, ticked = (run(batching, sent, KEYED[name], how, skip=skip) for skip in (True, False))
    assert_same(skipped, ticked, sent)
    if isinstance(skipped.scheduler.kv.pool, KeyedPool) and how["horizon"] is None:
        assert tree_of(skipped) == tree_of(ticked)


def tree_of(served: Served) -> list[tuple[object, ...]]:
    pool = served.scheduler.kv.pool
    assert isinstance(pool, KeyedPool)
    return sorted(
        (run.lo, run.hi, block.created, block.last_used, block.num_hits, block.depth, block.tenant)
        for run in pool.cached_runs()
        for block in [run.block]
    )


@pytest.mark.parametrize("name", sorted(KEYED))
@given(load=settings_of(), batching=st.sampled_from(sorted(BATCHING)))
@settings(max_examples=15, deadline=None)
def test_every_step_leaves_blocks_conserved_and_prefixes_whole(
    name: str, load: tuple[list[Request], dict[str, Any]], batching: str
) -> None:
    sent, how = load
    served = run(batching, sent, KEYED[name], how, check_invariants=True, observers=[TreeWatch()])
    if how["horizon"] is None:
        assert served.scheduler.kv.num_used == 0
        assert served.recorder.num_done == len(sent)


class NoCopies:
    """Sees that LRU's pool, which may keep a block twice, does not."""

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        assert isinstance(scheduler.kv.pool, BlockPool)
        hashes = [run.lo for run in scheduler.kv.pool.cached_runs()]
        assert len(hashes) == len(set(hashes))

    def finished(self, sequences: object, now: float) -> None:
        pass


def without_whole_hits(sent: list[Request], block_size: int) -> list[Request]:
    """Let no prompt be cached whole: its last block would be computed again."""

    def shorter(request: Request) -> Request:
        most = (request.num_prompt - 1) // block_size
        return replace(
            request, block_hashes=tuple((lo, min(hi, lo + most)) for lo, hi in request.block_hashes if most)
        )

    return [shorter(request) for request in sent]


@few_or_many(30, 100, load=settings_of())
def test_the_time_of_release_as_key_is_lru(load: tuple[list[Request], dict[str, Any]]) -> None:
    """`chunked` computes no block twice at once: a prompt that is cut takes all the budget until its end."""
    sent, how = load
    sent = without_whole_hits(sent, how["block_size"])
    logs = [DecisionLog(), DecisionLog()]
    plain = run("chunked", sent, lru, how, observers=[logs[0], NoCopies()])
    keyed = run("chunked", sent, last_used, how, observers=[logs[1]])
    assert isinstance(keyed.scheduler.kv.pool, KeyedPool)
    assert logs[0].lines == logs[1].lines
    assert_same(plain, keyed, sent)


def chats(seed: int, block_size: int) -> Workload:
    """Return prompts of whole blocks that come one by one, share prefixes and end in a block of their own."""
    rng = random.Random(seed)
    names: dict[tuple[int, ...], int] = {}
    prompts = []
    for own in range(150):
        shared = [int(3 * rng.random() ** 2) for _ in range(rng.randint(0, 6))]
        tokens = (*shared, 100 + own)
        prompts.append([names.setdefault(tokens[: i + 1], len(names)) for i in range(len(tokens))])
    ids = np.array([id for prompt in prompts for id in prompt], np.int64)
    count = np.array([len(prompt) for prompt in prompts])
    blocks = TraceBlocks.of_ids(ids, np.concatenate([[0], np.cumsum(count)]), block_size)
    arrival = np.cumsum([float(rng.randint(2, 400)) for _ in prompts])
    ones = np.ones(len(prompts), np.int64)
    return Workload(arrival, count * block_size, ones, max_tokens=ones, blocks=blocks, block_size=block_size)


def as_in_a_replay(budget: int) -> LinearModel:
    """Return the latency model whose prices are in proportion to those of a replay, for this token budget."""
    work = 1e-3 / ATTENTION_CONTEXT
    return LinearModel(constant=1e-9, per_token=1e-3 - work * budget / 2, per_prefill_work=work)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*sorted(EVICTIONS), "mru"])
def test_one_request_at_a_time_hits_what_a_replay_without_time_hits(name: str, seed: int) -> None:
    """Whole blocks and answers of one token: nothing is cached that the replay does not know of."""
    eviction: Any = EVICTIONS.get(name, lambda block, ctx: -block.last_used)
    workload, num_blocks = chats(seed, 16), 40
    accesses = Accesses.of(workload, None, vllm_rules=True)
    accesses = accesses if eviction in ONE_KEY_A_RUN else accesses.singles
    cache = BlockCache(num_blocks, eviction, accesses.pieces, 16)
    expected = [cache.request(now, pieces) for now, pieces, _, _ in accesses.rows]
    kv = BlockManager(num_blocks, 16, eviction=eviction)
    scheduler = Chunked(kv, latency=as_in_a_replay(2048), max_num_batched_tokens=2048)
    recorder = serve(workload.requests, scheduler, LinearModel(0.25)).recorder
    assert [cached // 16 for cached in recorder.num_cached] == expected
    assert kv.pool.num_evicted > 200 < sum(expected)
