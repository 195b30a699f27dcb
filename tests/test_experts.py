"""Experts: which are read and who has most to do, against drawn tokens; by expert or by slice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator import load_scenario, simulate
from simulator.config.build import build_machine
from simulator.errors import ConfigError
from simulator.latency.base import StepFeatures
from simulator.latency.estimate import estimate
from simulator.latency.experts import expert_load, shares
from simulator.latency.roofline import Roofline
from simulator.specs import get_hardware, get_model
from simulator.specs.models import MoE
from simulator.specs.ranks import rank_of

A100 = get_hardware("a100-80gb-sxm")
MIXTRAL = get_model("mixtral-8x7b")
LINE = {"latency.coefficients": {"constant": 0.01}}
MIX = {"model.name": "mixtral-8x7b", "parallel.tensor_parallel_size": 4}


def drawn(moe: MoE, tokens: int, repeats: int) -> tuple[float, float]:
    """Draw tokens that take experts by systematic sampling in random order: mean most pairs, most experts.

    Madow's systematic sampling takes exactly `experts_per_token` different ones, each with its share.
    """
    rng, chosen = np.random.default_rng(1), shares(moe.num_experts, moe.experts_per_token, moe.skew)
    most, experts = [], []
    for _ in range(repeats):
        order = rng.random((tokens, moe.num_experts)).argsort(axis=1)
        ends = np.cumsum(chosen[order], axis=1) - rng.random((tokens, 1)) + 1e-12
        starts = np.concatenate([ends[:, :1] - chosen[order][:, :1], ends[:, :-1]], axis=1)
        counts = np.bincount(order[np.floor(ends) > np.floor(starts)], minlength=moe.num_experts)
        on = counts[rng.permutation(moe.num_experts)].reshape(moe.ranks, -1)
        most.append(on.sum(axis=1).max())
        experts.append((on > 0).sum(axis=1).max())
    return float(np.mean(most)), float(np.mean(experts))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(("num", "each"), [(8, 2), (256, 8), (16, 1), (4, 4)])
def test_shares_add_up_to_the_experts_a_token_takes(num: int, each: int, skew: float) -> None:
    found = shares(num, each, skew)
    assert len(found) == num
    assert found.sum() == pytest.approx(each)
    assert found.max() <= 1 + 1e-9
    assert np.all(np.diff(found) <= 1e-12)


def test_a_lone_gpu_reads_the_experts_that_were_chosen() -> None:
    """8 experts, 2 a token, even: one token reads 2, two read 8 (1 - (3/4)^2) = 3.5, many all 8."""
    load = expert_load(MoE(8, 2, 64), [0, 1, 2, 1000])
    assert load.pairs.tolist() == [0, 2, 4, 2000]
    assert load.experts == pytest.approx([0, 2, 3.5, 8])


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("skew", [0.0, 1.5])
def test_experts_read_are_those_of_drawn_tokens(skew: float, tokens: int) -> None:
    moe = MoE(8, 2, 64, skew=skew)
    found = expert_load(moe, tokens)
    assert float(found.experts) == pytest.approx(drawn(moe, tokens, 1000)[1], rel=0.03)


@pytest.mark.parametrize("tokens", [16, 100])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("num", "each", "skew"), [(8, 2, 0.0), (8, 2, 1.0), (64, 6, 0.0), (64, 6, 2.0)])
def test_the_busiest_gpu_is_that_of_drawn_tokens(
    num: int, each: int, skew: float, ranks: int, tokens: int
) -> None:
    moe = MoE(num, each, 64, skew=skew, ranks=ranks)
    found, (pairs, experts) = expert_load(moe, tokens), drawn(moe, tokens, 400)
    assert float(found.pairs) == pytest.approx(pairs, rel=0.05)
    assert float(found.experts) == pytest.approx(experts, rel=0.06)


def test_the_busiest_gpu_has_no_less_than_its_part_and_no_more_than_all() -> None:
    tokens = np.array([1, 2, 5, 37, 400, 5000])
    for ranks in (2, 4, 8):
        for skew in (0.0, 1.0, 3.0):
            load = expert_load(MoE(8, 2, 64, skew=skew, ranks=ranks), tokens)
            assert np.all(load.pairs >= 2 * tokens / ranks - 1e-9)
            assert np.all(load.pairs <= 2 * tokens)
            assert np.all(load.experts <= 8 / ranks + 1e-9)
            assert np.all(np.diff(load.pairs) > 0)
    even, skewed = (float(expert_load(MoE(8, 2, 64, skew=s, ranks=4), 10_000).pairs) for s in (0, 2))
    assert even < 1.03 * 5000
    assert skewed > 1.4 * 5000


def test_a_rank_has_whole_experts_or_a_slice_of_each() -> None:
    split, whole = rank_of(MIXTRAL, 4), rank_of(MIXTRAL, 4, expert_parallel=True)
    assert split.moe == replace(MIXTRAL.moe or MoE(1, 1, 1), intermediate_size=14336 // 4)
    assert whole.moe == replace(MIXTRAL.moe or MoE(1, 1, 1), ranks=4)
    assert whole.num_heads == split.num_heads == 8


def test_prefill_waits_for_the_busiest_gpu_and_a_lone_token_reads_one_expert() -> None:
    """At many tokens slices are quicker. A token reads 2/4 of an expert by slices; a GPU one whole."""
    by_slices = Roofline.of(A100, rank_of(MIXTRAL, 4))
    by_experts = Roofline.of(A100, rank_of(MIXTRAL, 4, expert_parallel=True))
    expert = 3 * 14336 * 4096 * 2 / (0.765 * A100.hbm_bandwidth)
    one = float(by_experts.layer(1)) - float(by_slices.layer(1))
    assert 0.4 * expert < one < 0.9 * expert
    many = float(by_experts.layer(8192)) / float(by_slices.layer(8192))
    assert 1.0 < many < 1.05
    skewed = replace(MIXTRAL, moe=replace(MIXTRAL.moe or MoE(1, 1, 1), skew=1.0))
    slow = Roofline.of(A100, rank_of(skewed, 4, expert_parallel=True))
    assert float(slow.layer(8192)) > 1.3 * float(by_slices.layer(8192))


def test_memory_is_the_same_either_way_and_the_scenario_says_what_is_assumed() -> None:
    scenario = load_scenario("chat-a100").with_(**MIX)
    expert = scenario.with_(**{"parallel.expert_parallel": True, "parallel.expert_skew": 1.0})
    assert build_machine(scenario).kv == build_machine(expert).kv
    result = simulate(expert.with_(**{"workload.num_requests": 20}))
    assert result.summary["servetwin"]["completed"] == 20
    assert any("Zipf exponent of 1" in note for note in result.summary["servetwin"]["notes"])


def test_experts_go_into_stages_too() -> None:
    keys = {"parallel.pipeline_parallel_size": 2, "parallel.expert_parallel": True}
    scenario = load_scenario("chat-a100").with_(**{**MIX, **keys, "parallel.tensor_parallel_size": 2})
    machine = build_machine(scenario)
    step = StepFeatures.decode([500] * 32)
    whole = estimate(A100, MIXTRAL, tensor_parallel_size=2, expert_parallel=True)
    link = 1.5e-3 + 32 * 4.4e-6  # a second host
    assert machine.latency.step_time(step) == pytest.approx(whole.step_time(step) + link, rel=0.02)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"parallel.expert_parallel": True}, "llama-3.1-8b has no experts"),
        ({"parallel.expert_skew": 1.0}, "parallel.expert_skew: must be 0, since llama-3.1-8b has no experts"),
        (
            {**MIX, "parallel.expert_parallel": True, "parallel.tensor_parallel_size": 1},
            "tensor_parallel_size > 1",
        ),
        (
            {**MIX, "parallel.expert_parallel": True, "latency.kind": "linear", **LINE},
            "does not know experts",
        ),
    ],
)
def test_experts_that_are_not_there_are_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_machine(load_scenario("chat-a100").with_(**keys))


@pytest.mark.parametrize("value", [-1, 5, "nan", None, True])
def test_skews_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="expert_skew"):
        load_scenario("chat-a100").with_(**{"parallel.expert_skew": value})
