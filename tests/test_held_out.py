"""Held-out errors: near zero where the form is the truth, as large as the noise where there is noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.checks import Checked
from calibration.fit import ModelFit, fit
from calibration.fit_dense import Layer
from calibration.fit_report import fit_html
from calibration.random_fifth import FEWEST, SEEDS, dense_left_out
from calibration.timings import Timing
from simulator.latency.profile_file import SHIPPED
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model

GPU, LLAMA = get_hardware("a100-80gb-sxm"), get_model("llama-3-8b")
TRUTH = Roofline.of(GPU, LLAMA)
SECTIONS = json.loads((SHIPPED / "a100-80gb-sxm.json").read_text(encoding="utf-8"))["models"]
A100 = {name: section for name, section in SECTIONS.items() if "/tp" not in name}  # whole models
TARGETS = {
    "dense": 0.03,
    "dense below 1024 tokens": 0.035,
    "gemm of unseen shapes": 0.06,
    "decode attention": 0.04,
    "prefill attention": 0.04,
    "decode step": 0.03,
}
MULTI_HEAD = TARGETS | {"decode step": 0.05}
MISSED = {  # what it is instead; docs/calibration.md says why
    ("llama-2-7b", "decode attention"): 0.10,
}


def timing(op: str, seconds: float, **sizes: int) -> Timing:
    return Timing(op, seconds, "mine 1", GPU.name, **sizes)


def measured(noise: float) -> list[Timing]:
    """A GPU that obeys the roofline, with log-normal noise on every row."""
    rows = [
        timing("gemm", float(TRUTH.gemm(m, n, k)), m=m, n=n, k=k)
        for n in (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
        for k in (512, 1024, 2048, 4096, 8192, 16_384)
        for m in (1, 2, 4, 8, 16, 32, 64, 65, 128, 129, 256, 257, 512, 1024, 2048, 4096)
    ]
    rows += [
        timing("decode_attention", float(TRUTH.decode_attention(b, kv)), batch=b, kv=kv, heads=32, kv_heads=8)
        for b in (1, 2, 4, 8, 16, 32, 64)
        for kv in (128, 256, 512, 1024, 2048, 4096, 8192)
    ]
    for b in (1, 2, 4, 8, 16, 32):
        for s in (16, 64, 256, 1024, 4096):
            seconds = 14e-6 + 1e-6 * b + 30e-9 * b * s + 0.1e-9 * b * s * s / 2
            rows.append(timing("prefill_attention", seconds, batch=b, tokens=s, heads=32, kv_heads=8))
    factors = np.exp(noise * np.random.default_rng(0).standard_normal(len(rows)))
    return [t._replace(seconds=t.seconds * f) for t, f in zip(rows, factors.tolist(), strict=True)]


def fitted(noise: float) -> ModelFit:
    rows = measured(noise)
    return fit(Checked(rows, [], len(rows)), GPU, [LLAMA], {})[0]


@pytest.fixture(scope="module")
def exact() -> ModelFit:
    return fitted(0.0)


def test_a_gpu_that_obeys_the_form_has_no_held_out_error(exact: ModelFit) -> None:
    for name in ("gemm of unseen shapes", "decode attention", "prefill attention", "decode step"):
        assert exact.fifths[name].error.worst < 1e-3, name
    for each in exact.axes:
        if each.term in ("GEMM", "prefill attention"):
            assert abs(each.worst) < 1e-3, each


def test_noise_comes_back_as_held_out_error() -> None:
    """The mean of |log-normal - 1| is about 0.8 sigma, and more where the prediction is noisy too."""
    found = fitted(0.05)
    for name in ("gemm of unseen shapes", "decode attention", "prefill attention"):
        assert 0.03 < found.fifths[name].error.median < 0.08, name
    assert found.fifths["decode step"].error.median < found.fifths["decode attention"].error.median
    assert all(fifth.error.median <= fifth.error.worst for fifth in found.fifths.values())


def test_points_between_knots_are_predicted_from_the_knots_alone() -> None:
    at = np.arange(1.0, 41.0)
    seconds = np.where(at > 20, 2.0, 1.0) + 0.01 * at
    knots = np.array([1.0, 20.0, 21.0, 40.0])
    pairs = dense_left_out(Layer(at, seconds), knots, np.random.default_rng(1))
    assert pairs.error < 1e-12
    assert not np.isin(pairs.at, knots).any()
    blind = dense_left_out(Layer(at, seconds), np.array([1.0, 40.0]), np.random.default_rng(1))
    assert blind.error > 0.05


@pytest.mark.parametrize("model", A100)
def test_the_a100_profile_meets_the_targets_or_misses_them_as_told(model: str) -> None:
    targets = MULTI_HEAD if model == "llama-2-7b" else TARGETS
    errors = A100[model]["held_out"]["random_fifth_median_worst"]
    for term, target in targets.items():
        median, worst = errors[term]
        limit = MISSED.get((model, term))
        assert median < (limit or target), term
        assert limit is None or median > target, f"{term} is met: take it off the list"
        assert median <= worst


def test_axes_that_were_left_out_are_in_the_profile() -> None:
    names = A100["llama-3-8b"]["held_out"]["left_out_mean_worst"]
    for term, axis in (("decode attention", "kv"), ("GEMM", "n"), ("prefill attention", "tokens")):
        for how in ("one left out", "4x beyond"):
            mean, worst = names[f"{term}, {axis}, {how}"]
            assert 0 < mean <= abs(worst)


def test_the_page_holds_every_model_and_escapes_what_rows_say(exact: ModelFit, tmp_path: Path) -> None:
    rows = [t._replace(source="<script>alert(1)</script>") for t in measured(0.0)[:1]]
    page = fit_html([exact], Checked(rows, [], 1), "a100-80gb-sxm", "<b>mine</b>.json")
    assert "<b>mine</b>" not in page
    assert "&lt;b&gt;mine&lt;/b&gt;.json" in page
    assert LLAMA.name in page
    assert "figure-points-0" in page
    assert f"median of {SEEDS} seeds" in page
    assert page == fit_html([exact], Checked(rows, [], 1), "a100-80gb-sxm", "<b>mine</b>.json")
    assert FEWEST > 1
