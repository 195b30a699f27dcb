"""Who holds how many KV blocks: the cases KV-* from public bug reports, by hand."""

from __future__ import annotations

import pytest
from stepper import Stepper, prompt

from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.kv.block_pool import BlockPool
from simulator.kv.held_blocks import held_runs
from simulator.kv.prefix import PrefixIds
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED
from simulator.request import Request, Sequence
from simulator.schedulers.chunked import Chunked


def admitted(kv: BlockManager, id: str, n: int, hashed: bool = True) -> Sequence:
    """Return a sequence whose n tokens are all computed; sequences of different ids share none."""
    lo = 100 * ord(id[0])
    ranges = [(lo, lo + 100)] if hashed else None
    seq = Sequence(id, n, 100, hash_ranges=ranges, hash_private_from=100)
    assert kv.admit(seq, kv.lookup(seq), n, must_fit=n, watermark=False)
    seq._computed = n
    return seq


def forked(kv: BlockManager, parent: Sequence) -> Sequence:
    child = Sequence("child", parent.num_prompt, 100)
    child._computed = parent.num_computed
    kv.fork(parent, child)
    return child


def grow(kv: BlockManager, seq: Sequence, n: int = 1) -> bool:
    """Compute n more tokens, if there is room."""
    fits = kv.allocate(seq, n)
    seq._computed += n * fits
    return fits


def refs(kv: BlockManager, seq: Sequence) -> list[int]:
    """Count the holders of each block in a sequence's table."""
    counts = [run.refs for run in held_runs(seq) for _ in range(len(run))]
    return counts + [1] * (kv.blocks_for(seq.num_computed) - len(counts))


def test_kv_01_a_block_named_twice_in_one_release_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(ValueError, match="double free"):
        pool.give(2)
    assert pool.num_free == 3
    pool.give(1)
    assert pool.num_free == 4


@pytest.mark.parametrize("hashed", [False, True])
def test_kv_01_a_second_release_is_refused_and_changes_nothing(hashed: bool) -> None:
    kv = BlockManager(4, 4)
    seq = admitted(kv, "A", 4, hashed)
    kv.release(seq, 4)
    with pytest.raises(ValueError, match="double free"):
        kv.release(seq, 4)
    assert (kv.num_free, kv.num_used) == (4, 0)
    kv.check([])


def test_kv_01_a_run_without_holders_cannot_be_dropped() -> None:
    pool = BlockPool(4)
    pool.take(1)
    (run,) = pool.publish(0, 1)
    pool.drop(run)
    with pytest.raises(ValueError, match="released twice"):
        pool.drop(run)
    assert pool.num_free == 4


def test_kv_01_finish_and_abort_at_the_same_instant_free_once() -> None:
    engine = Stepper(usable_blocks=4)
    engine.submit("A", prompt(16), max_tokens=1)
    assert engine.step()["finished"] == ["A"]
    engine.abort("A")
    engine.abort("A")
    assert engine.scheduler.kv.num_free == 4
    engine.scheduler.check()


def test_kv_01_a_timeout_at_the_moment_of_the_last_token_is_counted_once() -> None:
    """Four steps of 0.25 s and a timeout of 1 s fall on the same stamp, exactly."""
    requests = [Request("A", 0.0, 16, 4, 4, timeout=1.0), Request("B", 0.0, 16, 9, 9)]
    scheduler = Chunked(BlockManager(4, 16))
    recorder = serve(requests, scheduler, LinearModel(0.25), check_invariants=True).recorder
    assert recorder.finished_at[0] == 1.0
    assert (recorder.num_done, scheduler.kv.num_free) == (2, 4)


@pytest.mark.parametrize("hashed", [False, True])
def test_kv_02_a_the_writer_copies_only_the_partial_block(hashed: bool) -> None:
    kv = BlockManager(8, 4)
    parent = admitted(kv, "parent", 10, hashed)
    child = forked(kv, parent)
    assert (kv.num_used, refs(kv, parent), refs(kv, child)) == (3, [2, 2, 2], [2, 2, 2])
    assert grow(kv, child)
    assert (kv.num_used, refs(kv, parent), refs(kv, child)) == (4, [2, 2, 1], [2, 2, 1])
    kv.release(child, child.num_computed)
    assert (kv.num_used, refs(kv, parent)) == (3, [1, 1, 1])
    kv.release(parent, parent.num_computed)
    assert kv.num_used == 0
    kv.check([])


@pytest.mark.parametrize("hashed", [False, True])
def test_kv_02_b_a_child_of_full_blocks_opens_a_new_one(hashed: bool) -> None:
    kv = BlockManager(8, 4)
    parent = admitted(kv, "parent", 8, hashed)
    child = forked(kv, parent)
    assert grow(kv, child)
    assert (kv.num_used, refs(kv, child), refs(kv, parent)) == (3, [2, 2, 1], [2, 2])
    kv.check([parent, child])


def test_kv_02_c_a_copy_that_does_not_fit_changes_nothing() -> None:
    kv = BlockManager(3, 4)
    parent = admitted(kv, "parent", 10)
    child = forked(kv, parent)
    assert not grow(kv, child)
    assert (kv.num_used, refs(kv, parent), refs(kv, child)) == (3, [2, 2, 2], [2, 2, 2])
    kv.check([parent, child])


@pytest.mark.parametrize(
    ("num_prompt", "num_output", "blocks"), [(16, 1, 1), (16, 17, 2), (16, 18, 3), (17, 1, 2), (1, 1, 1)]
)
def test_kv_03_the_last_sampled_token_needs_no_slot(num_prompt: int, num_output: int, blocks: int) -> None:
    engine = Stepper(usable_blocks=10, enable_prefix_caching=False)
    engine.submit("A", prompt(num_prompt), max_tokens=num_output)
    last = engine.run()[-1]
    assert len(engine.steps) == num_output
    assert last["held_blocks"] == {"A": blocks}
    assert last["free_blocks"] == 10 - blocks


def test_kv_06_a_fully_cached_prompt_still_computes_its_last_block() -> None:
    """The rule here is vLLM's: hits are whole blocks and never all tokens (16 of 32, 32 of 33)."""
    engine = Stepper()
    tokens = prompt(32)
    found = []
    for id, more in (("A", []), ("B", []), ("C", prompt(1))):
        engine.submit(id, tokens + more, max_tokens=1)
        step = engine.step()
        found.append((step["admitted_cached_tokens"][id], step["scheduled"]))
    assert found == [(0, [["A", 32]]), (16, [["B", 16]]), (32, [["C", 1]])]


def test_kv_06_a_fully_cached_prompt_takes_time_until_its_first_token() -> None:
    requests = [Request(f"r{i}", float(i), 32, 1, 1, block_hashes=((0, 2),)) for i in range(2)]
    recorder = serve(requests, Chunked(BlockManager(10, 16)), LinearModel(0.25)).recorder
    assert list(recorder.num_cached) == [0, 16]
    assert list(recorder.first_token_at) == [0.25, 1.25]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (([65] * 16, None), ([321] * 16, None)),  # equal in their lowest byte
        (([65] * 16, None), ([65601] * 16, None)),  # equal in their two lowest bytes
        (([7] * 16, ("lora", "x")), ([7] * 16, ("salt", "x"))),
        (([7] * 16, ("lora", "x")), ([7] * 16, None)),
    ],
)
def test_kv_07_different_prompts_never_share(one: tuple, other: tuple) -> None:
    assert cached_of_second(PrefixIds(16), one, other) == 0
    assert cached_of_second(PrefixIds(16), one, one) == 16


def test_kv_07_equal_hashes_of_different_contents_do_not_meet() -> None:
    """Blocks are interned by content, so that the only hash there is, Python's own, may be constant."""

    class Token(int):
        def __hash__(self) -> int:
            return 0

    one, other = [Token(1)] * 16, [Token(2)] * 16
    assert hash(tuple(one)) == hash(tuple(other))
    assert cached_of_second(PrefixIds(16), (one, None), (other, None)) == 0


def test_kv_07_a_block_is_another_after_another_prefix() -> None:
    ids = PrefixIds(2)
    one: list[tuple[int, int]] = []
    other: list[tuple[int, int]] = []
    ids.extend(one, 0, [1, 1, 5, 5])
    ids.extend(other, 0, [2, 2, 5, 5])
    assert (one, other) == ([(0, 2)], [(2, 4)])


def cached_of_second(ids: PrefixIds, *prompts: tuple[list[int], object]) -> int:
    """Admit prompts (tokens, extra key) one after the other; return the hit of the last, in tokens."""
    kv = BlockManager(10, ids.block_size)
    for i, (tokens, extra) in enumerate(prompts):
        seq = Sequence(f"r{i}", len(tokens) + 1, 1, hash_private_from=100)
        ids.extend(seq.hash_ranges, 0, [*tokens, 0], extra)
        hit = kv.lookup(seq)
        kv.admit(seq, hit, seq.num_tokens - hit.num_blocks * 16, must_fit=0, watermark=False)
    return hit.num_blocks * ids.block_size


@pytest.mark.parametrize("hashed", [False, True])
def test_kv_08_a_refused_allocation_leaves_the_blocks_held(hashed: bool) -> None:
    kv = BlockManager(5, 4)
    a, b = admitted(kv, "A", 12, hashed), admitted(kv, "B", 8, hashed)
    assert not grow(kv, a)
    assert (refs(kv, a), refs(kv, b), kv.num_used) == ([1, 1, 1], [1, 1], 5)
    kv.release(b, 8)
    assert kv.num_free == 2
    assert grow(kv, a)
    assert (refs(kv, a), kv.num_free) == ([1, 1, 1, 1], 1)
    kv.release(a, 13)
    assert kv.num_free == 5
    kv.check([])


def test_kv_08_a_refused_admission_leaves_the_cache_as_it_was() -> None:
    engine = Stepper(usable_blocks=4)
    tokens = prompt(32)
    engine.submit("A", tokens, max_tokens=1)
    engine.step()
    engine.submit("B", prompt(30), max_tokens=10)
    engine.submit("C", tokens + prompt(17), max_tokens=1)
    step = engine.step()
    assert (step["running"], step["waiting"], step["free_blocks"]) == (["B"], ["C"], 2)
    assert engine.scheduler.kv.lookup(engine.live["C"])[1:] == (2, 2)
    assert engine.step()["scheduled"] == [["B", 1]]


def test_kv_10_an_abort_in_any_state_frees_everything() -> None:
    """The states that exist: waiting, between two chunks, decoding, preempted."""
    for state in ("waiting", "chunk", "decode", "preempted"):
        engine = Stepper(usable_blocks=10, max_num_seqs=2, max_num_batched_tokens=64)
        engine.submit("A", prompt(64), max_tokens=64)
        engine.submit("B", prompt(64), max_tokens=64)
        engine.submit("C", prompt(96), max_tokens=2)
        aborted = {"waiting": "C", "chunk": "C", "decode": "B", "preempted": "B"}[state]
        if state == "chunk":
            engine.abort("A")
            engine.abort("B")
        for _ in range(20):
            if state_of(engine, aborted) != state:
                engine.step()
        assert state_of(engine, aborted) == state
        engine.abort(aborted)
        engine.run()
        assert engine.used == 0
        assert not engine.scheduler.running
        assert not engine.scheduler.waiting
        assert not engine.scheduler.prefills
        assert engine.scheduler.decodes.size == 0
        engine.scheduler.check()


def state_of(engine: Stepper, id: str) -> str:
    seq = engine.live[id]
    if seq.state == "waiting":
        return "preempted" if seq.num_preemptions else "waiting"
    return "decode" if seq.is_decode else "chunk" if seq.state == "running" else seq.state


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_kv_10_timeouts_leave_no_block_behind(async_scheduling: bool) -> None:
    requests = [
        Request(f"r{i}", 0.1 * i, 20 + 37 * i % 200, 5 + i % 60, 40, timeout=0.3 * (i % 7) + 0.05)
        for i in range(40)
    ]
    requests[5] = Request("too long", 0.5, 5000, 1, 1)
    scheduler = Chunked(BlockManager(20, 16), max_num_seqs=8, max_num_batched_tokens=64)
    recorder = serve(
        requests, scheduler, LinearModel(0.02), async_scheduling=async_scheduling, check_invariants=True
    ).recorder
    counts = [list(recorder.status).count(status) for status in (COMPLETED, ABORTED, REJECTED)]
    assert sum(counts) == 40
    assert min(counts) > 0
    assert scheduler.kv.num_used == 0
    assert not scheduler.running
    assert not scheduler.waiting
