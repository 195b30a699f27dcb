"""The paged memory in runs against one that moves every block by itself, under random traffic."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from reference_pool import ReferencePool

from simulator.kv.block_manager import BlockManager
from simulator.kv.block_pool import BlockPool
from simulator.kv.held_blocks import held_runs
from simulator.kv.prefix import PrefixIds, PrivateIds
from simulator.request import Sequence

EVERYTHING = 1 << 30  # as `hash_private_from`: all hashes may be known to others
PICK = st.integers(0, 99)
CHUNK = st.sampled_from([1, 2, 3, 5, 20])


class Memory:
    """A block manager and its sequences. `lazy`: hashes that are private are registered on release."""

    def __init__(self, kv: BlockManager, lazy: bool) -> None:
        self.kv, self.lazy = kv, lazy
        self.ids, self.private = PrefixIds(kv.block_size), PrivateIds()
        self.seqs: dict[str, Sequence] = {}

    def arrive(self, id: str, tokens: list[object], num_shared: int) -> None:
        seq = Sequence(id, len(tokens), 1, hash_private_from=EVERYTHING)
        shared = self.ids.extend(seq.hash_ranges, 0, tokens[:num_shared] if self.lazy else tokens)
        if self.lazy:
            seq.hash_ranges.append(self.private.take(1000))
            seq.hash_private_from = shared
        self.seqs[id] = seq

    def sample(self, id: str, tokens: list[object], publish: bool) -> None:
        seq = self.seqs[id]
        seq._output += 1
        if publish and not self.lazy:
            have = sum(hi - lo for lo, hi in seq.hash_ranges)
            self.ids.extend(seq.hash_ranges, have, tokens)

    def fork(self, id: str, child: str) -> None:
        parent = self.seqs[id]
        self.seqs[child] = twin = Sequence(child, parent.num_prompt, 1)
        twin._computed, twin._output = parent._computed, parent._output
        self.kv.fork(parent, twin)


class PagedMemory(RuleBasedStateMachine):
    """Arrivals, admissions, chunks, decodes, preemptions, finishes and forks on both memories at once."""

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.integers(1, 3),
        watermark=st.integers(0, 1),
        private=st.booleans(),
        forks=st.booleans(),
    )
    def begin(self, num_blocks: int, block_size: int, watermark: int, private: bool, forks: bool) -> None:
        self.reference = ReferencePool(num_blocks, block_size, watermark)
        self.memories = [
            Memory(BlockManager(num_blocks, block_size, watermark_blocks=watermark), lazy)
            for lazy in ((False, True) if private else (False,))
        ]
        self.forks = forks
        self.private = private  # outputs and the ends of prompts are nobody else's
        self.tokens: dict[str, list[object]] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.forked: set[str] = set()

    def computed(self, id: str) -> int:
        return self.memories[0].seqs[id].num_computed

    @precondition(lambda self: len(self.waiting) < 3)
    @rule(zeros=st.integers(0, 8), ones=st.sampled_from([0, 0, 2, 4]), own=st.integers(0, 4))
    def arrive(self, zeros: int, ones: int, own: int) -> None:
        id = f"r{len(self.tokens)}"
        tokens: list[object] = [0] * zeros + [1] * ones
        num_shared = len(tokens)
        if self.private:
            tokens += [(id, i) for i in range(own)]
        if tokens:
            self.tokens[id] = tokens
            self.waiting.append(id)
            for memory in self.memories:
                memory.arrive(id, tokens, num_shared)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK, chunk=CHUNK, gate=st.booleans())
    def admit(self, pick: int, chunk: int, gate: bool) -> None:
        id = self.waiting[pick % len(self.waiting)]
        tokens = self.tokens[id]
        publish = id not in self.forked
        start = len(self.reference.lookup(tokens)) * self.reference.block_size if publish else 0
        n = min(chunk, len(tokens) - start)
        how = {"must_fit": len(tokens) if gate else 0, "watermark": bool(self.running)}
        expected = self.reference.admit(id, tokens, n, publish=publish, **how)
        for memory in self.memories:
            seq = memory.seqs[id]
            assert memory.kv.admit(seq, memory.kv.lookup(seq), n, **how) == expected
            seq._computed = start + n if expected else 0
        if expected:
            self.waiting.remove(id)
            self.running.append(id)
            self.sample(id, 0)

    @precondition(lambda self: self.running)
    @rule(chunk=CHUNK, token=st.sampled_from([0, 0, 0, 1]))
    def step(self, chunk: int, token: int) -> None:
        for id in self.running:
            self.compute(id, chunk, token)

    def compute(self, id: str, chunk: int, token: int) -> None:
        tokens, computed = self.tokens[id], self.computed(id)
        n = min(chunk, len(tokens) - computed)
        expected = self.reference.allocate(id, tokens, computed, n, id not in self.forked)
        for memory in self.memories:
            seq = memory.seqs[id]
            assert memory.kv.allocate(seq, n) == expected
            seq._computed += n * expected
        if expected:
            self.sample(id, token)

    def sample(self, id: str, token: int) -> None:
        tokens = self.tokens[id]
        if self.computed(id) == len(tokens):
            tokens.append((id, len(tokens)) if self.private else token)
            for memory in self.memories:
                memory.sample(id, tokens, id not in self.forked)

    @precondition(lambda self: self.running)
    @rule(pick=PICK, finishes=st.booleans())
    def release(self, pick: int, finishes: bool) -> None:
        id = self.running.pop(pick % len(self.running))
        self.reference.release(id)
        for memory in self.memories:
            seq = memory.seqs[id]
            memory.kv.release(seq, seq.num_computed)
            seq._computed = 0
        if not finishes:
            self.waiting.append(id)

    @precondition(lambda self: self.running and self.forks)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        id = self.running[pick % len(self.running)]
        child = f"r{len(self.tokens)}"
        self.tokens[child] = list(self.tokens[id])
        self.reference.fork(id, child)
        for memory in self.memories:
            memory.fork(id, child)
        self.running.append(child)
        self.forked |= {id, child}

    @invariant()
    def same_counts(self) -> None:
        for memory in self.memories:
            assert memory.kv.num_free == len(self.reference.free)
            assert memory.kv.pool.num_evicted == self.reference.num_evicted
            memory.kv.check([memory.seqs[id] for id in self.running])

    @invariant()
    def same_lookups(self) -> None:
        """What anybody may ask for: the prefixes of all that ever ran, but for lazy hashes in use."""
        for id, tokens in self.tokens.items():
            hits = self.reference.lookup(tokens) if id not in self.forked else []
            for memory in self.memories:
                if not (memory.lazy and id in self.running):
                    hit = memory.kv.lookup(memory.seqs[id])
                    assert hit.num_blocks == len(hits)
                    assert hit.num_free == sum(block.refs == 0 for block in hits)

    @invariant()
    def same_holders(self) -> None:
        for id in self.running:
            refs = [block.refs for block in self.reference.tables[id]]
            for memory in self.memories:
                assert holders(memory.kv, memory.seqs[id]) == refs

    @invariant()
    def same_copies(self) -> None:
        copies = Counter(
            hash for run in self.memories[0].kv.pool.cached_runs() for hash in range(run.lo, run.hi)
        )
        assert sorted(copies.values()) == sorted(len(here) for here in self.reference.cached.values())


def holders(kv: BlockManager, seq: Sequence) -> list[int]:
    """Count, block by block of a sequence's table, who holds it."""
    refs = [run.refs for run in held_runs(seq) for _ in range(len(run))]
    return refs + [1] * (kv.blocks_for(seq.num_computed) - len(refs))


def test_a_copy_is_evicted_block_by_block_and_the_other_stays() -> None:
    pool = BlockPool(8)
    pool.take(8)
    (one,), (two,) = pool.publish(0, 4), pool.publish(0, 4)
    pool.drop(one)
    pool.take(1)
    assert sorted(len(run) for run in pool.cached_runs()) == [1, 3, 3]
    assert [n for _, n in pool.match([(0, 4)], 9)] == [3, 1]
    pool.take(3)
    assert [(run.refs, n) for run, n in pool.match([(0, 4)], 9)] == [(1, 3), (1, 1)]
    pool.drop(two)
    assert (pool.num_free, pool.num_evicted) == (3, 4)


@pytest.mark.parametrize("examples", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_runs_of_blocks_do_what_single_blocks_would(examples: int) -> None:
    run_state_machine_as_test(PagedMemory, settings=settings(max_examples=examples, stateful_step_count=60))
