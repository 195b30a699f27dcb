"""The run as Prometheus would have scraped it from vLLM: names, values at their seconds, and a sound text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import servetwin
from toy_run import step_table, toy_run

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.experiments.metrics_text import metrics_lines, write_metrics
from simulator.metrics.tables import COMPLETED

LINE = re.compile(r'(vllm:\w+(?:\{finished_reason="\w+"\})?) ([0-9.e+-]+) (\d+)')


@pytest.fixture(scope="module")
def run() -> Run:
    return run_scenario(load_scenario("tiny-cpu"))


def series(lines: list[str]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            found.setdefault(match[1], []).append((int(match[3]), float(match[2])))
    return found


def test_the_last_samples_are_the_runs_totals(run: Run) -> None:
    found = series(list(metrics_lines(run.requests, run.steps, num_blocks=run.machine.kv.usable_blocks)))
    last = {name: values[-1][1] for name, values in found.items()}
    assert last["vllm:num_requests_running"] == 0
    assert last["vllm:generation_tokens_total"] == run.summary["total_output_tokens"]
    assert last["vllm:prompt_tokens_total"] == run.summary["total_input_tokens"]
    done = (run.requests.status == COMPLETED).sum()
    assert sum(v for name, v in last.items() if name.startswith("vllm:request_success_total")) == done
    count, total = (last[f"vllm:e2e_request_latency_seconds_{what}"] for what in ("count", "sum"))
    mean = run.summary["mean_e2el_ms"]
    assert isinstance(mean, float)
    assert 1e3 * total / count == pytest.approx(mean)


def test_gauges_hold_and_counters_never_fall(run: Run) -> None:
    found = series(list(metrics_lines(run.requests, run.steps, num_blocks=run.machine.kv.usable_blocks)))
    for name, values in found.items():
        times = [t for t, _ in values]
        assert times == sorted(set(times)), name
        if name.endswith("_total"):
            assert [v for _, v in values] == sorted(v for _, v in values), name
    assert max(v for _, v in found["vllm:num_requests_running"]) >= 1
    assert all(0 <= v <= 1 for _, v in found["vllm:kv_cache_usage_perc"])


def test_the_text_ends_as_openmetrics_does_and_repeats(tmp_path: Path) -> None:
    requests, steps = toy_run(20)
    for name in ("a", "b"):
        write_metrics(tmp_path / name, requests, steps, num_blocks=160)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_text().endswith("\n# EOF\n")


def test_an_empty_run_has_no_series_of_steps() -> None:
    requests, _ = toy_run(0)
    assert list(metrics_lines(requests, step_table({})))[-1] == "# EOF"


def test_it_comes_with_the_timeline(tmp_path: Path) -> None:
    assert servetwin("run", "tiny-cpu", "--log", "timeline", "--no-report", "-o", tmp_path / "r").code == 0
    assert (tmp_path / "r" / "metrics.prom").read_text().startswith("# TYPE vllm:num_requests_running gauge")
