"""Real runs held against profiles: readers, figures, the command, and the numbers that docs quote."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, servetwin

from calibration.measured import MeasuredRun, read_measured
from calibration.validate import (
    Validation,
    figures,
    latency_names,
    profile_for,
    scenario_of,
    validate,
    with_constant,
)
from calibration.validate_command import run_validate, validation_json
from calibration.validate_report import validation_html
from simulator.config.run import run_scenario
from simulator.errors import ConfigError, InputError
from simulator.latency.profile_file import load_profile

TRACE = "traces/llmservingsim_sharegpt-llama-3.1-8b-300-sps10_blocks16.jsonl.gz"
RUNS = {"rtx4090": "vllm_rtx4090_llama-3.1-8b", "rtxpro6000": "vllm_rtxpro6000_llama-3.1-8b"}


CALIBRATE = EntryPoint("calibrate", "calibration.cli:app", "servetwin.commands")


def calibrate(*args: object) -> Outcome:
    return servetwin("calibrate", *args, commands=[CALIBRATE])


def request(i: int, **changes: float) -> dict[str, object]:
    at = float(i)
    row = {"request_id": f"r{i}", "input_toks": 100 + i, "output_toks": 5, "arrival_time": 1e9 + at}
    row |= {"queued_ts": 50 + at, "scheduled_ts": 50.01 + at, "first_token_ts": 50.1 + at}
    return {**row, "last_token_ts": 50.5 + at, **changes}


def folder(path: Path, rows: list[dict[str, object]], **engine: object) -> Path:
    kwargs = {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 8, "max_num_batched_tokens": 256, **engine}
    path.mkdir(exist_ok=True)
    (path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    meta = {"vllm_version": "0.19.0", "engine_kwargs": kwargs, "kv_cache": {"num_gpu_blocks": 2000}}
    (path / "meta.json").write_text(json.dumps(meta))
    (path / "timeseries.csv").write_text("t,running,waiting,kv_cache_pct\n1.0,1,0,0.5\n2.0,1,0,0.0\n")
    return path


def test_stamps_become_latencies_from_the_servers_queue(tmp_path: Path) -> None:
    run = read_measured(folder(tmp_path, [request(1), request(0)]))
    assert run.arrival.tolist() == [0, 1]
    assert run.num_prompt.tolist() == [100, 101]
    assert run.ttft == pytest.approx([0.1, 0.1])
    assert run.tpot == pytest.approx([0.1, 0.1])
    assert run.e2e == pytest.approx([0.5, 0.5])
    assert run.queue == pytest.approx([0.01, 0.01])
    assert run.engine["num_gpu_blocks"] == 2000
    assert run.series["kv_cache_pct"].tolist() == [0.5, 0.0]


def test_an_answer_of_one_token_has_no_tpot(tmp_path: Path) -> None:
    run = read_measured(folder(tmp_path, [request(0, output_toks=1, last_token_ts=50.1), request(1)]))
    assert np.isnan(run.tpot[0])
    assert np.isfinite(run.tpot[1])


def test_a_bench_result_is_read_and_failed_requests_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "input_lens": [10, 20, 30],
        "output_lens": [3, 0, 2],
        "start_times": [7.0, 8.0, 6.0],
        "ttfts": [0.2, 0.0, 0.3],
        "itls": [[0.1, 0.1], [], [0.4]],
    }
    path.write_text(json.dumps(result))
    run = read_measured(path)
    assert run.arrival.tolist() == [0, 1]
    assert run.num_prompt.tolist() == [30, 10]
    assert run.e2e == pytest.approx([0.7, 0.4])
    assert run.notes == ("1 failed requests are left out",)
    path.write_text(json.dumps({**result, "itls": 3}))
    with pytest.raises(InputError, match="itls must be 3 lists"):
        read_measured(path)
    path.write_text(json.dumps({"model_id": "m", "completed": 3}))
    with pytest.raises(InputError, match="was --save-detailed given"):
        read_measured(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"first_token_ts": 49.0}, "request 0: ttft must be finite and >= 0"),
        ({"output_toks": 0}, "output_toks must be between 1"),
        ({"input_toks": "x"}, "requests.jsonl:1: input_toks must be a number"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    rows = [{**request(0), **change}]
    with pytest.raises(InputError, match=why) as error:
        read_measured(folder(tmp_path, rows))
    assert "\n" not in str(error.value)


def test_a_trace_of_other_requests_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 99, "output_length": 5, "hash_ids": [1]}))
    with pytest.raises(InputError, match=r"not the trace of .*number or length"):
        read_measured(folder(tmp_path / "run", [request(0)]), trace)


def test_the_scenario_is_the_servers_and_says_what_was_not_known(tmp_path: Path) -> None:
    run = read_measured(folder(tmp_path, [request(0)]))
    scenario, notes = scenario_of(run, "rtx-4090")
    assert scenario.kv.num_gpu_blocks_override == 2000
    assert scenario.scheduler.max_num_seqs == 8
    assert scenario.scheduler.async_scheduling
    assert any("prefix hits" in note for note in notes)
    assert scenario_of(run, "rtx-4090", 300)[0].kv.num_gpu_blocks_override == 300
    old = replace(run, engine={**run.engine, "vllm_version": "0.11.0", "num_gpu_blocks": None})
    scenario, notes = scenario_of(old, "rtx-4090")
    assert not scenario.scheduler.async_scheduling
    assert any("derived from the GPU's memory" in note for note in notes)
    with pytest.raises(InputError, match="max_num_seqs must be a whole number >= 1, got many"):
        scenario_of(replace(run, engine={**run.engine, "max_num_seqs": "many"}), "rtx-4090")


def imitated(tmp_path: Path, constant: float) -> tuple[MeasuredRun, str]:
    """Return a run whose measurements are a simulation with `constant` seconds more a step."""
    run = read_measured(folder(tmp_path, [request(i) for i in range(12)]))
    profile, gpu = profile_for("rtx4090", run)
    scenario, _ = scenario_of(run, gpu)
    latency = with_constant(profile, constant).overlapped()
    table = run_scenario(scenario, workload=run.requests(), latency=latency).requests
    ttft, e2e = table.first_token - table.arrival, table.finish - table.arrival
    return replace(run, ttft=ttft, e2e=e2e, queue=table.scheduled - table.arrival), gpu


def test_a_run_that_the_profile_made_has_no_error(tmp_path: Path) -> None:
    run, gpu = imitated(tmp_path, 0.0)
    found = validate(run, load_profile("rtx4090", "llama-3.1-8b"), gpu)
    assert found.worst < 1e-9
    assert found.metrics["mean_queue_ms"].measured == found.metrics["mean_queue_ms"].simulated


def test_one_constant_is_found_on_the_mean_tpot(tmp_path: Path) -> None:
    run, gpu = imitated(tmp_path, 2e-3)
    profile = load_profile("rtx4090", "llama-3.1-8b")
    assert validate(run, profile, gpu).worst > 0.05
    found = validate(run, profile, gpu, fit_constant=True)
    assert found.constant == pytest.approx(2e-3, rel=0.01)
    assert found.worst < 1e-3
    assert not imitated(tmp_path, 0.0)[0].notes


def test_figures_leave_out_the_warm_up_and_refuse_what_did_not_complete(tmp_path: Path) -> None:
    run, gpu = imitated(tmp_path, 0.0)
    slow = replace(run, ttft=run.ttft + np.where(np.arange(12) == 0, 9.0, 0.0))
    profile = load_profile("rtx4090", "llama-3.1-8b")
    assert validate(slow, profile, gpu).worst > 0.5
    assert validate(slow, profile, gpu, warmup=1).worst < 1e-9
    with pytest.raises(ConfigError, match="warmup must be below the 12 requests"):
        validate(slow, profile, gpu, warmup=12)
    scenario, _ = scenario_of(run, gpu)
    short = scenario.with_(**{"model.max_model_len": 104})
    simulated = run_scenario(short, workload=run.requests(), latency=profile)
    with pytest.raises(ConfigError, match="did not complete in the simulation"):
        figures(run, simulated)


def test_the_page_shows_both_runs_and_is_the_same_twice(tmp_path: Path) -> None:
    run, gpu = imitated(tmp_path, 1e-3)
    found = validate(run, load_profile("rtx4090", "llama-3.1-8b"), gpu)
    page = validation_html([found])
    assert page == validation_html([found])
    for figure in ("figure-errors", "figure-requests", "figure-time"):
        assert figure in page
    assert "KV use, measured" in page
    assert "2,000 of 16 tokens" in page


def test_the_command_prints_json_writes_the_page_and_fails_over_the_limit(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", [request(i) for i in range(4)])
    out = tmp_path / "out"
    args = ["validate", "rtx4090", "--measured", run, "-o", out]
    done = calibrate(*args, "--json", "--limit", 0.1)
    assert done.code == 1
    printed = json.loads(done.out)
    assert set(latency_names()) < set(printed["metrics"])
    assert set(printed["metrics"]["mean_ttft_ms"]) == {"measured", "simulated", "error"}
    assert printed == json.loads((out / "validation.json").read_text())
    assert (out / "validate.html").stat().st_size > 1e5
    assert "worst of the fifteen" in done.err
    assert done.err.count("worst of the fifteen") == 1
    done = calibrate("validate", "rtx4090", "--measured", tmp_path / "none")
    assert "none" in done.complaint


def real(shared: Path, name: str, **changes: object) -> Validation:
    run = read_measured(shared / "measured" / RUNS[name], shared / TRACE)
    profile, gpu = profile_for(name, run)
    return validate(run, replace(profile, **changes) if changes else profile, gpu)  # type: ignore[arg-type]


def test_every_figure_of_the_4090_run_is_within_a_percent_and_a_half_with_nothing_fitted(
    shared_data: Path,
) -> None:
    found = real(shared_data, "rtx4090")
    assert found.run.machine.kv.num_gpu_blocks == 2588
    assert found.worst == pytest.approx(0.011, abs=0.002)
    assert found.worst < 0.015
    assert found.metrics["peak_kv_use_percent"].simulated == pytest.approx(100, abs=0.5)


def test_a_constant_is_not_fitted_where_steps_are_long_enough(shared_data: Path) -> None:
    path = shared_data / "measured" / RUNS["rtx4090"]
    (only,) = run_validate("rtx4090", path, trace=shared_data / TRACE, fit_constant=True)
    assert only.constant == 0
    assert any("no constant was fitted" in note for note in only.notes)


def test_the_pro_6000_run_tells_additive_attention_from_measured(shared_data: Path) -> None:
    found = real(shared_data, "rtxpro6000")
    assert found.worst == pytest.approx(0.157, abs=0.005)
    assert found.metrics["mean_tpot_ms"].error == pytest.approx(-0.043, abs=0.003)
    added = real(shared_data, "rtxpro6000", mixed=None)
    assert added.metrics["mean_ttft_ms"].error == pytest.approx(-0.231, abs=0.01)
    assert found.metrics["prefix_hit_rate"].simulated == pytest.approx(0.0759, abs=0.001)


def test_one_constant_brings_the_pro_6000_run_within_five_percent(shared_data: Path) -> None:
    run = read_measured(shared_data / "measured" / RUNS["rtxpro6000"], shared_data / TRACE)
    profile, gpu = profile_for("rtxpro6000", run)
    found = validate(run, profile, gpu, fit_constant=True)
    assert found.constant == pytest.approx(1.39e-3, abs=0.03e-3)
    assert found.worst == pytest.approx(0.039, abs=0.004)
    assert validation_json(found)["worst_error"] == found.worst


def test_without_prefix_blocks_or_with_other_kv_blocks_the_4090_run_is_missed(shared_data: Path) -> None:
    path = shared_data / "measured" / RUNS["rtx4090"]
    run = read_measured(path)
    profile, gpu = profile_for("rtx4090", run)
    assert 0.05 < validate(run, profile, gpu).worst < 0.15
    run = read_measured(path, shared_data / TRACE)
    assert validate(run, profile, gpu, blocks=2500).worst > 0.03


@pytest.mark.parametrize("name", ["vllm_h100_llama-2-7b", "vllm_h100_codellama-34b"])
def test_spans_of_a_server_are_read(shared_data: Path, name: str) -> None:
    run = read_measured(shared_data / "measured" / name)
    assert len(run) in (282, 280)
    assert (run.e2e >= run.ttft).all()
    assert not run.series
    assert run.engine["max_num_batched_tokens"] == 4096
