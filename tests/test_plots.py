"""Figures show what the tables say, also for empty, huge and hostile runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_run import step_table, toy_run

from simulator.experiments.figure_style import stretches
from simulator.experiments.latency_plots import latencies, token_gaps
from simulator.experiments.plots import MAX_BARS, MAX_MARKS, PLOTS, lanes, with_idle
from simulator.metrics.tables import COMPLETED

SLO = {"ttft_ms": 100.0, "tpot_ms": 50.0, "e2el_ms": None}


@pytest.mark.parametrize("kind", PLOTS)
def test_every_plot_draws_a_run_with_units_on_its_axes(kind: str) -> None:
    requests, steps = toy_run(60, rate=12)
    figure = PLOTS[kind](requests, steps, num_blocks=160, slo=SLO)
    assert len(figure.data) >= 1
    titles = [axis.title.text for axis in figure.select_xaxes() if axis.title.text]
    assert titles
    assert all(title.endswith((" (s)", " (ms)", " (ms, log scale)")) for title in titles)
    assert all(axis.title.text for axis in list(figure.select_yaxes())[:1])


@pytest.mark.parametrize("kind", PLOTS)
@pytest.mark.parametrize("n", [0, 5])
def test_every_plot_draws_a_run_in_which_nothing_happened(kind: str, n: int) -> None:
    requests, steps = toy_run(n, horizon=0.0)
    figure = PLOTS[kind](requests, steps, num_blocks=160, slo=SLO)
    assert figure.to_json()


@pytest.mark.parametrize("kind", PLOTS)
def test_every_plot_can_do_without_blocks_and_slo(kind: str) -> None:
    assert PLOTS[kind](*toy_run(30)).to_json()


@pytest.mark.parametrize("kind", PLOTS)
def test_a_long_run_stays_small(kind: str) -> None:
    n = 100_000
    rng = np.random.default_rng(0)
    end = np.cumsum(rng.uniform(0.01, 0.02, n))
    steps = step_table({"start": list(end - 0.01), "end": list(end)})
    for column in ("num_decodes", "prefill_tokens", "num_running", "num_waiting", "used_blocks"):
        setattr(steps, column, rng.integers(0, 100, n))
    steps.num_preempted = steps.evicted_blocks = rng.integers(0, 3, n)
    requests, _ = toy_run(2000, rate=100, horizon=0.0)
    assert len(PLOTS[kind](requests, steps, num_blocks=100).to_json(engine="json")) < 450_000


series = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=300)


@given(series, st.integers(1, 40), st.integers(0, 99))
def test_stretches_keep_every_spike(values: list[float], count: int, seed: int) -> None:
    y = np.array(values)
    x = np.cumsum(np.random.default_rng(seed).exponential(1.0, len(y)))
    parts = stretches(x, y, count)
    assert len(parts.x) <= count
    assert (parts.low.min(), parts.high.max()) == (y.min(), y.max())
    slack = 1e-9 * np.abs(y).max() + 1e-9
    assert np.all(parts.low - slack <= parts.mean)
    assert np.all(parts.mean <= parts.high + slack)


def test_stretches_weigh_by_time() -> None:
    parts = stretches(np.array([0.0, 9.0, 10.0]), np.array([1, 11, 5]), 1)
    assert (parts.low[0], parts.high[0]) == (1.0, 11.0)
    assert parts.mean[0] == pytest.approx((9 * 1 + 1 * 11) / 10)


def test_a_curve_at_its_slo_is_the_attainment_over_injected_requests() -> None:
    requests, steps = toy_run(200, rate=12, horizon=12.0)
    figure = PLOTS["latency"](requests, steps, slo={"ttft": 100.0})
    within = np.mean(latencies(requests)["ttft"] <= 0.1)
    assert 0 < within < np.mean(requests.status == COMPLETED) < 1
    labels = [note.text for note in figure.layout.annotations]
    assert f"SLO 100 ms: {within:.1%} within" in labels


def test_tpot_follows_vllm_and_is_zero_for_one_token() -> None:
    requests, _ = toy_run(10)
    requests.num_output[0], requests.finish[0] = 1, requests.first_token[0]
    tpot = latencies(requests)["tpot"]
    decode = requests.finish[1] - requests.first_token[1]
    assert tpot[0] == 0.0
    assert tpot[1] == pytest.approx(decode / (requests.num_output[1] - 1))


def test_token_gaps_span_a_prefill_that_made_decodes_wait() -> None:
    # two prompts, a decode of both, a prefill alone (it samples one), then a decode of all three
    rows = {
        "start": [0.0, 1.0, 2.0, 5.0],
        "end": [1.0, 2.0, 5.0, 6.0],
        "num_decodes": [0.0, 2.0, 0.0, 3.0],
        "num_sampled": [2.0, 2.0, 1.0, 3.0],
    }
    gaps, weights = token_gaps(step_table(rows))
    assert sorted(zip(gaps.tolist(), weights.tolist(), strict=True)) == [(1.0, 1.0), (1.0, 2.0), (4.0, 2.0)]


def test_token_gaps_count_every_token_after_the_first() -> None:
    requests, steps = toy_run(60, num_blocks=10_000)
    gaps, weights = token_gaps(steps)
    assert weights.sum() == np.sum(requests.num_output - 1)
    decode_time = np.sum(requests.finish - requests.first_token)
    assert np.sum(gaps * weights) == pytest.approx(decode_time)


def test_an_idle_engine_shows_nothing_running() -> None:
    requests, steps = toy_run(20, rate=0.5)
    time, running, waiting, used = with_idle(requests, steps)
    idle = np.flatnonzero(running == 0)
    assert np.all(np.diff(time) >= 0)
    assert len(time) == len(steps) + len(idle)
    assert (used[idle].tolist(), waiting[idle].tolist()) == ([0] * len(idle), [0] * len(idle))


def test_lanes_never_overlap_and_are_as_few_as_possible() -> None:
    rng = np.random.default_rng(1)
    start = np.sort(rng.uniform(0, 100, 300))
    stop = start + rng.exponential(5, 300)
    lane = lanes(start, stop)
    for k in range(int(lane.max()) + 1):
        mine = lane == k
        assert np.all(start[mine][1:] >= stop[mine][:-1])
    most = max(int(np.sum((start <= t) & (stop > t))) for t in start)
    assert lane.max() + 1 == most


def test_a_large_timeline_says_that_it_shows_a_part() -> None:
    requests, steps = toy_run(MAX_BARS + 100, rate=50)
    figure = PLOTS["timeline"](requests, steps)
    assert f"{MAX_BARS} of {MAX_BARS + 100:,} requests" in figure.layout.yaxis.title.text
    assert all(len(trace.x) == MAX_BARS for trace in figure.data)


def test_preemptions_are_marked_with_their_count() -> None:
    requests, steps = toy_run(120, rate=12, num_blocks=120)
    marks = [
        trace for trace in PLOTS["kv"](requests, steps, num_blocks=120).data if trace.name == "preemptions"
    ]
    assert int(np.sum(marks[0].customdata)) == requests.num_preemptions.sum() > 0
    assert len(marks[0].x) <= MAX_MARKS
