"""`calibrate tune`: known terms are found again from a run made with them, and hopeless runs are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.cli import app
from calibration.measured import MeasuredRun, read_measured
from calibration.rerun import Times, scenario_of, simulated
from calibration.server_log import read_server_log
from calibration.tune import Terms, tune, with_terms
from simulator.errors import InputError
from simulator.latency.base import StepFeatures
from simulator.latency.profile import Host
from simulator.latency.profile_file import load_profile

MODEL = "llama-3.1-8b"
PROFILE = load_profile("a100-80gb-sxm", MODEL)
TRUE = Terms(per_step=4e-3, per_seq=60e-6, gpu_scale=1.15)
LOG = """INFO non-default args: {'model': 'Llama-3.1-8B', 'max_num_seqs': 128, 'max_model_len': 4096}
INFO config.py: Initializing a V1 LLM engine with config: max_seq_len=8192, enable_prefix_caching=False
INFO Chunked prefill is enabled with max_num_batched_tokens=1024.
INFO GPU KV cache size: 119,008 tokens
"""


def asked(num: int = 120, gaps: tuple[float, ...] = (2.0, 0.4, 0.1, 0.05)) -> MeasuredRun:
    """Requests under a load that changes, without times."""
    rng = np.random.default_rng(0)
    scale = np.resize(np.repeat(gaps, 10), num)
    arrival = np.cumsum(scale * rng.exponential(size=num))
    prompt, output = rng.integers(50, 800, num), rng.integers(20, 120, num)
    none = np.full(num, np.nan)
    engine: dict[str, object] = {"model": MODEL}
    return MeasuredRun("made", "made.json", arrival - arrival[0], prompt, output, none, none, none, engine)


def bench_file(path: Path, run: MeasuredRun, times: Times) -> Path:
    """What `vllm bench serve --save-detailed` would have written of it."""
    outputs = run.num_output.tolist()
    itls = [[float(t)] * (n - 1) for t, n in zip(times.tpot, outputs, strict=True)]
    result = {
        "model_id": MODEL,
        "input_lens": run.num_prompt.tolist(),
        "output_lens": outputs,
        "ttfts": times.ttft.tolist(),
        "itls": itls,
        "start_times": (1000 + run.arrival).tolist(),
    }
    path.write_text(json.dumps(result))
    return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = asked()
    times = simulated(run, scenario_of(run, {}), with_terms(PROFILE, TRUE)).times
    return bench_file(tmp_path_factory.mktemp("bench") / "result.json", run, times)


def test_known_terms_are_found_again_and_hold_on_the_second_half(bench: Path) -> None:
    found = tune(read_measured(bench), PROFILE, {})
    assert found.terms.gpu_scale == pytest.approx(TRUE.gpu_scale, rel=0.02)
    assert found.terms.per_step == pytest.approx(TRUE.per_step, rel=0.15)
    host_of_40 = TRUE.per_step + 40 * TRUE.per_seq
    assert found.terms.per_step + 40 * found.terms.per_seq == pytest.approx(host_of_40, rel=0.1)
    before, after = ({f.name: f.error for f in each} for each in (found.before, found.after))
    assert before["tpot_p50"] < -0.15
    for name in ("tpot_mean", "tpot_p50", "e2e_mean", "e2e_p50"):
        assert abs(after[name]) < 0.01, name
    assert (found.num_fitted, found.num_held_out) == (59, 60)


def test_the_second_half_is_never_fitted_on(bench: Path) -> None:
    run = read_measured(bench)
    late = np.arange(len(run)) >= (len(run) + 1) // 2
    spoiled = replace(run, e2e=np.where(late, 3 * run.e2e, run.e2e))
    honest, other = tune(run, PROFILE, {}), tune(spoiled, PROFILE, {})
    assert other.terms == honest.terms
    assert other.after != honest.after


def test_the_command_writes_a_profile_with_the_terms_and_their_source(bench: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "new" / "mine.json", tmp_path / "server.log"
    log.write_text("INFO GPU KV cache size: 160,000 tokens\n")
    arguments = ["tune", "a100-80gb-sxm", "--bench", str(bench), "--log", str(log), "-o", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "held out: the second half, 60 requests" in done.stdout
    assert "derived" not in done.stdout
    mine = load_profile(out, MODEL)
    assert "tuned on result, 59 requests of its first half" in mine.provenance
    written = json.loads(out.read_text())
    assert written["host"]["kind"] == "tuned"
    assert list(written["aliases"]) == [MODEL]
    assert written["tuned"]["after"]["tpot_p50"] == pytest.approx(0, abs=0.02)
    step = StepFeatures.decode([500] * 8)
    expected = with_terms(PROFILE, TRUE).step_time(step)
    assert mine.step_time(step) == pytest.approx(expected, rel=0.02)
    with pytest.raises(InputError, match="holds no model"):
        load_profile(out, "qwen2.5-7b")


def test_too_few_requests_are_refused_with_the_reason(tmp_path: Path) -> None:
    run = asked(30)
    path = bench_file(tmp_path / "r.json", run, simulated(run, scenario_of(run, {}), PROFILE).times)
    with pytest.raises(
        InputError, match=r"14 requests of two tokens or more in the first half; 20 are needed"
    ):
        tune(read_measured(path), PROFILE, {})


def test_a_single_batch_size_is_refused_with_the_reason(tmp_path: Path) -> None:
    run = replace(asked(60), arrival=60.0 * np.arange(60))
    path = bench_file(tmp_path / "r.json", run, simulated(run, scenario_of(run, {}), PROFILE).times)
    with pytest.raises(InputError, match=r"batches of 1 to 1: one batch size cannot tell host from GPU"):
        tune(read_measured(path), PROFILE, {})


def test_the_server_log_gives_blocks_and_arguments(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    assert read_server_log(log) == {
        "max_num_seqs": 128,
        "max_num_batched_tokens": 1024,
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        "num_gpu_blocks": 7438,
    }
    log.write_text("INFO # GPU blocks: 27,500, # CPU blocks: 2048\n")
    assert read_server_log(log) == {"num_gpu_blocks": 27500}
    log.write_text("hello\n")
    with pytest.raises(InputError, match=r"server\.log: no line of vLLM's start-up is known"):
        read_server_log(log)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["a100", "--bench", "r.json"], "a100: "),
        (["a100-80gb-sxm", "--bench", "absent.json"], "absent.json"),
        (["a100-80gb-sxm", "--bench", "bad.json"], "lacks output_lens or start_times"),
        (["a100-80gb-sxm", "--bench", "r.json", "--hardware", "h200"], "is of a100-80gb-sxm"),
        (["a100-80gb-sxm", "--bench", "r.json", "--model", "qwen3-14b"], "no model of the shape"),
        (["a100-80gb-sxm", "--bench", "r.json", "--set", "kv.blocks=1"], "kv.blocks"),
        (["a100-80gb-sxm", "--bench", "r.json", "--set", "kv.num_gpu_blocks_override=9"], "did not complete"),
        (["a100-80gb-sxm", "--bench", "r.json", "-o", "mine.txt"], "a profile is a .json file"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    arguments: list[str], complaint: str, bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.json").write_bytes(bench.read_bytes())
    Path("bad.json").write_text("{}")
    done = CliRunner().invoke(app, ["tune", *arguments])
    assert done.exit_code == 2, done.output
    assert complaint in done.stderr
    assert done.stderr.startswith("servetwin: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "model", "tokens"),
    [("vllm_h100_llama-2-7b", "llama-2-7b", 119_008), ("vllm_h100_codellama-34b", "codellama-34b", 40_592)],
)
def test_h100_runs_are_tuned_from_an_assumed_host(
    folder: str, model: str, tokens: int, shared_data: Path
) -> None:
    profile = replace(load_profile("h100-80gb-sxm", model), host=Host(1.5e-3, 4.4e-6))
    run = read_measured(shared_data / "measured" / folder)
    found = tune(run, profile, {"hardware.gpu": "h100-80gb-sxm", "kv.num_gpu_blocks_override": tokens // 16})
    after = {figure.name: figure.error for figure in found.after}
    assert abs(after["tpot_p50"]) < 0.05
    assert abs(after["e2e_p50"]) < 0.05
    assert found.num_simulations <= 12


@pytest.mark.slow
def test_a_saturated_run_with_shared_prefixes_is_tuned(shared_data: Path) -> None:
    trace = shared_data / "traces" / "llmservingsim_sharegpt-llama-3.1-8b-300-sps10_blocks16.jsonl.gz"
    run = read_measured(shared_data / "measured" / "vllm_rtxpro6000_llama-3.1-8b", trace)
    found = tune(run, load_profile("rtxpro6000", MODEL), {"hardware.gpu": "rtx-pro-6000"})
    before, after = ({f.name: f.error for f in each} for each in (found.before, found.after))
    assert before["e2e_p50"] < -0.05
    assert abs(after["tpot_p50"]) < 0.05
    assert abs(after["e2e_p50"]) < 0.05
