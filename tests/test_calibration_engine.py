"""From `gpu measure` to a profile: a known engine is recovered, the bad rows are named, the error is told."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from calibration.command import run_fit
from calibration.engine_errors import features
from calibration.timings import UNITS, Timing
from simulator.errors import ConfigError, InputError
from simulator.latency.base import StepFeatures
from simulator.latency.profile_file import SHIPPED, best_profile, load_profile
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model

DATA = Path(__file__).parent / "data"
TINY = get_model("tiny-llama-28m")
CPU = "cpu-1core: AMD EPYC"
SDPA = "servetwin sdpa/cpu/float32"
GPU = "h200: NVIDIA H200"
TRITON = "servetwin triton/cuda/bfloat16"
LADDER = [1, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512]
HEADS = {"heads": 8, "kv_heads": 2}
ONCE, LAYER, SHARED = 3e-4, 5e-6, 1.5e-5  # seconds: of a step, of its attention's plan, of a mixed layer


def dense(m: int) -> float:  # one layer; bandwidth-bound, then 60 GFLOP/s
    return 1e-3 + 6e-5 * m


def decode(batch: int, kv: int) -> float:  # one layer
    return 2e-5 + 1e-5 * batch + 2e-7 * batch * kv


def chunk(tokens: int, prefix: int) -> float:  # one layer
    return 3e-5 + 2e-6 * tokens + 3e-8 * tokens * (prefix + tokens / 2)


def head(rows: int) -> float:
    return 1.4e-3 + 1.2e-4 * rows


def truth(step: StepFeatures) -> float:
    """Whole step without the host, all layers."""
    n, chunks = step.num_decodes, step.num_seqs - step.num_decodes
    gpu = ONCE + TINY.num_layers * dense(step.num_tokens) + head(step.num_sampled)
    if n:
        gpu += TINY.num_layers * decode(n, step.decode_kv // n) + LAYER
    if chunks:
        work = step.prefill_work
        gpu += TINY.num_layers * (3e-5 * chunks + 2e-6 * step.prefill_tokens + 3e-8 * work) + LAYER
    return gpu - (TINY.num_layers * SHARED if n and chunks else 0.0)


def rows(device: str = CPU, source: str = SDPA) -> list[Timing]:
    """An engine that obeys the functions above, timed at two layer counts."""

    def row(op: str, seconds: float, fixed: float = 0.0, **sizes: int) -> Timing:
        return Timing(op, seconds, source, device, fixed=fixed, **sizes)

    made = [row("dense", dense(m), ONCE, m=m) for m in LADDER]
    made += [row("head", head(b), batch=b) for b in (1, 4, 8, 16)]
    made += [
        row("decode_attention", decode(b, kv), LAYER, batch=b, kv=kv, **HEADS)
        for b in (1, 4, 8, 16)
        for kv in (32, 128, 256, 512)
    ]
    made += [
        row("prefill_attention", chunk(s, p), LAYER, batch=1, tokens=s, kv=p, **HEADS)
        for s in (16, 64, 96, 256)
        for p in (0, 96, 256)
    ]
    for b in (1, 4, 12):
        made += [
            row(f"host_{name}", 1e-4 + 1e-5 * b, batch=b) for name in ("schedule", "build", "sync", "loop")
        ]
    for m in (1, 4, 16, 64):
        made += [row("copy_out", 2e-5 + m * 131_072 / 4e9, m=m, n=131_072)]
        made += [row("copy_in", 1e-5 + m * 131_072 / 5e9, m=m, n=131_072)]
    mixed = [
        {"batch": b, "kv": 64, "tokens": s, "chunks": 1, "longest": max(s, 64)}
        for b in (2, 6, 12)
        for s in (16, 84)
    ]
    for sizes in mixed:
        seconds = decode(sizes["batch"], 64) + chunk(sizes["tokens"], 0) - SHARED
        made.append(row("mixed_attention", seconds, 2 * LAYER, **sizes, **HEADS))
        step = row("step", 1.0, m=sizes["batch"] + sizes["tokens"], **sizes, **HEADS)
        made.append(step._replace(seconds=truth(features(step))))
    for b, kv in ((1, 128), (8, 512)):
        step = row("step", 1.0, m=b, batch=b, kv=kv, longest=kv, **HEADS)
        made.append(step._replace(seconds=truth(features(step))))
    return made


def settings(**changes: object) -> dict[str, object]:
    shape = (
        "num_layers",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
    )
    told = {name: getattr(TINY, name) for name in shape}
    told |= {"model": TINY.name, "layers": [2, 4], "padded_to": LADDER, "padded_beyond": 64, "torch": "2.13"}
    session = {"ended": "2026-11-30T02:42:27+00:00", "drift": -0.027, "notes": []}
    return {"schema": 1, "settings": {**told, **changes}, "sessions": [session]}


def written(folder: Path, timings: list[Timing], told: dict[str, object] | None = None) -> Path:
    path = folder / "timings.csv"
    columns = ["op", "latency", "unit", *Timing._fields[2:]]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for t in timings:
            times = {"latency": t.seconds / UNITS["us"], "fixed": t.fixed / UNITS["us"], "unit": "us"}
            writer.writerow({**t._asdict(), **times})
    path.with_suffix(".settings.json").write_text(json.dumps(settings() if told is None else told))
    return path


def fit(path: Path, hardware: str = "cpu-1core", models: tuple[str, ...] = (TINY.name,)) -> list[str]:
    return list(run_fit([path], path.with_name("p.json"), hardware, models, []))


def test_an_engine_that_obeys_the_form_is_recovered(tmp_path: Path) -> None:
    lines = fit(written(tmp_path, rows()))
    profile = load_profile(tmp_path / "p.json", TINY)
    for step in (
        StepFeatures.decode([300] * 12),
        StepFeatures.prefill([(64, 100)]),
        StepFeatures(64 + 8, 9, 9, 8, 8 * 100, 100, 64, 64 * 32.0, 64),
    ):
        padded = step._replace(num_tokens=128 if step.num_tokens == 72 else step.num_tokens)
        host = 4 * (1e-4 + 1e-5 * step.num_seqs)
        assert profile.step_time(step) == pytest.approx(truth(padded) + host, rel=0.01)
    assert profile.error is not None
    assert profile.error < 0.01
    assert profile.kernels == SDPA
    assert any("step " in line and "6" in line for line in lines)


def test_steps_are_priced_at_the_size_they_are_padded_to(tmp_path: Path) -> None:
    fit(written(tmp_path, rows()))
    tokens = load_profile(tmp_path / "p.json", TINY).dense
    assert tokens[2] == tokens[3] == tokens[4]
    assert tokens[17] == tokens[24] < tokens[25]
    assert tokens[513] == tokens[576] < tokens[577] == tokens[640]


def test_without_settings_nothing_is_padded_and_that_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, rows())
    path.with_suffix(".settings.json").unlink()
    assert any("padded to: taken as not at all" in line for line in fit(path))
    tokens = load_profile(tmp_path / "p.json", TINY).dense
    assert tokens[2] < tokens[3] < tokens[4]
    with pytest.raises(ConfigError, match="--model: name the one model"):
        fit(path, models=())


def test_the_model_is_known_from_the_settings(tmp_path: Path) -> None:
    fit(written(tmp_path, rows()), models=())
    assert load_profile(tmp_path / "p.json", TINY).name == f"p: {TINY.name}"
    with pytest.raises(ConfigError, match=r"llama-2-7b: timings of tiny-llama-28m, num_layers 8, not 32"):
        fit(tmp_path / "timings.csv", models=("llama-2-7b",))


def test_whole_steps_are_held_out(tmp_path: Path) -> None:
    """Steps that take a fifth longer than their parts change the error that is told, and no price."""
    fit(written(tmp_path, rows()))
    before = load_profile(tmp_path / "p.json", TINY)
    slower = [t._replace(seconds=1.25 * t.seconds) if t.op == "step" else t for t in rows()]
    lines = fit(written(tmp_path, slower))
    after = load_profile(tmp_path / "p.json", TINY)
    assert after.error == pytest.approx(0.2, abs=0.01)
    assert after.step_time(StepFeatures.decode([99] * 4)) == before.step_time(StepFeatures.decode([99] * 4))
    assert "20.0%" in after.provenance
    assert any(line.lstrip().startswith("mixed step") and "-20." in line for line in lines)


def test_without_mixed_rows_the_profile_says_additive_unverified(tmp_path: Path) -> None:
    fit(written(tmp_path, rows()))
    told = load_profile(tmp_path / "p.json", TINY)
    assert "unverified" not in told.provenance
    assert told.mixed is not None
    fit(written(tmp_path, [t for t in rows() if t.op != "mixed_attention"]))
    assert "mixed steps: additive, unverified" in load_profile(tmp_path / "p.json", TINY).provenance


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: t._replace(seconds=1e-9, fixed=0.0), "1 rows left out: above the peak of"),
        (
            lambda t: t._replace(device="h200: NVIDIA H200"),
            "1 rows left out: measured on another device than",
        ),
        (
            lambda t: t._replace(source="servetwin varlen/cuda/bfloat16"),
            "1 rows left out: from another engine",
        ),
    ],
)
def test_rejected_rows_are_listed_with_their_reason(
    tmp_path: Path, spoil: Callable[[Timing], Timing], reason: str
) -> None:
    every = rows()
    at = next(i for i, t in enumerate(every) if t.op == "decode_attention" and t.kv == 256)
    every[at] = spoil(every[at])
    assert any(reason in line for line in fit(written(tmp_path, every)))


def test_repeats_become_their_median(tmp_path: Path) -> None:
    again = [t._replace(seconds=9 * t.seconds) for t in rows() if t.op == "head"]
    lines = fit(written(tmp_path, [*rows(), *rows(), *again]))
    assert any("repeats its configuration" in line for line in lines)
    error = load_profile(tmp_path / "p.json", TINY).error
    assert error is not None
    assert error < 0.01


def test_a_mistaken_unit_and_missing_operations_stop_the_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="dense rows are above the peak of the GPU: is their unit right"):
        fit(written(tmp_path, [t._replace(seconds=t.seconds / 1e3, fixed=0.0) for t in rows()]))
    with pytest.raises(ConfigError, match="hold 0 head rows; a profile needs 2"):
        fit(written(tmp_path, [t for t in rows() if t.op != "head"]))
    with pytest.raises(
        InputError, match="nothing to fit for h200: 77 rows measured on another device than h200"
    ):
        fit(written(tmp_path, rows()), hardware="h200")
    path = written(tmp_path, rows())
    path.write_text(path.read_text() + f"dense,-4,us,{SDPA},{CPU},8\n")
    with pytest.raises(InputError, match=r"timings\.csv:\d+: latency must be positive"):
        fit(path)
    assert not (tmp_path / "p.json").exists()


def test_copies_are_told_as_a_tier(tmp_path: Path) -> None:
    (line,) = [each for each in fit(written(tmp_path, rows())) if "as a tier" in each]
    assert "bandwidth_gb_s: 4, latency_us: 20}" in line


# ---- what a CUDA machine will send ----


def cuda_rows() -> list[Timing]:
    """A GPU a thousand times as fast, with edges, graphs, the sampler and launches."""
    every = [t._replace(seconds=t.seconds / 1e2, fixed=t.fixed / 1e2) for t in rows(GPU, TRITON)]
    base = {"source": TRITON, "device": GPU}
    every += [Timing("dense", dense(m) / 1e2 * 1.4, fixed=ONCE / 1e2, m=m, **base) for m in (65, 129)]
    every += [Timing("sampler", 5e-6 + 1e-8 * b, batch=b, **base) for b in (1, 4, 8, 16)]
    every += [Timing("host_launch", 2e-3, batch=b, **base) for b in (1, 4, 12)]
    for size in (1, 2, 4, 8):
        seconds = truth(StepFeatures.decode([512] * size)) / 1e2 + 5e-6
        every.append(Timing("graph_step", seconds, m=size, batch=size, kv=512, longest=512, **base, **HEADS))
    return every


def test_a_gpus_file_has_edges_graphs_and_a_sampler(tmp_path: Path) -> None:
    told = settings(padded_to=[1, 4, 8, 12, 16, 24, 32, 64, 72, 128, 256, 512])
    lines = fit(written(tmp_path, cuda_rows(), told), hardware="h200")
    profile = load_profile(tmp_path / "p.json", TINY)
    tokens = profile.dense
    assert tokens[2] < tokens[3] == tokens[4]  # graphs have a size of 2, the ladder has none
    assert tokens[9] == tokens[12]  # beyond the graphs the ladder goes on
    edge = tokens[72] - tokens[64]
    assert edge > 4 * (tokens[64] - tokens[56])  # the step behind a tile edge stays
    assert any(line.lstrip().startswith("graph_step") for line in lines)
    assert any("host_sync left out" in line for line in lines)
    assert any("takes 2.0 ms to launch" in line for line in lines)
    assert profile.host.per_step == pytest.approx(3 * 1e-6, rel=0.05)  # schedule, build and loop
    assert profile.head[4] == pytest.approx(head(4) / 1e2 + 5e-6, rel=0.02)  # the sampler is on the device
    assert profile.kernels == TRITON


# ---- our own measurements ----


def test_recorded_timings_of_the_cpu_engine_give_a_profile(tmp_path: Path) -> None:
    """117 points of the teaching model on a shared 2-core EPYC: steps within that session's noise."""
    out = tmp_path / "p.json"
    list(run_fit([DATA / "engine_cpu.csv"], out, "cpu-1core", [], []))
    profile = load_profile(out, TINY)
    assert profile.error is not None
    assert profile.error < 0.10
    assert profile.kernels == SDPA
    shipped = load_profile(SHIPPED / "cpu-reference.json", TINY)
    assert profile.dense == pytest.approx(shipped.dense, rel=1e-3)


def test_the_reference_is_found_for_the_teaching_model_alone() -> None:
    cpu = get_hardware("cpu-1core")
    found = best_profile(cpu, TINY)
    assert found is not None
    assert "cpu-reference" in found.name
    assert best_profile(cpu, get_model("llama-3.1-8b")) is None
