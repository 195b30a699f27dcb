"""Deciding a step before the last one's results are in (rule 8.4): what it wastes and when it frees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepper import AsyncStepper, Stepper, prompt

from simulator.batch import StepResult


@pytest.mark.parametrize("num_prompt", [1, 16, 40])
@pytest.mark.parametrize("num_output", [1, 2, 17])
def test_max_tokens_wastes_no_row(num_prompt: int, num_output: int) -> None:
    engine = AsyncStepper()
    engine.submit("A", prompt(num_prompt), max_tokens=num_output)
    engine.run()
    assert engine.rows("A") == num_prompt + num_output - 1
    assert len(engine.tokens["A"]) == num_prompt + num_output


@pytest.mark.parametrize("num_prompt", [1, 16, 40])
@pytest.mark.parametrize("num_output", [1, 2, 17])
def test_a_stop_token_wastes_exactly_one_row(num_prompt: int, num_output: int) -> None:
    engine = AsyncStepper()
    engine.submit("A", prompt(num_prompt), max_tokens=num_output + 1, num_output=num_output)
    engine.run()
    assert engine.rows("A") == num_prompt + num_output
    assert len(engine.tokens["A"]) == num_prompt + num_output
    assert engine.used == 0


def test_a_stop_token_that_is_the_last_allowed_anyway_wastes_nothing() -> None:
    engine = AsyncStepper()
    engine.submit("A", prompt(16), max_tokens=5, num_output=5)
    engine.run()
    assert engine.rows("A") == 20


@pytest.mark.parametrize("num_output", [None, 3])
def test_blocks_are_free_one_step_later_than_without(num_output: int | None) -> None:
    free = {}
    for kind in (Stepper, AsyncStepper):
        engine = kind(usable_blocks=10, enable_prefix_caching=False)
        engine.submit("A", prompt(20), max_tokens=3 if num_output is None else 9, num_output=num_output)
        engine.submit("B", prompt(20), max_tokens=7)
        free[kind] = [engine.step()["free_blocks"] for _ in range(6)]
    assert free[Stepper] == [6, 6, 6, 8, 8, 8]
    assert free[AsyncStepper] == [6, 6, 6, 6, 8, 8]


def test_a_new_request_starts_one_step_later_than_without() -> None:
    admitted = {}
    for kind in (Stepper, AsyncStepper):
        engine = kind(max_num_seqs=1)
        engine.submit("A", prompt(20), max_tokens=3)
        engine.submit("B", prompt(20), max_tokens=1)
        steps = [step["scheduled"] for step in engine.run()]
        admitted[kind] = steps.index([["B", 20]])
    assert admitted == {Stepper: 3, AsyncStepper: 4}


def test_one_that_stopped_may_be_preempted_before_that_is_known() -> None:
    """B samples its end in step 17, is preempted in step 18, and ends there without a further row."""
    engine = AsyncStepper(usable_blocks=10, enable_prefix_caching=False)
    engine.submit("A", prompt(64), max_tokens=64)
    engine.submit("B", prompt(64), max_tokens=64, num_output=17)
    steps = engine.run()
    assert (steps[17]["preempted"], steps[17]["finished"]) == (["B"], ["B"])
    assert engine.rows("B") == 80
    assert engine.used == 0


def test_one_at_its_max_tokens_may_be_preempted_before_that_is_known() -> None:
    engine = AsyncStepper(usable_blocks=10, enable_prefix_caching=False)
    engine.submit("A", prompt(64), max_tokens=64)
    engine.submit("B", prompt(64), max_tokens=17)
    steps = engine.run()
    assert (steps[17]["preempted"], steps[17]["finished"]) == (["B"], ["B"])
    assert engine.rows("B") == 80
    assert engine.used == 0


def test_a_block_of_outputs_is_cached_once_its_last_token_is_known() -> None:
    """Its hash is not known yet when the step that fills it is decided, but is at the next."""
    engine = AsyncStepper()
    engine.submit("A", prompt(16), max_tokens=40)
    for _ in range(17):
        engine.step()
    known = engine.tokens["A"][:32]
    assert len(known) == 32
    engine.submit("B", known + prompt(1), max_tokens=1)
    assert engine.step()["admitted_cached_tokens"] == {"B": 32}


def test_results_of_what_was_aborted_meanwhile_change_nothing() -> None:
    engine = Stepper(block_size=4)
    engine.submit("A", prompt(8))
    batch = engine.scheduler.schedule(0.0)
    engine.abort("A")
    result = StepResult([engine.live["A"]], {engine.live["A"]: [(500, 503)]})
    assert engine.scheduler.update(batch, result, 0.0) == []
    assert engine.used == 0
    engine.scheduler.check()


@settings(max_examples=80, deadline=None)
@given(
    config=st.fixed_dictionaries(
        {
            "usable_blocks": st.integers(12, 30),
            "block_size": st.sampled_from([2, 3, 4]),
            "max_num_seqs": st.integers(1, 6),
            "max_num_batched_tokens": st.integers(6, 30),
            "max_model_len": st.just(25),
            "enable_prefix_caching": st.booleans(),
            "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
            "scheduler_reserve_full_isl": st.booleans(),
        }
    ),
    rows=st.lists(
        st.tuples(
            st.integers(0, 3),  # steps since the last arrival
            st.integers(1, 16),  # prompt
            st.integers(1, 12),  # max_tokens
            st.integers(1, 12),  # true output
            st.integers(0, 2),  # priority
            st.sampled_from([None, None, None, 0, 3, 9]),  # steps until the client goes away
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_every_request_ends_once_and_its_blocks_with_it(config: dict[str, Any], rows: list) -> None:
    """`Scheduler.check` runs before and after every update; a double free would raise there."""
    engine = AsyncStepper(sample=lambda tokens: len(tokens) % 3, **config)
    leaves: dict[int, list[str]] = {}

    def step() -> None:
        engine.step()
        for id in leaves.pop(len(engine.steps), []):
            engine.abort(id)

    for i, (gap, num_prompt, max_tokens, num_output, priority, patience) in enumerate(rows):
        for _ in range(gap):
            step()
        engine.submit(f"r{i:02d}", [0] * num_prompt, max_tokens, priority, num_output)
        if patience is not None:
            leaves.setdefault(len(engine.steps) + patience + 1, []).append(f"r{i:02d}")
    while engine.scheduler.running or engine.scheduler.waiting:
        step()
    ended = [id for each in engine.steps for id in each["finished"]]
    assert len(ended) == len(set(ended))
    assert engine.used == 0
    for i, (_, num_prompt, max_tokens, num_output, _, patience) in enumerate(rows):
        seq = engine.live[f"r{i:02d}"]
        assert seq.state == "finished"
        if patience is None:
            limit = min(max_tokens, 25 - num_prompt)
            assert seq.id in ended
            assert len(engine.tokens[seq.id]) - num_prompt == min(num_output, limit)
            if not seq.num_preemptions and not config["enable_prefix_caching"]:
                assert engine.rows(seq.id) == num_prompt + min(num_output, limit - 1)
