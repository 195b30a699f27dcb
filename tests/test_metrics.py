"""Summary, percentiles, warm-up and result block: vLLM's definitions, and the faults others have reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from engine_runs import observe, recorded_gaps
from hypothesis import given
from hypothesis import strategies as st
from toy_run import step_table

from simulator.latency.linear import LinearModel
from simulator.metrics.block import result_block
from simulator.metrics.percentiles import percentiles, weighted_percentiles
from simulator.metrics.recorder import Recorder
from simulator.metrics.request_log import RequestLog
from simulator.metrics.summary import counts, latencies, meets_slo, summarize
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED, UNFINISHED, RequestTable
from simulator.metrics.warmup import mser5, num_warmup
from simulator.request import Request

NAN = float("nan")
NO_GAPS = (np.array([]), np.array([], dtype=np.int64))


def table(
    arrival: list[float],
    first_token: list[float],
    finish: list[float],
    num_output: list[int],
    status: list[int] | None = None,
    num_prompt: int = 10,
) -> RequestTable:
    n = len(arrival)
    zeros = np.zeros(n, dtype=np.int64)
    return RequestTable(
        id=[f"r{i}" for i in range(n)],
        arrival=np.array(arrival, dtype=np.float64),
        num_prompt=zeros + num_prompt,
        num_output=np.array(num_output, dtype=np.int64),
        status=zeros + (np.array(status, dtype=np.int64) if status else COMPLETED),
        reason=[""] * n,
        scheduled=np.array(arrival, dtype=np.float64),
        first_token=np.array(first_token, dtype=np.float64),
        finish=np.array(finish, dtype=np.float64),
        num_cached=zeros,
        num_preemptions=zeros,
        priority=zeros,
        tenant=[""] * n,
    )


def summary_of(requests: RequestTable, **options: Any) -> dict[str, Any]:
    summary = summarize(requests, step_table({}), options.pop("gaps", NO_GAPS), **options)
    json.dumps(summary, allow_nan=False)
    return summary


# Reported faults.


def test_me_01_throughput_is_over_first_arrival_to_last_completion() -> None:
    summary = summary_of(table([0, 10, 20], [1, 11, 21], [2, 12, 22], [100, 100, 100]))
    assert summary["duration"] == 22.0
    assert summary["output_throughput"] == pytest.approx(13.636, abs=5e-4)
    assert summary["request_throughput"] == pytest.approx(0.13636, abs=5e-6)
    assert summary["total_token_throughput"] == pytest.approx(330 / 22)


def test_me_01_the_clock_starts_with_the_first_arrival_not_at_zero() -> None:
    assert summary_of(table([100, 110], [101, 111], [102, 112], [1, 1]))["duration"] == 12.0


def test_me_02_percentiles_by_nearest_rank_and_by_interpolation() -> None:
    hundred, twenty, three = np.arange(1.0, 101.0), np.arange(1.0, 21.0), np.array([10.0, 20.0, 30.0])
    assert percentiles(hundred, [99, 7], "nearest") == [99.0, 7.0]
    assert percentiles(twenty, [95], "nearest") == [19.0]
    assert percentiles(three, [99, 0, 100], "nearest") == [30.0, 10.0, 30.0]
    assert percentiles(hundred, [99]) == pytest.approx([99.01])
    assert percentiles(twenty, [95]) == pytest.approx([19.05])
    assert percentiles(three, [99]) == pytest.approx([29.8])
    for method in ("nearest", "linear"):
        assert percentiles(np.array([5.0]), [0, 50, 99, 100], method) == [5.0] * 4
        assert percentiles(np.array([]), [50, 99], method) == [None, None]
    with pytest.raises(ValueError, match="percentile_method must be one of linear, nearest, got 'median'"):
        percentiles(three, [50], "median")


def test_me_03_a_single_token_has_no_time_per_output_token() -> None:
    both = table([0, 0], [0.1, 0.1], [1.1, 0.1], [11, 1])
    summary = summary_of(both)
    assert summary["mean_tpot_ms"] == pytest.approx(100.0)
    assert summary["p99_tpot_ms"] == pytest.approx(100.0)
    alone = summary_of(table([0], [0.1], [0.1], [1]))
    assert alone["mean_tpot_ms"] is alone["p99_tpot_ms"] is alone["std_tpot_ms"] is None
    assert meets_slo(latencies(both), {"tpot": 0.05}).tolist() == [True, False]  # in order of completion


def test_me_05_inter_token_latencies_leave_the_first_token_out() -> None:
    """A first step of 500 ms, then three of 10 ms."""
    latency = LinearModel(constant=0.0, per_token=0.01)
    request = Request("A", 0.0, 50, 4, 4)
    run = observe([request], latency=latency, num_blocks=99, enable_prefix_caching=False)
    summary = summarize(run.table, run.served.recorder.step_table(), run.served.recorder.gaps())
    assert summary["mean_ttft_ms"] == pytest.approx(500)
    assert run.served.recorder.gaps()[1].sum() == 3
    assert summary["mean_itl_ms"] == pytest.approx(10) == summary["p99_itl_ms"]
    assert summary["mean_tpot_ms"] == pytest.approx(10)
    assert summary["mean_e2el_ms"] == pytest.approx(530)


def test_me_07_aborted_requests_add_neither_ttft_nor_gaps() -> None:
    requests = table([0, 0], [NAN, 1.0], [60.0, 1.2], [0, 3], [ABORTED, COMPLETED])
    summary = summary_of(requests, gaps=(np.array([0.1]), np.array([2])))
    assert summary["mean_ttft_ms"] == 1000.0
    assert summary["mean_itl_ms"] == pytest.approx(100.0)
    assert (summary["completed"], summary["failed"], summary["total_output_tokens"]) == (1, 1, 3)
    assert summary["duration"] == 1.2
    assert counts(requests)["aborted"] == 1


def test_me_07_an_abort_after_some_tokens_takes_its_gaps_along() -> None:
    requests = [Request("A", 0.0, 4, 9, 9, timeout=3.5), Request("B", 0.5, 4, 3, 3)]
    run = observe(requests, latency=LinearModel(constant=1.0), num_blocks=99, enable_prefix_caching=False)
    assert run.table.num_output.tolist() == [4, 3]
    assert recorded_gaps(run) == {1.0: 2}
    summary = summarize(run.table, run.served.recorder.step_table(), run.served.recorder.gaps())
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (4, 3)
    assert summary["mean_ttft_ms"] == 1500.0


def test_me_08_goodput_counts_completed_requests_that_meet_every_slo() -> None:
    """TTFT 0.3 s and 0.6 s, and a third that was aborted, in 10 s."""
    requests = table([0, 0, 0], [0.3, 0.6, 0.1], [10, 10, 5], [2, 2, 2], [COMPLETED, COMPLETED, ABORTED])
    assert summary_of(requests, slo={"ttft": 0.5})["request_goodput"] == pytest.approx(0.1)
    assert summary_of(requests, slo={"ttft": 0.3})["request_goodput"] == pytest.approx(0.1)  # met when equal
    assert summary_of(requests, slo={"ttft": 0.5, "e2el": 9.0})["request_goodput"] == 0.0
    assert summary_of(requests)["request_goodput"] is None


@pytest.mark.parametrize("slo", [{"itl": 0.1}, {"tfft": 0.5}, {"rows": 1.0}, {"ttft": -0.5}, {"ttft": NAN}])
def test_me_08_an_slo_that_means_nothing_is_an_error(slo: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(slo))):
        meets_slo(latencies(table([0], [1], [2], [3])), slo)


@pytest.mark.parametrize(("rule", "kept"), [(0.1, 18), ({"requests": 10}, 10), ("none", 20)])
def test_me_09_the_window_starts_where_the_warm_up_ends(rule: float | dict[str, int], kept: int) -> None:
    """Completions at 1..20 s of 10 tokens each: 10 tokens a second whatever is dropped."""
    ends = list(range(1, 21))
    summary = summary_of(table([0] * 20, ends, ends, [10] * 20), warmup=rule)
    assert summary["completed"] == kept
    assert summary["duration"] == kept
    assert summary["output_throughput"] == pytest.approx(10.0)
    assert summary["mean_ttft_ms"] == pytest.approx(1e3 * np.mean(ends[20 - kept :]))


@pytest.mark.parametrize("rule", [10.0, 1.0, -0.1, NAN])
def test_me_09_a_share_of_one_or_more_is_an_error(rule: float) -> None:
    with pytest.raises(ValueError, match="warmup"):
        num_warmup(rule, np.ones(20))


def test_me_09_gaps_can_be_had_of_the_requests_that_count() -> None:
    """Two requests in step; of the second alone, every gap occurs half as often."""
    requests = [Request("A", 0.0, 4, 9, 9), Request("B", 0.0, 4, 5, 5)]
    run = observe(requests, latency=LinearModel(constant=0.5), num_blocks=99, enable_prefix_caching=False)
    assert recorded_gaps(run) == {0.5: 12}
    assert recorded_gaps(run, np.array([1])) == {0.5: 4}
    assert recorded_gaps(run, np.array([], dtype=np.int64)) == {}


def test_a_warm_up_longer_than_the_run_leaves_nothing_and_no_error() -> None:
    summary = summary_of(table([0], [1], [2], [3]), warmup={"requests": 5})
    assert (summary["completed"], summary["request_throughput"], summary["mean_ttft_ms"]) == (0, 0.0, None)


@pytest.mark.parametrize(
    "requests",
    [
        table([], [], [], []),
        table([0, 1], [NAN] * 2, [0, 1], [0, 0], [REJECTED] * 2),
        table([0, 1], [0.5, NAN], [NAN] * 2, [3, 0], [UNFINISHED] * 2),
    ],
    ids=["empty trace", "all rejected", "horizon before the first completion"],
)
def test_me_10_a_run_without_completions_has_null_latencies_and_no_throughput(requests: RequestTable) -> None:
    for warmup in ("none", "auto", 0.5):
        summary = summary_of(requests, slo={"ttft": 0.5}, warmup=warmup, ranks=[50, 99.9])
        assert summary["completed"] == summary["request_throughput"] == summary["request_goodput"] == 0
        assert summary["output_throughput"] == summary["max_concurrent_requests"] == 0
        for name in ("ttft", "tpot", "itl", "e2el"):
            for key in ("mean", "median", "std", "p50", "p99.9"):
                assert summary[f"{key}_{name}_ms"] is None
        assert "n/a" in result_block(summary)


def test_me_10_a_recorder_of_nothing_has_empty_tables() -> None:
    recorder = Recorder(RequestLog(0), 1)
    assert len(recorder.step_table()) == len(recorder.request_table([])) == 0
    assert [len(column) for column in recorder.gaps()] == [0, 0]


# Percentiles.

samples = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5)), min_size=1, max_size=20)


@given(samples, st.floats(0, 100).map(lambda x: round(x, 3)))
def test_weighted_percentiles_are_numpys_of_the_sample_written_out(
    sample: list[tuple[float, int]], rank: float
) -> None:
    values, weights = np.array([v for v, _ in sample]), np.array([w for _, w in sample], dtype=np.int64)
    written_out = np.repeat(values, weights)
    if not len(written_out):
        assert weighted_percentiles(values, weights, [rank]) == [None]
        return
    linear, nearest = (weighted_percentiles(values, weights, [rank], m)[0] for m in ("linear", "nearest"))
    # numpy takes rank/100 * (n - 1) in floats, we exactly; where a step of the sample is large that shows
    assert linear == pytest.approx(np.percentile(written_out, rank), rel=1e-9, abs=1e-12 * values.max())
    assert nearest in written_out
    share_at_or_below = (written_out <= nearest).mean()
    share_below = (written_out < nearest).mean()
    assert share_at_or_below >= rank / 100 - 1e-12
    assert share_below < rank / 100 + 1e-12


@given(samples, st.sampled_from(["linear", "nearest"]))
def test_percentiles_never_fall_as_the_rank_rises_and_stay_within_the_sample(
    sample: list[tuple[float, int]], method: str
) -> None:
    values, weights = np.array([v for v, _ in sample]), np.array([w for _, w in sample], dtype=np.int64)
    found = weighted_percentiles(values, weights, [0, 50, 90, 95, 99, 99.9, 99.999, 100], method)
    if weights.sum():
        assert found == sorted(found)  # type: ignore[type-var]
        assert (found[0], found[-1]) == (values[weights > 0].min(), values[weights > 0].max())


def test_moments_of_weighted_gaps_are_those_of_the_sample_written_out() -> None:
    values, weights = np.array([0.01, 0.02, 0.5]), np.array([90, 9, 1])
    summary = summary_of(table([0], [1], [2], [3]), gaps=(values, weights), ranks=[50, 99.9])
    gaps = np.repeat(values, weights)
    assert summary["mean_itl_ms"] == pytest.approx(1e3 * gaps.mean())
    assert summary["std_itl_ms"] == pytest.approx(1e3 * gaps.std())
    assert summary["median_itl_ms"] == summary["p50_itl_ms"] == 10.0
    assert summary["p99.9_itl_ms"] == pytest.approx(1e3 * np.percentile(gaps, 99.9))


# Warm-up.


def test_mser5_cuts_a_transient_and_leaves_a_steady_series_alone() -> None:
    steady = np.random.default_rng(0).normal(1.0, 0.1, 500)
    transient = np.linspace(5.0, 0.0, 100)
    assert mser5(np.concatenate([transient + 1.0, steady])) in range(80, 130)
    assert mser5(np.full(500, 0.1)) == mser5(np.full(503, 1e6 / 3)) == 0
    assert mser5(np.arange(49.0)) == 0  # too short to judge


@given(st.lists(st.floats(0, 1e3), max_size=200))
def test_mser5_cuts_a_multiple_of_five_within_the_first_half(series: list[float]) -> None:
    cut = num_warmup("auto", np.array(series))
    assert cut % 5 == 0
    assert cut <= len(series) / 2


# Peaks and the block.


def test_peaks_are_over_whole_seconds() -> None:
    steps = step_table({"start": [0.0, 0.4, 0.9], "end": [0.4, 0.9, 1.1], "num_sampled": [3, 4, 5]})
    requests = table([0.0, 0.2, 2.5], [0.4, 0.4, 2.6], [0.9, 1.1, 3.0], [3, 4, 5])
    summary = summarize(requests, steps, NO_GAPS)
    assert summary["max_output_tokens_per_s"] == 7.0
    assert summary["max_concurrent_requests"] == 2


def test_the_result_block_reads_like_vllms() -> None:
    requests = table([0, 10, 20], [0.5, 10.25, 20.75], [2, 12, 22], [4, 4, 4])
    steps = step_table({"start": [0.0, 1.0], "end": [0.5, 2.0], "num_sampled": [1, 3]})
    gaps = (np.array([0.5, 0.25]), np.array([6, 3]))
    block = result_block(summarize(requests, steps, gaps, slo={"ttft": 0.5}) | {"request_rate": 0.1})
    assert block.splitlines() == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     3",
        "Failed requests:                         0",
        "Request rate configured (RPS):           0.10",
        "Benchmark duration (s):                  22.00",
        "Total input tokens:                      30",
        "Total generated tokens:                  12",
        "Request throughput (req/s):              0.14",
        "Request goodput (req/s):                 0.09",
        "Output token throughput (tok/s):         0.55",
        "Peak output token throughput (tok/s):    3.00",
        "Peak concurrent requests:                1.00",
        "Total token throughput (tok/s):          1.91",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          500.00",
        "Median TTFT (ms):                        500.00",
        "P99 TTFT (ms):                           745.00",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          500.00",
        "Median TPOT (ms):                        500.00",
        "P99 TPOT (ms):                           581.67",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                           416.67",
        "Median ITL (ms):                         500.00",
        "P99 ITL (ms):                            500.00",
        "----------------End-to-end Latency----------------",
        "Mean E2EL (ms):                          2000.00",
        "Median E2EL (ms):                        2000.00",
        "P99 E2EL (ms):                           2000.00",
        "==================================================",
    ]


def test_the_result_block_shows_limits_only_where_they_were_set() -> None:
    block = result_block(summary_of(table([0], [1], [2], [3])) | {"max_concurrency": 8, "request_rate": None})
    assert "Maximum request concurrency:             8" in block
    assert "Request rate" not in block
    assert "Request goodput" not in block
    assert "P99 ITL (ms):                            n/a" in block
