"""The cases SC-* from public bug reports, worked by hand; vLLM's rules are in test_vllm_rules.py."""

from __future__ import annotations

import pytest
from stepper import Stepper, prompt

from simulator.engine.admission import why_rejected
from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import COMPLETED, REJECTED
from simulator.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked

CLOCK = LinearModel(0.25)


def test_sc_01_a_prompt_larger_than_the_pool_is_rejected_and_blocks_nobody() -> None:
    requests = [Request("R0", 0.0, 2000, 10, 10), Request("R1", 0.0, 100, 10, 10)]
    scheduler = Chunked(BlockManager(100, 16), max_model_len=4096)
    assert why_rejected(requests[0], scheduler) == "needs more KV blocks than there are"
    assert why_rejected(requests[1], scheduler) is None
    recorder = serve(requests, scheduler, CLOCK, check_invariants=True).recorder
    assert list(recorder.status) == [REJECTED, COMPLETED]
    assert list(recorder.num_output) == [0, 10]


def test_sc_01_a_run_of_nothing_but_oversized_prompts_ends() -> None:
    requests = [Request(f"R{i}", float(i), 2000, 10, 10) for i in range(3)]
    recorder = serve(requests, Chunked(BlockManager(100, 16)), CLOCK).recorder
    assert list(recorder.status) == [REJECTED] * 3


def test_sc_01_the_largest_request_that_fits_the_pool_completes() -> None:
    scheduler = Chunked(BlockManager(100, 16), max_model_len=4096)
    largest = Request("R0", 0.0, 1500, 101, 101)  # 1,600 rows: the last token needs none
    assert why_rejected(Request("R1", 0.0, 1500, 102, 102), scheduler) is not None
    recorder = serve([largest], scheduler, CLOCK, check_invariants=True).recorder
    assert list(recorder.num_output) == [101]


def test_sc_03_a_prompt_larger_than_the_budget_is_cut_to_it() -> None:
    engine = Stepper(max_num_batched_tokens=512)
    engine.submit("A", prompt(600), max_tokens=1)
    steps = engine.run()
    assert [step["scheduled"] for step in steps] == [[["A", 512]], [["A", 88]]]
    assert [list(step["sampled"]) for step in steps] == [[], ["A"]]


def test_sc_03_a_threshold_above_the_budget_is_harmless() -> None:
    engine = Stepper(max_num_batched_tokens=2048, long_prefill_token_threshold=4096, max_model_len=8192)
    engine.submit("A", prompt(4096), max_tokens=1)
    engine.submit("B", prompt(1), max_tokens=1)
    assert [step["scheduled"] for step in engine.run()] == [[["A", 2048]], [["A", 2048]], [["B", 1]]]


def test_sc_03_a_chunk_larger_than_the_free_blocks_waits() -> None:
    """704 tokens are free when a chunk of 2,048 is due: it is given back and computed again later."""
    engine = Stepper(
        usable_blocks=300, max_num_batched_tokens=2049, scheduler_reserve_full_isl=False, max_model_len=8192
    )
    engine.submit("A", prompt(2040), max_tokens=20)
    engine.step()
    engine.submit("B", prompt(4096), max_tokens=1)
    assert engine.step()["free_blocks"] * 16 == 704
    step = engine.step()
    assert (step["preempted"], step["scheduled"]) == (["B"], [["A", 1]])
    steps = engine.run()
    assert min(step["free_blocks"] for step in steps) >= 0
    assert steps[-1]["finished"] == ["B"]


def test_sc_04_nothing_outgrows_max_model_len() -> None:
    requests = [
        Request("long", 0.0, 1025, 1, 1),
        Request("short", 0.0, 10, 5, 5),
        Request("edge", 0.0, 1020, 100, 100),
    ]
    scheduler = Chunked(BlockManager(1000, 16), max_model_len=1024)
    recorder = serve(requests, scheduler, CLOCK, check_invariants=True).recorder
    assert list(recorder.status) == [REJECTED, COMPLETED, COMPLETED]
    assert list(recorder.num_output) == [0, 5, 4]
    assert recorder.reason == {0: "prompt >= max_model_len", 2: "length"}


def test_sc_05_two_that_do_not_fit_preempt_once() -> None:
    engine = Stepper(usable_blocks=10, enable_prefix_caching=False)
    engine.submit("A", prompt(64), max_tokens=64)
    engine.submit("B", prompt(64), max_tokens=64)
    steps = engine.run()
    assert [(i, step["preempted"]) for i, step in enumerate(steps, 1) if step["preempted"]] == [(18, ["B"])]
    assert [(i, step["finished"]) for i, step in enumerate(steps, 1) if step["finished"]] == [
        (64, ["A"]),
        (111, ["B"]),
    ]
    rows = sum(n for step in steps for _, n in step["scheduled"])
    assert rows - 2 * 127 == 80
    assert steps[64]["scheduled"] == [["B", 81]]
    assert len(steps) == 111
    assert engine.scheduler.kv.num_free == 10


def test_sc_07_a_waiting_request_holds_nothing() -> None:
    engine = Stepper(usable_blocks=10, max_num_batched_tokens=32)
    engine.submit("A", prompt(32))
    engine.submit("B", prompt(32))
    step = engine.step()
    assert (step["scheduled"], step["waiting"], engine.used) == ([["A", 32]], ["B"], 2)


def test_a_policy_without_schedule_says_so() -> None:
    with pytest.raises(NotImplementedError, match="schedule"):
        Scheduler(BlockManager(10)).schedule(0.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be >= 1, got 0"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "must be >= max_num_seqs"),
    ],
)
def test_impossible_limits_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chunked(BlockManager(10), **settings)
