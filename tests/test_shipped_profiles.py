"""The shipped profiles: rebuilt from public timings, and real H100 runs held against them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.fit_attention import decode_grid, folded
from calibration.measured import read_measured
from calibration.shipped import RECIPES, build
from calibration.timings import Timing
from calibration.validate import validate
from simulator.errors import ConfigError
from simulator.latency.profile import Host
from simulator.latency.profile_file import SHIPPED, load_profile
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model


def decode(batch: int, kv: int, heads: int, us: float) -> Timing:
    sizes = {"batch": batch, "kv": kv, "heads": heads, "kv_heads": heads}
    return Timing("decode_attention", us * 1e-6, "mine", "gpu", **sizes)


def test_multi_head_rows_are_read_from_larger_batches_of_fewer_heads() -> None:
    rows = [decode(b, 64, 8, 10.0 * b) for b in (1, 4, 6, 8)] + [decode(4, 64, 2, 1.0)]
    whole, factor = folded(rows, 32, 32)
    assert factor == 4
    assert [(t.batch, t.heads, t.kv_heads, t.seconds) for t in whole] == [
        (1, 32, 32, pytest.approx(40e-6)),
        (2, 32, 32, pytest.approx(80e-6)),
    ]
    assert folded(rows, 8, 8) == (rows, 1)
    assert folded(rows, 32, 8) == (rows, 1)
    assert folded([*rows, decode(1, 64, 40, 9.0)], 32, 32)[1] == 1


def test_the_last_cell_of_a_row_may_grow_with_the_context_but_not_beyond() -> None:
    roofline = Roofline.of(get_hardware("h100-80gb-sxm"), get_model("llama-2-7b"))
    grows = [decode(1, kv, 32, us) for kv, us in ((1024, 20.0), (2048, 40.0), (4096, 82.0))]
    assert decode_grid(grows, roofline).outliers == []
    jumps = [*grows[:2], decode(1, 4096, 32, 140.0)]
    assert decode_grid(jumps, roofline).outliers == ["batch 1, kv 4096: 140.0 us"]


@pytest.mark.parametrize("name", ["h100-80gb-sxm", "h200"])
def test_every_model_of_a_hopper_profile_is_priced_above_its_weights(name: str) -> None:
    gpu = get_hardware(name)
    for each in RECIPES[name].models:
        profile = load_profile(name, each)
        model = get_model(each)
        weights = 2 * model.num_layers * sum(n * k for n, k in model.layer_gemms())
        assert profile.dense[1] > weights / gpu.hbm_bandwidth
        assert profile.error is not None
        assert profile.error < 0.05
        assert np.all(np.diff(profile.dense[1:]) >= 0)


def test_an_unknown_shipped_profile_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no shipped profile 'h20'.*h200"):
        list(build(Path(), names=["h20"]))


@pytest.mark.slow
def test_make_profiles_rebuilds_every_shipped_profile_byte_for_byte(
    tmp_path: Path, shared_data: Path
) -> None:
    pytest.importorskip("pyarrow")
    list(build(shared_data / "kernels", tmp_path))
    for name in RECIPES:
        assert (tmp_path / f"{name}.json").read_bytes() == (SHIPPED / f"{name}.json").read_bytes(), name
    shipped = {path.stem for path in SHIPPED.glob("*.json")}
    assert shipped - set(RECIPES) == {"cpu-reference"}  # from timings of our own, which no public table has
    assert json.loads((tmp_path / "h200.json").read_text())["host"]["kind"] == "assumed"


H100_RUNS = {"llama-2-7b": ("vllm_h100_llama-2-7b", 7438), "codellama-34b": ("vllm_h100_codellama-34b", 2537)}


def h100_errors(model: str, data: Path, host: Host | None = None) -> dict[str, float]:
    """Errors of a real run under the shipped profile, without its cold first request."""
    folder, blocks = H100_RUNS[model]
    profile = load_profile("h100-80gb-sxm", model)
    profile = profile if host is None else replace(profile, host=host)
    found = validate(
        read_measured(data / "measured" / folder), profile, "h100-80gb-sxm", blocks=blocks, warmup=1
    )
    return {name: figure.error for name, figure in found.metrics.items() if figure.error is not None}


@pytest.mark.parametrize("model", H100_RUNS)
def test_one_host_constant_serves_both_h100_runs(model: str, shared_data: Path) -> None:
    errors = h100_errors(model, shared_data)
    assert abs(errors["mean_e2el_ms"]) < 0.05
    assert abs(errors["median_ttft_ms"]) < 0.12


def test_the_h100_constant_is_the_one_that_llama_2_tpot_gives(shared_data: Path) -> None:
    def mean_tpot(microseconds: float) -> float:
        return h100_errors("llama-2-7b", shared_data, Host(microseconds * 1e-6, 0.0))["mean_tpot_ms"]

    shipped = 1e6 * RECIPES["h100-80gb-sxm"].host.per_step
    low, high = mean_tpot(shipped - 20), mean_tpot(shipped + 20)
    assert low < 0 < high
    assert high - low < 0.01
