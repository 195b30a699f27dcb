"""Skipped and ticked runs are one and the same: equal decisions and counts, times equal to the bit."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.batch import Batch
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.engine.clients import OPEN_LOOP, ClientPlan
from simulator.engine.clock import step_ends, towards
from simulator.engine.serve import Served, serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import LatencyModel
from simulator.latency.estimate import estimate
from simulator.latency.linear import LinearModel
from simulator.request import Request
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS
from simulator.specs import get_hardware, get_model

LATENCIES: list[LatencyModel] = [
    LinearModel(constant=0.25),  # round numbers: arrivals fall on step boundaries
    LinearModel(constant=0.1, per_token=0.01, per_kv_token=1e-4, host=0.03, per_seq=0.001),
    estimate(get_hardware("a100-80gb-sxm"), get_model("llama-3.1-8b")),
]


@st.composite
def requests(draw: st.DrawFn, block_size: int) -> list[Request]:
    """Arrivals at round and at odd times, block-aligned and other prompts, shared prefixes, impatience."""
    n = draw(st.integers(1, 14))
    gaps = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), st.floats(0, 2, width=32))
    clock, made = 0.0, []
    for i in range(n):
        clock += draw(gaps)
        prompt = draw(st.one_of(st.integers(1, 4).map(lambda k: k * block_size), st.integers(1, 70)))
        shared = draw(st.integers(0, prompt // block_size))
        family = 1000 * draw(st.integers(0, 2))
        made.append(
            Request(
                f"r{i}",
                clock,
                prompt,
                draw(st.integers(1, 60)),
                draw(st.sampled_from([1, 7, 40, 100])),
                block_hashes=((family, family + shared),) if shared else (),
                priority=draw(st.integers(0, 2)),
                timeout=draw(st.sampled_from([None, None, None, 0.5, 4.0])),
            )
        )
    return made


def plans(n: int) -> st.SearchStrategy[ClientPlan]:
    chain = np.array([(i, i + 2) for i in range(n - 2)], dtype=np.int64).reshape(-1, 2)
    causal = ClientPlan(follows=chain, think=np.full(n, 0.25))
    impatient = ClientPlan(cancel_after=np.where(np.arange(n) % 3 == 0, 1.0, np.nan))
    return st.sampled_from(
        [
            OPEN_LOOP,
            causal,
            impatient,
            ClientPlan(max_concurrency=2, pause=0.1),
            ClientPlan(max_concurrency=1),
        ]
    )


def run(policy: type[Scheduler], settings: dict[str, Any], skip: bool) -> Served:
    settings = dict(settings)
    kv = BlockManager(settings.pop("num_blocks"), settings.pop("block_size"), enable_prefix_caching=True)
    sent, latency = settings.pop("requests"), settings.pop("latency")
    outside = {name: settings.pop(name) for name in ("plan", "async_scheduling", "horizon")}
    return serve(sent, policy(kv, **settings), latency, skip=skip, **outside)


def assert_same(skipped: Served, ticked: Served, sent: list[Request]) -> None:
    one, other = skipped.recorder, ticked.recorder
    assert other.num_skipped == 0
    pairs = [
        (one.step_table(), other.step_table()),
        (one.request_table(sent), other.request_table(sent)),
    ]
    for a, b in pairs:
        for field in fields(a):
            mine, theirs = getattr(a, field.name), getattr(b, field.name)
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
    for mine, theirs in zip(one.gaps(), other.gaps(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    kv, same = skipped.scheduler.kv, ticked.scheduler.kv
    assert (kv.num_free, kv.pool.num_evicted, kv.num_hits) == (
        same.num_free,
        same.pool.num_evicted,
        same.num_hits,
    )


@pytest.mark.parametrize("name", BATCHING)
@few_or_many(60, 300, data=st.data())
def test_skipping_changes_not_a_bit(name: str, data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 4, 16]))
    seats = data.draw(st.integers(1, 6))
    sent = data.draw(requests(block_size))
    chosen = {
        "requests": sent,
        "plan": data.draw(plans(len(sent))),
        "latency": data.draw(st.sampled_from(LATENCIES)),
        "block_size": block_size,
        "num_blocks": data.draw(st.sampled_from([12, 20, 40, 400])) * 4 // min(block_size, 4),
        "order": data.draw(st.sampled_from(list(ORDERS.values()))),
        "victim": data.draw(st.sampled_from([None, *VICTIMS.values()])),
        "max_num_seqs": seats,
        "max_num_batched_tokens": data.draw(st.sampled_from([seats, 8, 64])) + seats,
        "max_model_len": 150,
        "min_batch": data.draw(st.integers(1, 3)),
        "max_wait": data.draw(st.sampled_from([0.0, 0.3, 2.0])),
        "scheduler_reserve_full_isl": data.draw(st.booleans()),
        "async_scheduling": data.draw(st.booleans()),
        "horizon": data.draw(st.sampled_from([None, None, 2.5, 7.0])),
    }
    assert_same(run(BATCHING[name], chosen, True), run(BATCHING[name], chosen, False), sent)


def test_most_steps_that_could_be_skipped_are() -> None:
    made = run_scenario(load_scenario("chat-a100").with_(**{"workload.num_requests": 500}))
    share = made.own["skipped_decode_share"]
    assert isinstance(share, float)
    assert 0.5 <= share < 1
    assert made.own["is_stepped"] is False


def test_a_policy_that_is_only_stepped_says_so() -> None:
    from simulator.config.build import Policies
    from simulator.schedulers.chunked import Chunked

    class Mine(Chunked):
        def steady_steps(self, batch: Batch, limit: float) -> int:
            return 0

    scenario = load_scenario("tiny-cpu")
    mine = run_scenario(scenario, policies=Policies(batching=Mine))
    assert mine.own["num_skipped_steps"] == 0
    assert mine.own["is_stepped"] is True
    assert mine.summary["mean_ttft_ms"] == run_scenario(scenario).summary["mean_ttft_ms"]


@given(now=st.floats(0, 1e6), moment=st.floats(0, 1e6))
def test_a_delay_never_leads_beyond_its_moment(now: float, moment: float) -> None:
    if now < moment:
        assert now < now + towards(now, moment) <= moment


@pytest.mark.parametrize("latency", LATENCIES, ids=["round", "line", "roofline"])
@given(steps=st.integers(1, 300), kv=st.integers(10, 10**5), seconds=st.floats(0.001, 40))
@settings(max_examples=40, deadline=None)
def test_step_ends_are_added_up_one_by_one(
    latency: LatencyModel, steps: int, kv: int, seconds: float
) -> None:
    def batch(kv: int) -> Batch:
        made = Batch(100)
        made.add_decodes(5, kv, kv // 5)
        return made

    now, expected = 3.7, []
    for i in range(1, steps + 1):
        now += latency.step_time(batch(kv + 5 * i))
        expected.append(now)
        if now >= 3.7 + seconds:
            break
    assert step_ends(latency, batch(kv), 3.7, steps, 3.7 + seconds) == expected
