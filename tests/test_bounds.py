"""Bounds by hand, and on random runs: no policy beats them, whatever the load, the memory and the prices."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.api import Bounds, bounds, simulate
from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.engine.clients import ClientPlan
from simulator.errors import ConfigError
from simulator.experiments.bounds import DATA_SHEET, REFERENCE, Found, Served, find_bounds
from simulator.experiments.bounds_alone import earliest_arrivals, places_limit
from simulator.experiments.bounds_gap import bounds as least_values
from simulator.experiments.bounds_gap import limit_rows, rows, slowdowns, values, verdict
from simulator.experiments.bounds_plots import BOUNDS_PLOTS
from simulator.experiments.bounds_prices import cheapest_cuts, least_prices
from simulator.experiments.bounds_queue import srpt_ends
from simulator.experiments.bounds_work import Demand, Limits, Peaks, least_steps, priced
from simulator.kv.eviction import EVICTIONS
from simulator.latency.base import StepFeatures
from simulator.latency.estimate import estimate
from simulator.latency.linear import LinearModel
from simulator.latency.profile import Profile
from simulator.schedulers import BATCHING
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS
from simulator.specs import get_hardware, get_model
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Workload

CLOSE = 1e-9  # sums of step times in another order


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def demand(*rows: tuple[float, int, int], cached: int = 0, shared: int = 0, preempted: int = 0) -> Demand:
    """Requests as (earliest, prompt, output), each with the same cached tokens and shared blocks."""
    earliest, prompt, output = zip(*rows, strict=True)
    n = len(rows)
    return Demand(
        np.array(earliest),
        ints(*prompt),
        ints(*output),
        *(ints(*[v] * n) for v in (cached, shared, preempted)),
    )


def workload(
    *rows: tuple[float, int, int], hashes: list[list[int]] | None = None, **changes: Any
) -> Workload:
    """Requests as (arrival, prompt, output) that ask for what they get; `hashes` name blocks of 4 tokens."""
    arrival, prompt, output = zip(*rows, strict=True)
    blocks = None
    if hashes is not None:
        offsets = np.cumsum([0, *map(len, hashes)])
        blocks = TraceBlocks.of_ids(ints(*itertools.chain(*hashes)), offsets, 4)
    facts = {"max_tokens": ints(*output), "blocks": blocks} | changes
    return Workload(np.array(arrival), ints(*prompt), ints(*output), **facts)


def serve(load: Workload, coefficients: dict[str, float], **changes: object) -> Found:
    """Serve a workload by a line's prices on a small server, and bound it."""
    scenario = load_scenario({"name": "small", "latency": {"kind": "linear", "coefficients": coefficients}})
    small = {"kv.block_size": 4, "kv.num_gpu_blocks_override": 101, "scheduler.max_num_seqs": 8}
    return find_bounds(run_scenario(scenario.with_(**small | changes), workload=load))


def limits_of(found: Found) -> dict[str, float]:
    return {limit.name: limit.seconds for limit in found.limits}


# A request alone.


def test_a_request_alone_takes_exactly_its_least() -> None:
    """1 s a step, 0.01 s a row, 0.001 s a token read; 10 prompt tokens and 4 outputs make 4 steps."""
    found = serve(workload((2.0, 10, 4)), {"constant": 1.0, "per_token": 0.01, "per_kv_token": 0.001})
    ttft, decode = 1 + 0.1, 3 * 1.01 + 0.001 * (11 + 12 + 13)
    assert found.own.least("ttft").tolist() == pytest.approx([ttft], rel=CLOSE)
    assert found.own.least("e2el").tolist() == pytest.approx([ttft + decode], rel=CLOSE)
    for metric in ("ttft", "e2el"):
        assert slowdowns(found.own, metric).tolist() == pytest.approx([1.0], rel=CLOSE)
    assert found.own.makespan == pytest.approx(ttft + decode, rel=CLOSE)
    assert limits_of(found)["arrivals"] == pytest.approx(ttft + decode, rel=CLOSE)
    assert found.binding is not None
    assert found.binding.name == "arrivals"


def test_the_best_cached_prefix_has_full_blocks_and_never_the_whole_prompt() -> None:
    """Blocks of 4. B shares 2 with A and computes 5 of 13; C is A again: 4 of 8 tokens may hit."""
    load = workload((0, 8, 1), (10, 13, 1), (20, 8, 1), hashes=[[1, 2], [1, 2, 7], [1, 2]])
    found = serve(load, {"constant": 1.0, "per_token": 0.1})
    assert found.own.least("ttft").tolist() == pytest.approx([1.8, 1.5, 1.4], rel=CLOSE)
    assert found.own.measured.ttft.tolist() == pytest.approx([1.8, 1.5, 1.4], rel=CLOSE)
    without = serve(load, {"constant": 1.0, "per_token": 0.1}, **{"kv.enable_prefix_caching": False})
    assert without.own.least("ttft").tolist() == pytest.approx([1.8, 2.3, 1.8], rel=CLOSE)


def test_shared_blocks_are_those_that_another_request_has_too() -> None:
    """Before it or after it, as far as all blocks before are shared."""
    offsets = ints(0, 2, 5, 6, 9)
    blocks = TraceBlocks.of_ids(ints(1, 2, 1, 2, 7, 5, 1, 3, 4), offsets, 4)
    assert blocks.shared_blocks().tolist() == [2, 2, 0, 1]
    assert blocks.hit_blocks().tolist() == [0, 2, 0, 1]


def test_a_preemption_may_spare_a_long_read_but_costs_a_step() -> None:
    """A decode at 1,000 tokens is priced at 11 s, waiting a step and computing the last token at 2 s."""
    prices = least_prices(LinearModel(1.0, per_kv_token=0.01), 100, 8, 2000)
    assert prices is not None
    assert prices.decodes(1000, 8)[[50, 100, 1000]].tolist() == pytest.approx([1.5, 2.0, 2.0])


def test_company_may_make_a_decode_cheaper_and_then_counts() -> None:
    """Halving a context between two sequences halves nothing but the kernel's time for it."""
    profile = estimate(get_hardware("a100-80gb-sxm"), get_model("llama-3.1-8b"))
    grid = profile.decode
    slow_alone = replace(profile, decode=grid._replace(seconds=grid.seconds * np.array([[3.0], [1.0]])))
    prices = least_prices(slow_alone, 2048, 256, 4096)
    assert prices is not None
    assert prices.decodes(4096, 256)[4096] < prices.decodes(4096, 1)[4096]
    assert prices.decodes(4096, 1)[4096] == pytest.approx(slow_alone.step_time(decode_of(4096)), rel=CLOSE)


def decode_of(kv: int) -> Any:
    return StepFeatures.decode([kv])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_the_cheapest_cut_is_the_cheapest_of_all_cuts(prices: list[int]) -> None:
    def brute(n: int) -> float:
        return min([prices[n - 1], *(brute(k) + brute(n - k) for k in range(1, n // 2 + 1))])

    found = cheapest_cuts(np.array([0.0, *map(float, prices)]))
    assert found.tolist() == [0.0, *(brute(n) for n in range(1, len(prices) + 1))]


def test_a_long_prompt_is_priced_below_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    seconds = np.concatenate([[0.0], np.sort(rng.random(400)) + 0.2])
    exact = cheapest_cuts(seconds)
    monkeypatch.setattr("simulator.experiments.bounds_prices.EXACT_CUTS", 100)
    rough = cheapest_cuts(seconds)
    assert (rough[:101] == exact[:101]).all()
    assert (rough <= exact + CLOSE).all()
    assert (rough[101:] > 0.5 * exact[101:]).all()


# Work that adds up.


def test_steps_are_bounded_by_seats_and_by_blocks() -> None:
    """Two of 10 outputs on 4 seats: 5 steps. Prompts of 8 in blocks of 4 hold 2, 3 x 4, 4 x 4, 5 blocks."""
    limits = Limits(4, 10, 4, 100)
    held = 2 + 4 * 3 + 4 * 4 + 5
    found = least_steps(demand((0, 8, 10), (0, 8, 10)), limits)
    assert found["max_num_seqs"].sum() == 5
    assert found["KV blocks"].tolist() == [held / 10, held / 10]
    shared = least_steps(demand((0, 8, 10), shared=1), limits)
    assert shared["KV blocks"].tolist() == [(held - 10) / 10]


GPU = Hardware("toy", "toy", 10**9, 1000.0, 10_000.0, 20_000.0, 40_000.0, 1, 10, 1.0)
TOY = Model("toy", 2, 4, 1, 1, 4, 8, 10, 1000, gated_mlp=False, dtype="float16")


def test_data_sheet_limits_count_every_product_and_every_byte() -> None:
    """Per layer q, k, v (12 x 4), out (4 x 4) and MLP (8 x 4 twice): 128 weights; the head has 40.

    A prompt of 3 and 2 outputs compute tokens 0..3, which look at 1 + 2 + 3 + 4 keys; a pair costs
    2 * (4 + 4) FLOP a layer. The one decode reads 3 tokens of 2 * 4 numbers in 2 layers of 2 bytes.
    """
    peaks = Peaks(GPU, TOY)
    assert peaks.layer_weights == 2 * 128
    flops = 4 * 2 * 256 + 2 * 16 * (1 + 2 + 3 + 4) + 2 * 2 * 40
    one = demand((0, 3, 2))
    assert peaks.compute(one).tolist() == pytest.approx([flops / 10_000])
    moved = 3 * ((256 + 40) * 2 - 10) + 3 * 32
    exchange = (32 / 1000) / (512 / 10_000)
    expected = (moved / 1000 + exchange * flops / 10_000) / (1 + exchange)
    found = peaks.memory(one, np.array([3.0]))
    assert found is not None
    assert found.tolist() == pytest.approx([expected])
    cached = replace(one, num_cached=ints(2))
    assert peaks.compute(cached).tolist() == pytest.approx(
        [(2 * 2 * 256 + 2 * 16 * (3 + 4) + 2 * 2 * 40) / 10_000]
    )


def test_peaks_follow_the_number_format_and_a_small_model_stays_in_l2() -> None:
    assert Peaks(GPU, TOY).flops == 10_000
    assert Peaks(GPU, TOY, "int8").flops == 20_000
    assert Peaks(GPU, replace(TOY, quantization="fp8")).flops == 40_000
    assert Peaks(replace(GPU, flops_fp8=None), TOY, "fp8").flops == 10_000
    assert Peaks(replace(GPU, l2=10**6), TOY).memory(demand((0, 3, 2)), np.array([3.0])) is None


def test_windows_and_experts_need_less() -> None:
    """A window of 2 on one of two layers; with 1 of 4 experts of width 2 a token multiplies 16 in the MLP."""
    windowed = Peaks(GPU, replace(TOY, sliding_window=2, num_sliding_layers=1))
    assert windowed.compute(demand((0, 3, 2))).tolist() == pytest.approx(
        [(4 * 2 * 256 + 16 * (10 + 1 + 2 + 2 + 2) + 160) / 10_000]
    )
    from simulator.specs.models import MoE

    experts = replace(
        TOY, moe=MoE(num_experts=4, experts_per_token=1, intermediate_size=2, num_dense_layers=1)
    )
    assert Peaks(GPU, experts).layer_weights == 128 + (64 + 16)


def test_a_lines_work_is_the_sum_of_its_terms() -> None:
    """Rows 9 + 2, sampled 3, read 11 + 12, work 10^2 / 2 - 1 / 2, and steps by the rows: 11 / 5."""
    line = LinearModel(1.0, 0.1, 0.02, 0.003, 0.0005, host=0.2)
    prices = least_prices(line, 5, 4, 13)
    assert prices is not None
    one = demand((0, 10, 3), cached=1)
    rest = 11 * 0.1 + 3 * 0.02 + 23 * 0.003 + 49.5 * 0.0005
    found = priced(one, prices, Limits(4, 1000, 4, 5))
    assert found.tolist() == pytest.approx([2.2 * 1.2 + rest], rel=CLOSE)
    preempted = priced(replace(one, num_preemptions=ints(1)), prices, Limits(4, 1000, 4, 5))
    assert found[0] - preempted[0] == pytest.approx(12 * 0.003)


def test_what_comes_after_a_moment_is_done_after_it() -> None:
    some = demand((0, 1, 1), (4, 1, 1), (5, 1, 1))
    assert some.last_end(np.array([1.0, 3.0, 2.0])) == 4 + 3 + 2
    assert some.last_end(np.array([10.0, 3.0, 2.0])) == 15
    assert some.last_end(np.array([1.0, 0.5, 2.0])) == 7


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=5))
@settings(max_examples=60)
def test_no_order_ends_sooner_on_average_than_shortest_remaining_first(jobs: list[tuple[int, int]]) -> None:
    arrival, work = np.array(jobs, dtype=float).T
    best = srpt_ends(arrival, work)
    assert (best >= arrival + work).all()
    for order in itertools.permutations(range(len(jobs))):  # each as a preemptive priority, unit by unit
        left, now, total = list(work), 0.0, 0.0
        while any(left):
            ready = [i for i in order if left[i] and arrival[i] <= now]
            now += 1
            if ready:
                left[ready[0]] -= 1
                total += now if not left[ready[0]] else 0
        assert best.sum() <= total + CLOSE


# Clients.


def test_a_turn_comes_when_those_before_it_can_be_done() -> None:
    plan = ClientPlan(
        follows=np.array([[0, 2], [1, 2], [2, 3]]),
        think=np.array([0.0, 0.0, 1.0, 2.0]),
        pre_delay=np.array([0.5, 0.0, 0.25, 0.0]),
    )
    load = workload((0, 1, 1), (3, 1, 1), (4, 1, 1), (9, 1, 1))
    found = earliest_arrivals(load, plan, np.array([1.0, 2.0, 4.0, 8.0]))
    assert found.tolist() == [0.5, 3.0, 5 + 1 + 0.25, 5 + 1 + 0.25 + 4 + 2]


def test_places_hold_a_request_and_the_pause_after_it() -> None:
    assert places_limit(ClientPlan(), np.ones(4)) is None
    assert places_limit(ClientPlan(max_concurrency=2), np.array([3.0, 1.0, 2.0])) == 3.0
    assert places_limit(ClientPlan(max_concurrency=2, pause=0.5), np.array([3.0, 1.0, 2.0])) == 3.25
    assert places_limit(ClientPlan(max_concurrency=4, pause=0.5), np.array([3.0, 1.0])) == 1.0


def test_a_closed_loop_with_one_client_is_served_one_by_one() -> None:
    load = workload((0, 4, 2), (0, 4, 2), (0, 4, 2), closed_loop=(1, 0.5))
    found = serve(load, {"constant": 1.0})
    assert limits_of(found)["clients"] == found.own.makespan == 3 * 2 + 2 * 0.5


# The property.

COEFFICIENTS = ("constant", "per_token", "per_seq", "per_kv_token", "per_prefill_work", "host")


def bumpy(profile: Profile, seed: int) -> Profile:
    """A profile whose measurements are so noisy that more work is often cheaper."""
    rng = np.random.default_rng(seed)
    grid = profile.decode

    def noise(values: Any) -> Any:
        return values * np.exp(0.4 * rng.standard_normal(values.shape))

    return replace(
        profile,
        dense=noise(profile.dense),
        head=noise(profile.head),
        decode=grid._replace(seconds=noise(grid.seconds)),
    )


A100, LLAMA = get_hardware("a100-80gb-sxm"), get_model("llama-3.1-8b")
PROFILES: list[Profile] = [estimate(A100, LLAMA), *(bumpy(estimate(A100, LLAMA), seed) for seed in range(3))]


@st.composite
def loads(draw: st.DrawFn, block_size: int) -> Workload:
    """Bursts, long and short requests, prefixes shared in three families, every kind of client."""
    n = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.125, 0.25, 1.0, 0.1, 0.3]), min_size=n, max_size=n))
    scale = st.sampled_from([1, 1, draw(st.sampled_from([1, 8, 64]))])
    prompt = ints(*(draw(st.integers(1, 40)) * draw(scale) for _ in range(n)))
    output = ints(*(draw(st.integers(1, 24)) * draw(scale) for _ in range(n)))
    hashes: list[int] = []
    full = (prompt // block_size).tolist()
    for i, count in enumerate(full):
        shared, family = draw(st.integers(0, count)), 1000 * draw(st.integers(0, 2))
        hashes += [family + k if k < shared else 10**6 * (i + 1) + k for k in range(count)]
    kind = draw(st.sampled_from(["open", "open", "chain", "closed", "late", "impatient"]))
    clients: dict[str, Any] = {}
    if kind == "chain":
        pairs = np.array([(i, i + 2) for i in range(n - 2)], dtype=np.int64).reshape(-1, 2)
        clients = {"follows": pairs, "think": np.full(n, 0.25)}
    elif kind == "closed":
        clients = {"closed_loop": (draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.5])))}
        gaps = [0.0] * n
    elif kind == "late":
        clients = {"pre_delay": np.array([draw(st.sampled_from([0.0, 0.3, 1.0])) for _ in range(n)])}
    elif kind == "impatient":
        clients = {"timeout": np.array([draw(st.sampled_from([np.nan, np.nan, 0.5, 2.0])) for _ in range(n)])}
    return Workload(
        np.cumsum(gaps),
        prompt,
        output,
        np.maximum(1, output * draw(st.sampled_from([1, 2])) // draw(st.sampled_from([1, 2]))),
        ints(*(draw(st.integers(0, 2)) for _ in range(n))),
        blocks=TraceBlocks.of_ids(ints(*hashes), np.cumsum([0, *full]), block_size),
        **clients,
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run of any policies, memory tight or not, by a line, a roofline or a profile that makes no sense."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    load = draw(loads(block_size))
    longest = int((load.num_prompt + load.num_output).max())
    seats, victim = draw(st.integers(1, 6)), draw(st.sampled_from([None, *VICTIMS]))
    horizons = [None, None, 3.0, 60.0]
    price = st.sampled_from([0.0, 0.01, 0.001, 1e-4, 1e-5, 0.1])
    line = draw(st.none() | st.fixed_dictionaries(dict.fromkeys(COEFFICIENTS, price)))
    host = {"name": "host", "capacity_gib": draw(st.sampled_from([0.01, 1])), "bandwidth_gb_s": 25}
    tiers = draw(st.sampled_from([[], [], [host]]))
    changes: dict[str, object] = {
        "kv.tiers": tiers,
        "scheduler.preemption": draw(st.sampled_from(["recompute", "swap", "auto"]))
        if tiers
        else "recompute",
        "kv.block_size": block_size,
        "kv.num_gpu_blocks_override": 1
        + draw(st.integers(0, 3))
        + int(-(-longest // block_size) * draw(st.sampled_from([1, 1.2, 2, 10]))),
        "kv.enable_prefix_caching": draw(st.booleans()),
        "kv.eviction": draw(st.sampled_from(list(EVICTIONS))),
        "scheduler.batching": draw(st.sampled_from(list(BATCHING))),
        "scheduler.order": draw(st.sampled_from(list(ORDERS))),
        "scheduler.victim": victim,
        "scheduler.max_num_seqs": seats,
        "scheduler.max_num_batched_tokens": seats + draw(st.sampled_from([0, 1, 4, 16, 64, 512])),
        "scheduler.async_scheduling": draw(st.booleans()),
        "scheduler.long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 8])),
        "scheduler.scheduler_reserve_full_isl": draw(st.booleans()),
        "workload.max_concurrency": draw(st.sampled_from([None, None, 1, 3])),
        "run.horizon_s": draw(st.sampled_from(horizons)),
    }
    scenario = load_scenario({"name": "any"}).with_(**changes)
    if line is not None:
        scenario = scenario.with_(**{"latency.kind": "linear", "latency.coefficients": line})
    machine = build_machine(scenario)
    if line is None:
        profile = draw(st.sampled_from(PROFILES))
        latency = profile.overlapped() if scenario.scheduler.async_scheduling else profile
        machine = replace(machine, latency=latency)
    return run_scenario(scenario, workload=load, machine=machine)


def assert_unbeaten(served: Served, least: dict[str, float | None]) -> None:
    """No request is quicker than its least, and none of the run's figures better than its bound."""
    slack = 1e-12 * (1 + served.makespan)  # of the clock
    for metric in ("ttft", "e2el"):
        times = getattr(served.measured, metric)
        assert (times >= served.least(metric) * (1 - CLOSE) - slack).all(), metric
    for name, value in values(served).items():
        bound = least[name]
        if value is not None and bound is not None:
            is_rate = name.endswith("throughput")
            assert value <= bound * (1 + CLOSE) if is_rate else value >= bound * (1 - CLOSE) - 1e3 * slack, (
                name
            )


def check(run: Run) -> None:
    found = find_bounds(run)
    if found.reference.run is not run:
        check(found.reference.run)
    if found.own.num_completed == 0:
        assert found.binding is None
        return
    for limit in found.limits:
        is_physical = limit.name not in DATA_SHEET or isinstance(run.machine.latency, Profile)
        assert not is_physical or limit.seconds <= found.own.makespan * (1 + CLOSE) + CLOSE, limit
    assert len(found.limits) >= 3 or run.scenario.latency.kind == "linear"
    assert_unbeaten(found.own, least_values(found))
    assert max(found.num_steps.values()) <= len(run.steps)


@given(runs())
@settings(max_examples=25, deadline=None)
def test_no_run_beats_its_bounds(run: Run) -> None:
    check(run)


@pytest.mark.slow
@given(runs())
@settings(max_examples=3000, deadline=None)
def test_no_run_beats_its_bounds_in_many_runs(run: Run) -> None:
    check(run)


@pytest.mark.parametrize(
    ("name", "batching"), [*(("chat-a100", name) for name in BATCHING), ("agentic-a100", "chunked")]
)
def test_shipped_scenarios_stay_within_their_bounds(name: str, batching: str) -> None:
    """With little memory, so that requests wait and are preempted; the profile is as shipped."""
    changes = {"scheduler.batching": batching, "workload.num_requests": 120}
    changes["kv.num_gpu_blocks_override"] = 9000 if name == "agentic-a100" else 1200
    found = find_bounds(run_scenario(load_scenario(name).with_(**changes)))
    assert_unbeaten(found.own, least_values(found))
    assert {limit.name for limit in found.limits} == {"compute", "memory", "step times", "arrivals"}


def test_bounds_of_one_run_hold_for_every_policy() -> None:
    """Nothing is preempted and arrivals are given, so the bounds of one run are those of all."""
    changes = {"workload.num_requests": 400, "kv.num_gpu_blocks_override": 200_000}
    base = load_scenario("code-a100").with_(**changes)
    least = least_values(find_bounds(run_scenario(base)))
    for batching, order in [*itertools.product(BATCHING, ["fcfs", "sjf_prompt"]), ("chunked", REFERENCE)]:
        run = run_scenario(base.with_(**{"scheduler.batching": batching, "scheduler.order": order}))
        assert run.own["num_preemptions"] == 0
        assert_unbeaten(find_bounds(run).own, least)


# Tables, words, figures.


def test_rows_compare_run_bound_and_reference() -> None:
    run = run_scenario(load_scenario("tiny-cpu"))
    found = find_bounds(run)
    row = {row["metric"]: row for row in rows(found)}
    assert row["mean_ttft_ms"]["run"] == pytest.approx(run.summary["mean_ttft_ms"])
    assert row["p99_e2el_ms"]["run"] == pytest.approx(run.summary["p99_e2el_ms"])
    assert row["output_throughput"]["run"] == pytest.approx(run.summary["output_throughput"])
    srpt = simulate("tiny-cpu", order=REFERENCE).summary
    assert row["mean_e2el_ms"]["reference"] == pytest.approx(srpt["mean_e2el_ms"])
    for each in row.values():
        assert each["ratio"] == each["run"] / each["bound"]  # type: ignore[operator]
    assert [each["is_binding"] for each in limit_rows(found)].count(True) == 1


def test_a_queue_is_won_by_order_and_the_words_say_so() -> None:
    """A long request and nine short ones on one seat, all at once."""
    load = workload((0, 4, 40), *[(0, 4, 2)] * 9)
    found = serve(load, {"constant": 1.0}, **{"scheduler.max_num_seqs": 1})
    assert found.own.makespan == 40 + 9 * 2
    assert limits_of(found)["step times"] == pytest.approx(58, rel=CLOSE)
    best = (sum(range(2, 19, 2)) + 58) / 10
    assert found.own.least_mean["e2el"] == pytest.approx(best)
    assert found.reference.measured.e2el.mean() == pytest.approx(best)
    words = " ".join(verdict(found))
    assert "100.0 % of its bound of 1 tok/s (limit: step times)" in words
    assert "Mean E2E latency is 49 s; no policy gets below 14.8 s (the GPU's work in the best order)" in words
    assert f"{REFERENCE}, which knows the lengths of all answers, takes 69.8 % off" in words


def test_a_run_in_the_order_of_the_reference_is_not_made_twice() -> None:
    found = find_bounds(run_scenario(load_scenario("tiny-cpu").with_(**{"scheduler.order": REFERENCE})))
    assert found.reference.run is found.own.run
    assert "served in the order of the reference" in " ".join(verdict(found))


def test_prices_that_the_gpu_cannot_reach_leave_its_limits_out() -> None:
    found = serve(workload((0, 5000, 4)), {"constant": 1e-6}, **{"kv.num_gpu_blocks_override": 5000})
    assert [limit.name for limit in found.limits] == ["step times", "arrivals"]
    assert any("quicker than the GPU's data sheet allows" in note for note in found.notes)


def test_a_notebook_gets_frames_figures_and_a_page(tmp_path: Path) -> None:
    found = bounds("tiny-cpu", seed=3)
    assert isinstance(found, Bounds)
    assert list(found.table.columns) == ["run", "bound", "ratio", "reference", "change"]
    assert (found.requests["e2el"] >= found.requests["least_e2el"] * (1 - CLOSE)).all()
    assert len(found.requests) == 40
    for kind in BOUNDS_PLOTS:
        assert found.plot(kind).data
    with pytest.raises(ConfigError, match="unknown kind 'slow'; did you mean slowdown"):
        found.plot("slow")
    assert "Run against bounds" in str(found)
    assert "no policy gets below" in found._repr_html_()
    assert sorted(path.name for path in found.save(tmp_path).iterdir()) == ["bounds.html", "bounds.json"]


def test_a_result_is_bounded_as_it_is() -> None:
    def newest(seq: Any, ctx: Any) -> float:
        return -float(seq.arrival)

    result = simulate("tiny-cpu", order=newest, bottleneck=False)
    found = bounds(result)
    assert found.table.loc["mean_e2el_ms", "run"] == pytest.approx(result.summary["mean_e2el_ms"])
    with pytest.raises(ConfigError, match="a result is taken as it is"):
        bounds(result, seed=1)


# Hostile input.


def test_nothing_completed_bounds_nothing(tmp_path: Path) -> None:
    rejected = serve(workload((0, 5000, 4), (1, 6000, 4)), {"constant": 1.0})
    assert rejected.binding is None
    assert verdict(rejected) == ["No request completed, so there is nothing to bound."]
    assert "2 of 2 requests did not complete" in rejected.notes[0]
    cut = serve(workload((0, 8, 4)), {"constant": 1.0}, **{"run.horizon_s": 2})
    early = serve(workload((5, 8, 4)), {"constant": 1.0}, **{"run.horizon_s": 1})
    for found in (rejected, cut, early):
        saved = json.loads((Bounds(found).save(tmp_path) / "bounds.json").read_text())
        assert {row["bound"] for row in saved["rows"]} == {None}
        assert all(figure(found) for figure in BOUNDS_PLOTS.values())


def test_a_horizon_bounds_what_completed_before_it() -> None:
    found = serve(workload((0, 8, 4), (0, 8, 40)), {"constant": 1.0}, **{"run.horizon_s": 10})
    assert found.own.num_completed == 1
    assert found.own.makespan == limits_of(found)["arrivals"] == 4
    assert "1 of 2 requests did not complete" in found.notes[0]


def test_a_reference_that_completes_others_is_not_compared() -> None:
    load = workload((0, 4, 40), *[(0, 4, 2)] * 9)
    found = serve(load, {"constant": 1.0}, **{"scheduler.max_num_seqs": 1, "run.horizon_s": 41})
    assert "other requests complete and count" in " ".join(verdict(found))


def test_requests_must_have_ids_of_their_own() -> None:
    twins = replace(workload((0, 4, 2), (1, 4, 2)), ids=["a", "a"])
    with pytest.raises(ConfigError, match="share an id"):
        serve(twins, {"constant": 1.0})


def test_boundless_settings_cost_no_memory() -> None:
    changes = {"scheduler.max_num_seqs": 10**9, "scheduler.max_num_batched_tokens": 10**9}
    found = find_bounds(run_scenario(load_scenario("tiny-cpu").with_(**changes)))
    assert_unbeaten(found.own, least_values(found))
    roofline = load_scenario("chat-a100").with_(**changes | {"workload.num_requests": 30})
    assert find_bounds(run_scenario(roofline)).binding is not None


# The command.


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    done = servetwin("bounds", "tiny-cpu", "--set", "name=<b>x", "-o", tmp_path / "o")
    assert done.code == 0, done
    assert "<b>x: chunked, fcfs; 40 of 40 requests completed" in done.out
    for words in (
        "makespan (s)",
        "arrivals (binds)",
        "E2E / alone, srpt_oracle",
        "is a reference and no bound",
    ):
        assert words in done.out
    page = (tmp_path / "o" / "bounds.html").read_text()
    assert "Bounds of &lt;b&gt;x" in page
    assert "<b>x" not in page


def test_json_is_all_there_is_on_stdout_and_the_same_each_time(tmp_path: Path) -> None:
    made = [servetwin("bounds", "tiny-cpu", "--json", "--quiet", "-o", tmp_path / name) for name in "ab"]
    assert made[0] == made[1]
    assert made[0].err == ""
    saved = json.loads(made[0].out)
    assert saved == json.loads((tmp_path / "a" / "bounds.json").read_text())
    assert (tmp_path / "a" / "bounds.html").read_bytes() == (tmp_path / "b" / "bounds.html").read_bytes()
    assert saved["completed"] == saved["reference_completed"] == 40
    assert saved["scenario"] == load_scenario("tiny-cpu").to_dict()


def test_the_command_complains_in_one_line(tmp_path: Path) -> None:
    assert "did you mean tiny-cpu" in servetwin("bounds", "tiny-cup").complaint
    (tmp_path / "file").write_text("")
    complaint = servetwin("bounds", "tiny-cpu", "--quiet", "-o", tmp_path / "file").complaint
    assert complaint.startswith(f"cannot write {tmp_path / 'file'}: ")
