"""vLLM's scheduling rules, one hand-worked example each: the directed list (10.2) of its specification.

Its item (l), rejected draft tokens, waits for speculative decoding.
"""

from __future__ import annotations

import pytest
from stepper import Stepper, prompt


def test_10_2_a_a_block_aligned_prompt_hits_all_but_its_last_block() -> None:
    engine = Stepper()
    tokens = prompt(64)
    for id in "AB":
        engine.submit(id, tokens, max_tokens=1)
        step = engine.step()
    assert step["admitted_cached_tokens"] == {"B": 48}


def test_10_2_b_a_prompt_hits_what_the_same_step_is_yet_to_compute() -> None:
    engine = Stepper()
    tokens = prompt(40)
    for id in "AB":
        engine.submit(id, tokens)
    step = engine.step()
    assert step["scheduled"] == [["A", 40], ["B", 8]]
    assert (step["admitted_cached_tokens"], engine.used) == ({"A": 0, "B": 32}, 4)


@pytest.mark.parametrize(("max_tokens", "admitted"), [(1, {}), (9, {"B": 32})])
def test_10_2_c_a_hit_that_nobody_holds_costs_a_free_block(max_tokens: int, admitted: dict[str, int]) -> None:
    """B needs 4 blocks of which it finds 2; of the 5, either X holds 2 or A holds 3, those two included."""
    engine = Stepper(usable_blocks=5)
    tokens = prompt(32)
    engine.submit("A", tokens + prompt(1), max_tokens=max_tokens)
    engine.step()
    if max_tokens == 1:
        engine.submit("X", prompt(20))
        engine.step()
    engine.submit("B", tokens + prompt(17), max_tokens=1)
    assert engine.step()["admitted_cached_tokens"] == admitted


def test_10_2_d_the_last_admitted_is_preempted_to_the_front_and_nobody_is_admitted() -> None:
    engine = Stepper(usable_blocks=10, max_num_seqs=2)
    for id in "ABC":
        engine.submit(id, prompt(64 if id != "C" else 1), max_tokens=64)
    step = next(step for step in iter(engine.step, None) if step["preempted"])
    assert step["scheduled"] == [["A", 1]]
    assert (step["preempted"], step["running"], step["waiting"]) == (["B"], ["A"], ["B", "C"])
    assert step["free_blocks"] == 4
    assert engine.step()["running"] == ["A"]  # C would fit, but B is the head


def test_10_2_d_several_victims_of_one_step_keep_their_order() -> None:
    engine = Stepper(usable_blocks=4, block_size=4, enable_prefix_caching=False)
    for id in "ABCD":
        engine.submit(id, prompt(4))
    engine.step()
    step = engine.step()
    assert (step["running"], step["waiting"], step["scheduled"]) == (
        ["A", "B"],
        ["C", "D"],
        [["A", 1], ["B", 1]],
    )


def test_10_2_e_a_victim_already_scheduled_gives_its_tokens_back() -> None:
    """H's second chunk takes the blocks of L, whose one token then goes to N."""
    engine = Stepper(
        usable_blocks=5,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=10,
        long_prefill_token_threshold=4,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
    )
    engine.submit("L", prompt(4), priority=9)
    engine.step()
    for place, id in enumerate("HMN"):
        engine.submit(id, prompt(20), priority=place)
    assert engine.step()["scheduled"] == [["L", 1], ["H", 4], ["M", 4], ["N", 1]]
    step = engine.step()
    assert (step["preempted"], step["waiting"]) == (["L"], ["L"])
    assert step["scheduled"] == [["H", 4], ["M", 4], ["N", 2]]
    assert engine.batch is not None
    assert engine.batch.budget == 0


def test_10_2_f_later_ones_go_on_when_the_least_important_preempts_itself() -> None:
    engine = Stepper(usable_blocks=4, block_size=4, scheduling_policy="priority")
    engine.submit("L", prompt(4), priority=9)
    engine.step()
    engine.submit("H", prompt(5), priority=0)
    step = next(step for step in iter(engine.step, None) if step["preempted"])
    assert (step["preempted"], step["scheduled"]) == (["L"], [["H", 1]])
    assert engine.steps[-2]["scheduled"] == [["L", 1], ["H", 1]]


def test_10_2_g_the_prefill_threshold_is_off_for_a_lone_request() -> None:
    engine = Stepper(long_prefill_token_threshold=8)
    engine.submit("A", prompt(32))
    assert engine.step()["scheduled"] == [["A", 32]]
    engine.submit("B", prompt(32))
    assert engine.step()["scheduled"] == [["A", 1], ["B", 8]]
    engine.abort("A")
    assert engine.step()["scheduled"] == [["B", 24]]


@pytest.mark.parametrize(("reserve", "scheduled"), [(True, [["A", 1]]), (False, [["A", 1], ["B", 31]])])
def test_10_2_h_the_whole_prompt_must_fit_not_only_its_first_chunk(reserve: bool, scheduled: list) -> None:
    engine = Stepper(usable_blocks=8, max_num_batched_tokens=32, scheduler_reserve_full_isl=reserve)
    engine.submit("A", prompt(32))
    engine.step()
    engine.submit("B", prompt(96))
    assert engine.step()["scheduled"] == scheduled


def test_10_2_i_the_watermark_counts_only_while_others_run() -> None:
    """5 of 10 blocks stay free when something is admitted; a prompt of 7 blocks runs alone all the same."""
    engine = Stepper(usable_blocks=10, watermark=0.5)
    engine.submit("A", prompt(112), max_tokens=1)
    assert engine.step()["scheduled"] == [["A", 112]]
    engine.submit("B", prompt(10), max_tokens=2)
    engine.submit("C", prompt(80), max_tokens=1)  # 5 blocks of 9, which leaves 4
    assert engine.step()["scheduled"] == [["B", 10]]
    assert engine.step()["scheduled"] == [["B", 1]]
    assert engine.step()["scheduled"] == [["C", 80]]


def test_10_2_j_uncached_blocks_go_first_then_cached_ones_from_the_tail() -> None:
    engine = Stepper(usable_blocks=3)
    tokens = prompt(40)
    left = []
    for taken in (1, 2, 3):
        engine.submit(f"A{taken}", tokens, max_tokens=1)
        engine.step()
        engine.submit(f"X{taken}", prompt(16 * taken), max_tokens=1)
        engine.step()
        left.append(engine.lookup(tokens))
    assert left == [2, 1, 0]


def test_10_2_j_of_two_sequences_the_one_released_first_is_evicted_first() -> None:
    engine = Stepper(usable_blocks=4)
    first, second = prompt(33), prompt(17)
    engine.submit("A", first, max_tokens=1)
    engine.step()
    engine.submit("B", second, max_tokens=1)  # takes the two blocks that hold no hash
    engine.step()
    engine.submit("X", prompt(32), max_tokens=1)  # takes B's partial block and A's tail
    engine.step()
    assert (engine.lookup(first), engine.lookup(second)) == (1, 1)


def test_10_2_k_a_resumed_sequence_finds_its_own_outputs() -> None:
    engine = Stepper(usable_blocks=10)
    engine.submit("A", prompt(64), max_tokens=34)
    engine.submit("B", prompt(16), max_tokens=64)
    step = next(step for step in iter(engine.step, None) if "B" in step["waiting"])
    assert (len(engine.steps), step["preempted"]) == (34, ["B"])
    assert engine.live["B"].num_output == 33
    step = engine.step()
    assert step["admitted_cached_tokens"] == {"B": 48}
    assert step["scheduled"] == [["B", 1]]


def test_10_2_m_max_model_len_caps_what_is_computed() -> None:
    engine = Stepper(max_model_len=20)
    engine.submit("A", prompt(18), max_tokens=10)
    assert [step["scheduled"] for step in engine.run()] == [[["A", 18]], [["A", 1]]]
    assert len(engine.tokens["A"]) == 20


def test_10_2_n_a_shared_block_is_free_when_its_last_holder_is_done() -> None:
    engine = Stepper(usable_blocks=10)
    tokens = prompt(32)
    engine.submit("A", tokens + prompt(1), max_tokens=2)
    engine.submit("B", tokens + prompt(1), max_tokens=3)
    free = [(step["free_blocks"], step["free_blocks_after"]) for step in engine.run()]
    assert free == [(6, 6), (6, 7), (7, 10)]


def test_a_victim_is_not_scheduled_though_it_decodes_and_an_older_prompt_is_not_done() -> None:
    engine = Stepper(
        usable_blocks=5, block_size=4, long_prefill_token_threshold=4, scheduler_reserve_full_isl=False
    )
    engine.submit("A", prompt(40))
    engine.submit("B", prompt(3))
    steps = [engine.step() for _ in range(4)]
    assert [step["scheduled"] for step in steps[:3]] == [
        [["A", 4], ["B", 3]],
        [["A", 4], ["B", 1]],
        [["A", 4], ["B", 1]],
    ]
    assert (steps[3]["scheduled"], steps[3]["preempted"]) == ([["A", 4]], ["B"])


def test_a_resumed_sequence_must_fit_with_its_outputs() -> None:
    """B resumes with 81 tokens, 6 blocks; its 4 blocks of prompt would fit beside A, as would each chunk."""
    engine = Stepper(usable_blocks=10, max_num_batched_tokens=128, enable_prefix_caching=False)
    engine.submit("A", prompt(64), max_tokens=64)
    engine.submit("B", prompt(64), max_tokens=64)
    while not engine.steps or "B" not in engine.steps[-1]["waiting"]:
        engine.step()
    engine.scheduler.max_num_batched_tokens = 32
    resumed = next(step for step in iter(engine.step, None) if "B" in step["running"])
    assert resumed["running"] == ["B"]


def test_what_ends_in_one_step_is_released_in_the_order_of_admission() -> None:
    """A stops by itself and B by its limit; A's blocks are released, hence evicted, before B's."""
    engine = Stepper(usable_blocks=4)
    first, second = prompt(17), prompt(17)
    engine.submit("A", first, num_output=2)
    engine.submit("B", second, max_tokens=2)
    assert [engine.step()["finished"] for _ in range(2)] == [[], ["A", "B"]]
    engine.submit("X", prompt(48), max_tokens=1)
    engine.step()
    assert (engine.lookup(first), engine.lookup(second)) == (0, 1)
