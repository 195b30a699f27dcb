"""LLMServingSim's tables: read, checked against physics, fitted to a profile, rebuilt byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.checks import check
from calibration.command import read_file, run_fit
from calibration.fit_layers import fit_layers
from calibration.held_out_layers import LayerErrors, Spread, held_out_layers
from calibration.llmservingsim import IN_LAYER, ONCE, named_model
from calibration.shipped import RECIPES, build
from calibration.timings import Timing
from simulator.errors import ConfigError, InputError
from simulator.latency.base import StepFeatures
from simulator.latency.profile_file import SHIPPED, load_profile
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model

PERF = "RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1"


def table(tmp_path: Path, name: str, header: str, *rows: str) -> Path:
    path = tmp_path / PERF / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_attention_rows_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    path = table(tmp_path, "attention", header, "0,0,4,512,25.5", "64,128,0,0,12", "64,128,4,512,40")
    decode, prefill, mixed = read_file(path)
    assert (decode.op, decode.device) == ("decode_attention", "RTX4090")
    assert decode.seconds == pytest.approx(25.5e-6)
    assert (decode.batch, decode.kv, decode.heads, decode.kv_heads) == (4, 512, 32, 8)
    assert (prefill.op, prefill.batch, prefill.tokens, prefill.kv) == ("prefill_attention", 1, 64, 128)
    assert mixed.op == "mixed_attention"
    assert (mixed.batch, mixed.kv, mixed.tokens, mixed.prefix, mixed.chunks) == (4, 512, 64, 128, 1)
    assert mixed.longest == 512
    assert named_model([path]).name == "llama-3.1-8b"


def test_a_layer_is_its_kernels_with_two_norms(tmp_path: Path) -> None:
    rows = [f"{name},{tokens},{i + tokens}" for tokens in (1, 8) for i, name in enumerate((*IN_LAYER, *ONCE))]
    found = list(read_file(table(tmp_path, "dense", "layer,tokens,time_us", *rows, "embedding,3,1")))
    layer = [t.seconds for t in found if t.op == "dense"]
    assert layer == pytest.approx(
        [(2 * 1 + 2 + 3 + 4 + 5 + 6 + 7) * 1e-6, (2 * 8 + 9 + 10 + 11 + 12 + 13 + 14) * 1e-6]
    )
    assert [t.m for t in found] == [1, 1, 8, 8]
    assert found[1].op == "embedding"
    assert found[1].seconds == pytest.approx((8 + 9) * 1e-6)


def test_head_sampler_and_skew_are_read(tmp_path: Path) -> None:
    rows = list(
        read_file(table(tmp_path, "per_sequence", "layer,sequences,time_us", "lm_head,2,9", "sampler,2,3"))
    )
    assert [(t.op, t.batch) for t in rows] == [("head", 2), ("sampler", 2)]
    assert [t.seconds for t in rows] == pytest.approx([9e-6, 3e-6])
    header = "regime,n,kv_big,kv_mean,t_skew_us"
    (skew,) = read_file(table(tmp_path, "skew", header, "pure,8,512,320,30", "mixed,8,512,320,30"))
    assert (skew.op, skew.batch, skew.kv, skew.longest) == ("skewed_attention", 8, 320, 512)
    assert skew.seconds == pytest.approx(10e-6)


def test_what_a_path_or_a_cell_does_not_say_is_an_error(tmp_path: Path) -> None:
    header = "layer,sequences,time_us"
    path = table(tmp_path, "per_sequence", header, "lm_head,2,9")
    with pytest.raises(InputError, match="row 0: sequences must be whole numbers"):
        list(read_file(table(tmp_path, "bad", header, "lm_head,x,9")))
    with pytest.raises(InputError, match=r"dense.csv: lacks the layers .*o_proj"):
        list(read_file(table(tmp_path, "dense", "layer,tokens,time_us", "qkv_proj,1,9")))
    nameless = tmp_path / "a" / "b" / "c" / "d" / "e" / "f" / "per_sequence.csv"
    nameless.parent.mkdir(parents=True)
    nameless.write_text(path.read_text())
    with pytest.raises(InputError, match="its path names none of the GPUs"):
        list(read_file(nameless))


def mixed(seconds: float) -> Timing:
    sizes = {"batch": 8, "kv": 4096, "tokens": 256, "prefix": 0, "chunks": 1, "longest": 4096}
    return Timing("mixed_attention", seconds, "s", "RTX4090", heads=32, kv_heads=8, **sizes)


def test_a_mixed_row_that_beats_the_peaks_is_listed_with_its_reason() -> None:
    bytes_at_peak = 4 * 8 * 4096 * 8 * 128 / 1.008e12
    good, bad = mixed(1.1 * bytes_at_peak), mixed(0.9 * bytes_at_peak)._replace(source="t")
    checked = check([good, good, bad], GPU)
    assert [t.source for t in checked.timings] == ["s"]
    (beyond, repeats) = checked.rejected
    assert beyond.reason == "above the peak of 1.008 TB/s"
    assert beyond.rows == 1
    assert "mixed_attention t: batch 8" in beyond.example
    assert "repeats" in repeats.reason


GPU = get_hardware("rtx-4090")


def test_a_fit_names_what_its_tables_lack() -> None:
    with pytest.raises(ConfigError, match="no embedding rows for rtx-4090"):
        fit_layers(
            [Timing("dense", 1e-3, "s", "RTX4090", m=m) for m in (1, 2)], GPU, get_model("llama-3.1-8b")
        )


def test_a_dense_layer_above_the_peak_is_left_out_and_a_wrong_unit_stops(shared_data: Path) -> None:
    pytest.importorskip("pyarrow")
    timings = shared_timings(shared_data, "rtx4090")
    fast = [t._replace(seconds=1e-6) if t.op == "dense" and t.m == 8 else t for t in timings]
    fitted = fit_layers(fast, GPU, get_model("llama-3.1-8b"))
    assert [(row.reason, row.rows) for row in fitted.rejected] == [
        ("dense layer above the peak of the GPU", 1)
    ]
    assert 8 not in fitted.tokens
    wrong = [t._replace(seconds=t.seconds / 1e3) if t.op == "dense" else t for t in timings]
    with pytest.raises(ConfigError, match=r"152 dense rows are above the peak.*unit"):
        fit_layers(wrong, GPU, get_model("llama-3.1-8b"))


def shared_timings(shared: Path, name: str) -> list[Timing]:
    files = [shared / "kernels" / file for file in RECIPES[name].files]
    return check((t for file in files for t in read_file(file)), get_hardware(RECIPES[name].hardware)).timings


def test_a_step_of_the_profile_is_the_sum_of_its_measurements(shared_data: Path) -> None:
    pytest.importorskip("pyarrow")
    timings = {t[:1] + t[4:]: t.seconds for t in shared_timings(shared_data, "rtx4090")}
    by = {(t[0], t[1], t[4], t[5], t[9]): s for t, s in timings.items()}
    profile = load_profile("rtx4090", "llama-3.1-8b")
    dense = 32 * by["dense", 128, 0, 0, 0] + by["embedding", 128, 0, 0, 0]
    head = by["head", 0, 64, 0, 0] + by["sampler", 0, 64, 0, 0]
    attention = next(
        s
        for t, s in timings.items()
        if t[0] == "mixed_attention" and t[4:7] == (64, 64, 1024) and t[9] == 512
    )
    kv = [1024] * 64
    parts = zip(StepFeatures.prefill([(64, 512)], sampled=False), StepFeatures.decode(kv), strict=True)
    step = StepFeatures._make(a + b for a, b in parts)
    assert profile.step_time(step) == pytest.approx(dense + head + 32 * attention, rel=0.003)


@pytest.mark.parametrize(
    ("name", "grid", "form"), [("rtx4090", 0.033, (0.090, 0.107)), ("rtxpro6000", 0.034, (0.088, 0.110))]
)
def test_mixed_attention_held_out_meets_its_goals(
    shared_data: Path, name: str, grid: float, form: tuple[float, float]
) -> None:
    pytest.importorskip("pyarrow")
    gpu = get_hardware(RECIPES[name].hardware)
    errors = held_out_layers(fit_layers(shared_timings(shared_data, name), gpu, get_model("llama-3.1-8b")))
    assert isinstance(errors, LayerErrors)
    assert errors.mixed.median == pytest.approx(grid, abs=0.003)
    assert errors.mixed_few.worst < 0.09
    assert errors.mixed.worst < 0.12
    assert errors.form_few.median == pytest.approx(form[0], abs=0.004)
    assert errors.form.median == pytest.approx(form[1], abs=0.005)
    assert errors.dense < 0.03
    assert errors.mixed == Spread(errors.mixed.median, errors.mixed.worst)
    assert np.isfinite(errors.step)


def test_rows_off_the_grid_are_interpolated_within_a_few_percent(shared_data: Path) -> None:
    """10,512 rows of the PRO 6000 lie on other values than the grid's: none of them is in the table."""
    pytest.importorskip("pyarrow")
    profile = load_profile("rtxpro6000", "llama-3.1-8b")
    assert profile.mixed is not None
    axes = profile.mixed.axes
    errors = []
    for t in shared_timings(shared_data, "rtxpro6000"):
        if t.op == "mixed_attention" and not (
            t.tokens in axes[0] and t.prefix in axes[1] and t.kv in axes[3]
        ):
            work = t.tokens * (t.prefix + t.tokens / 2)
            step = StepFeatures(0, 0, 0, t.batch, t.batch * t.kv, 0, t.tokens, work, t.prefix + t.tokens)
            errors.append(abs(profile.mixed.seconds(step) / 32 / t.seconds - 1))
    assert len(errors) == 10_512
    assert np.mean(errors) == pytest.approx(0.031, abs=0.002)


@pytest.mark.parametrize("name", ["rtx4090", "rtxpro6000"])
def test_the_shipped_profile_is_what_the_tables_give(shared_data: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    printed = "\n".join(build(shared_data / "kernels", tmp_path, [name]))
    made = (tmp_path / f"{name}.json").read_bytes()
    assert made == (SHIPPED / f"{name}.json").read_bytes()
    text = json.loads(made)
    assert text["sources"][0]["licence"] == "MIT, (c) CASYS Lab KAIST"
    assert text["sources"][0]["repo"] == "casys-kaist/LLMServingSim"
    assert "mixed attention by the grid" in printed


def test_tables_of_another_gpu_or_several_models_are_refused(shared_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    files = [shared_data / "kernels" / file for file in RECIPES["rtx4090"].files]
    with pytest.raises(ConfigError, match="hold one model's layers"):
        list(run_fit(files, tmp_path / "x.json", "rtx-4090", ["llama-3.1-8b", "qwen2.5-7b"], []))
    with pytest.raises(InputError, match="measured on another device than h200"):
        list(run_fit(files, tmp_path / "x.json", "h200", [], []))
