"""`gpu check` and `gpu evidence`: verdicts that can fail, parts that crash, files that are whole."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor
from typer.testing import CliRunner

import gpu_backend.measure.correctness as correctness
from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.cli import app
from gpu_backend.measure.check import PARTS, Context, check
from gpu_backend.measure.correctness import check_kernels, int8_verdict, sampler_verdict
from gpu_backend.measure.evidence import evidence
from gpu_backend.measure.facts import hardware_named
from gpu_backend.measure.measure import make_bench
from gpu_backend.measure.parts import Parts, Result, Skip
from gpu_backend.measure.speed import check_speed, step_bytes, step_flops
from gpu_backend.measure.timers import CpuTimer
from gpu_backend.measure.two_clocks import check_clocks
from simulator.errors import ConfigError, InputError
from simulator.specs import get_model

CPU = torch.device("cpu")
HEAVY = ("pydantic", "plotly", "simpy", "scipy", "pandas", "yaml", "typer", "tqdm", "joblib")
WITHOUT = f"""
import sys
for name in {HEAVY!r}: sys.modules[name] = None
sys.argv = ["check", sys.argv[1]]
from gpu_backend.measure.__main__ import main
sys.exit(main())
"""


def good(context: Context) -> Result:
    return {"status": "passed", "told": "well"}


def crash(context: Context) -> Result:
    raise RuntimeError("an illegal memory access\nwas encountered")


def late(context: Context) -> Result:
    raise Skip("no time is left")


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "check.json").read_text())
    return found


# ---- parts ----


def test_a_part_that_raises_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    seen = []
    book = check(
        tmp_path,
        device="cpu",
        parts={"a": good, "b": crash, "c": late, "d": good},
        tell=lambda name, result: seen.append((name, result["status"], sorted(read(tmp_path)["parts"]))),
    )
    assert seen == [
        ("a", "passed", ["a"]),
        ("b", "failed", ["a", "b"]),
        ("c", "skipped", ["a", "b", "c"]),
        ("d", "passed", ["a", "b", "c", "d"]),
    ]
    assert book.failed == ["b"]
    found = read(tmp_path)
    assert found["parts"]["b"]["told"] == "RuntimeError: an illegal memory access"
    assert found["parts"]["c"]["told"] == "no time is left"
    assert found["machine"]["torch"] == torch.__version__


def test_an_interrupt_leaves_a_whole_file_and_a_second_call_goes_on(tmp_path: Path) -> None:
    calls: list[str] = []

    def counted(context: Context) -> Result:
        calls.append("a")
        return {"told": "measured"}

    def stopped(context: Context) -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(tmp_path, device="cpu", parts={"a": counted, "b": stopped}, resumes=True)
    assert list(read(tmp_path)["parts"]) == ["a"]
    check(tmp_path, device="cpu", parts={"a": counted, "b": crash, "c": good}, resumes=True)
    again = check(tmp_path, device="cpu", parts={"a": counted, "b": good, "c": crash}, resumes=True)
    assert calls == ["a"]
    assert [each["status"] for each in again.results.values()] == ["measured", "passed", "passed"]


def test_a_part_that_was_cut_short_is_run_again(tmp_path: Path) -> None:
    for cut in ("batch 64", ""):
        book = Parts(tmp_path / "x.json", {"machine": 1}, resumes=True)
        result = book.run("speed", lambda cut=cut: {"told": "", "cut": cut} if cut else {"told": "all"})
    assert result["told"] == "all"


@pytest.mark.parametrize("text", ["{}", "[1]", "no json", '{"parts": {"a": 3}}', '{"parts": []}'])
def test_a_foreign_file_is_not_gone_on_with(text: str, tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"check\.json: is (not what this command writes|of another machine)"
    ):
        check(tmp_path, device="cpu", parts={"a": good}, resumes=True)
    assert path.read_text() == text


def test_results_of_another_machine_are_not_gone_on_with(tmp_path: Path) -> None:
    Parts(tmp_path / "x.json", {"machine": {"name": "A100"}})
    with pytest.raises(InputError, match="is of another machine"):
        Parts(tmp_path / "x.json", {"machine": {"name": "H100"}}, resumes=True)


# ---- correctness ----


def test_the_kernels_of_this_machine_are_right() -> None:
    found = check_kernels(CPU)
    assert found["status"] == "passed", found
    cannot = found["cannot_run"]
    assert isinstance(cannot, dict)
    assert set(cannot) == {"triton", "varlen"}


def test_a_wrong_backend_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unscaled(SdpaGather):
        def attend(self, *args: Any, scale: float, window: int | None = None) -> Tensor:
            return super().attend(*args, scale=1.0, window=window)

    monkeypatch.setattr(correctness, "choose_attention", lambda *a, **k: Unscaled())
    found = check_kernels(CPU)
    assert found["status"] == "failed"
    assert "wrong: sdpa float32, decodes" in str(found["told"])


def test_a_wrong_product_and_a_batch_dependent_sampler_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = correctness.quantize_linear

    def scaled(weight: Tensor) -> Any:
        linear = right(weight)
        linear.scale.mul_(1.5)
        held = linear.weight.clone()
        return type(
            "Off", (), {"__call__": lambda s, x: 1.1 * linear(x), "weight": held, "scale": linear.scale}
        )()

    assert int8_verdict(CPU, 4, torch.float32).is_right
    assert sampler_verdict(CPU).is_right
    monkeypatch.setattr(correctness, "quantize_linear", scaled)
    assert not int8_verdict(CPU, 4, torch.float32).is_right
    sample = correctness.sample
    monkeypatch.setattr(
        correctness, "sample", lambda x, p, at: sample(x, p, at).roll(1) if len(p) > 1 else sample(x, p, at)
    )
    assert not sampler_verdict(CPU).is_right


def test_both_clocks_decide_alike_here() -> None:
    assert check_clocks(CPU, 2)["status"] == "passed"


def test_another_decision_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_backend.measure.two_clocks as two_clocks

    simulate = two_clocks.run_scenario
    monkeypatch.setattr(
        two_clocks,
        "run_scenario",
        lambda s, **k: simulate(s.with_(**{"scheduler.max_num_batched_tokens": 32}), **k),
    )
    found = check_clocks(CPU, 2)
    assert found["status"] == "failed"
    assert "decided otherwise in step" in str(found["told"])


# ---- speed ----


@pytest.fixture(scope="module")
def bench() -> Any:
    return make_bench("tiny-llama-28m", "cpu", "auto", 1)


def test_bytes_and_flops_are_those_of_the_model(bench: Any) -> None:
    model = get_model("tiny-llama-28m")
    norms = (2 * model.num_layers + 1) * model.hidden_size
    embedding = model.vocab_size * model.hidden_size
    assert step_bytes(bench, 0) == 4 * (model.num_params - norms - embedding)
    assert step_bytes(bench, 1000) - step_bytes(bench, 0) == 4 * 1000 * 8 * 2 * 2 * 64
    layers = model.num_params - norms - 2 * embedding
    pairs = 3 + 2 + 1
    assert step_flops(bench, 3) == 2 * 3 * layers + 4 * pairs * 8 * 8 * 64 + 2 * embedding


def test_speed_is_measured_and_not_judged_on_a_cpu(bench: Any) -> None:
    found = check_speed(bench, CpuTimer(rounds=1), deadline=0.0)
    assert list(found["decode"]) == [1]  # type: ignore[call-overload]
    assert found["prefill"]["met"] is None  # type: ignore[index]
    assert "not judged on a CPU" in str(found["told"])
    assert "batch [4, 16, 64, 2, 8, 32]" in str(found["cut"])


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40gb-sxm"),
        ("NVIDIA A100-PCIE-40GB", 40, "a100-40gb-pcie"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", 80, "h100-80gb-sxm"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx-4090"),
        ("NVIDIA L40S", 45, "l40s"),
        ("NVIDIA GeForce RTX 3090", 24, None),
    ],
)
def test_gpus_are_known_by_cudas_names(name: str, gib: int, expected: str | None) -> None:
    assert hardware_named(name, gib << 30) == expected


# ---- the commands ----


def test_the_first_parts_need_pytorch_alone(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = {name: each["status"] for name, each in read(tmp_path)["parts"].items()}
    assert (statuses["device"], statuses["kernels"], statuses["speed"]) == ("measured", "passed", "measured")


def test_every_part_is_run_by_default() -> None:
    assert list(PARTS) == ["device", "kernels", "graphs", "speed", "host", "clocks", "replay"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "--minutes", "0"], "--minutes 0: must be a number above 0"),
        (["check", "--attention", "tritn"], "did you mean triton"),
        (["check", "--device", "gpu"], "--device 'gpu': unknown"),
        (["check", "-o", "/dev/null/x"], "cannot be written"),
        (["evidence", "nosuch"], "model.name: 'nosuch' is neither"),
        (["evidence", "--minutes", "-1"], "--minutes -1: must be"),
    ],
)
def test_what_cannot_be_checked_says_why(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, InputError), match=words) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_info_names_backends_and_what_cuda_misses() -> None:
    done = CliRunner().invoke(app, ["info", "--json"], catch_exceptions=False)
    found = json.loads(done.output)
    assert found["attention"]["sdpa"] is None
    assert found["torch"] == torch.__version__
    if found["device"] == "cpu":
        assert "needs a CUDA device" in found["attention"]["triton"]
        assert "--device cuda" in found["cuda_misses"]
    assert "sdpa: runs" in CliRunner().invoke(app, ["info"], catch_exceptions=False).output


@pytest.mark.slow
def test_evidence_fits_its_minutes_and_a_second_call_only_reads(tmp_path: Path) -> None:
    book = evidence(tmp_path, "tiny-llama-28m", device="cpu", minutes=0.7)
    assert book.failed == []
    found = json.loads((tmp_path / "evidence.json").read_text())
    assert list(found["parts"]) == ["check", "measure", "replay"]
    assert found["parts"]["measure"]["cut"]
    assert found["parts"]["measure"]["timings"][0][0] == "op"
    metrics = found["parts"]["replay"]["diff"]["metrics"]
    assert "noise_percent" in metrics["median_e2el_ms"]
    assert "timing" in metrics["median_e2el_ms"]
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "replay").iterdir()}
    again = evidence(tmp_path, "tiny-llama-28m", device="cpu", minutes=60)  # enough on any machine
    assert not again.results["measure"].get("cut")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "replay").iterdir()} == stamps
