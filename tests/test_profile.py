"""The shipped A100 profile, and profile files from outside."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.latency.base import StepFeatures
from simulator.latency.profile import MAX_BATCH
from simulator.latency.profile_file import (
    SHIPPED,
    best_profile,
    describe_profile,
    load_profile,
    shipped_profiles,
)
from simulator.specs.hardware import get_hardware
from simulator.specs.models import Model
from simulator.specs.shipped_models import get_model

NAME = "a100-80gb-sxm"
MODELS = ("llama-2-7b", "llama-3-8b", "llama-3.1-8b", "qwen2.5-7b")
PROFILES = {model: load_profile(NAME, model) for model in MODELS}
Json = dict[str, object]


def decodes(batch: int, kv: int) -> StepFeatures:
    return StepFeatures(batch, batch, batch, batch, kv, kv)


@pytest.mark.parametrize("model", MODELS)
@given(batch=st.integers(1, MAX_BATCH + 50), mean_kv=st.integers(1, 150_000), k=st.integers(1, 40))
def test_decode_times_are_bitwise_the_step_times(model: str, batch: int, mean_kv: int, k: int) -> None:
    step = decodes(batch, batch * mean_kv + batch // 3)
    for profile in (PROFILES[model], PROFILES[model].overlapped()):
        singly = [profile.step_time(step._replace(decode_kv=step.decode_kv + i * batch)) for i in range(k)]
        assert profile.decode_times(step, k).tolist() == singly


@pytest.mark.parametrize("model", MODELS)
def test_never_beats_the_peaks_and_never_falls_with_kv(model: str) -> None:
    profile, shape, gpu = PROFILES[model], get_model(model), get_hardware(NAME)
    weights = shape.num_layers * sum(n * k for n, k in shape.layer_gemms())
    for batch in (1, 2, 7, 33, 100, 256, 1000, 3000):
        kv = np.unique(np.geomspace(1, 200_000, 60).astype(int))
        times = np.array([profile.step_time(decodes(batch, batch * int(k))) for k in kv])
        assert np.diff(times).min() >= -1e-14
        moved = 2 * weights + batch * kv * shape.kv_bytes_per_token()
        assert np.all(times > moved / gpu.hbm_bandwidth)
    for tokens in (1, 64, 128, 1000, 8192, 9000, 50_000):
        step = StepFeatures.prefill([(tokens, 5000)])
        pairs = shape.num_layers * 4 * shape.num_heads * shape.head_dim * step.prefill_work
        assert profile.step_time(step) > (2 * weights * tokens + pairs) / gpu.flops
    assert np.diff(profile.dense).min() >= -1e-12


def test_one_stream_of_an_8b_model_decodes_as_users_report() -> None:
    times = PROFILES["llama-3-8b"].decode_times(decodes(1, 512), 256)
    assert 70 < 1 / times.mean() < 95


@pytest.mark.parametrize(
    ("model", "step", "milliseconds"),
    [  # kernels only, composed by hand from the same tables: latency model, section 2
        ("llama-3-8b", decodes(32, 32 * 1024), 15.5),
        ("llama-3-8b", decodes(64, 64 * 4096), 33.4),
        ("llama-3-8b", StepFeatures.prefill([(2048, 0)]), 129),
        ("llama-2-7b", decodes(64, 64 * 1024), 30.7),
        ("llama-2-7b", StepFeatures.prefill([(512, 0)]), 33),
        ("qwen2.5-7b", decodes(64, 64 * 1024), 15.0),
        ("qwen2.5-7b", StepFeatures.prefill([(1024, 0)]), 63),
    ],
)
def test_steps_agree_with_those_composed_by_hand(model: str, step: StepFeatures, milliseconds: float) -> None:
    profile = PROFILES[model]
    gpu = profile.step_time(step) - profile.host.per_step - profile.host.per_seq * step.num_seqs
    assert 1e3 * gpu == pytest.approx(milliseconds, rel=0.03)


def test_one_token_more_than_a_tile_costs_a_step() -> None:
    dense = PROFILES["llama-3-8b"].dense
    for edge, low, high in ((128, 1.2, 1.5), (256, 1.15, 1.4), (512, 1.05, 1.3)):
        assert low < dense[edge + 16] / dense[edge] < high


def test_a_mixed_step_is_the_sum_of_its_parts_and_says_that_this_is_unverified() -> None:
    profile = PROFILES["llama-3-8b"]
    mixed = StepFeatures(512, 65, 65, 64, 65_536, 1024, 448, 448 * 224.0, 448)
    parts = mixed._replace(num_decodes=0, num_seqs=1, decode_kv=0)
    decode = profile.step_time(decodes(64, 65_536)) - profile.step_time(decodes(64, 0))
    assert profile.step_time(mixed) > profile.step_time(parts) + decode
    assert "additive, unverified" in profile.provenance
    assert "+-10 %" in profile.provenance
    assert "assumed" in profile.provenance


def test_steps_outside_the_measured_range_are_marked() -> None:
    steps = [
        decodes(8, 8 * 1000),
        decodes(8, 8 * 40_000),  # longer than measured
        decodes(256, 256 * 2000),  # measured up to 512 at this batch
        StepFeatures.prefill([(8192, 0)]),
        StepFeatures.prefill([(9000, 0)]),  # more rows than any GEMM
        StepFeatures.prefill([(512, 30_000)]),  # longer than any prefill
    ]
    columns = {name: np.array([getattr(s, name) for s in steps]) for name in StepFeatures._fields}
    marks = PROFILES["llama-3-8b"].extrapolated(columns)
    assert marks.tolist() == [False, True, True, False, True, True]


def test_scaling_by_one_changes_nothing_and_by_two_halves_its_own_term() -> None:
    profile = PROFILES["llama-3-8b"]
    step = decodes(32, 32 * 4096)
    assert profile.scaled().step_time(step) == profile.step_time(step)
    twice = profile.scaled(bandwidth=2.0)
    assert np.allclose(twice.decode.seconds * 2, profile.decode.seconds)
    assert twice.host == profile.host


def test_a_shipped_profile_is_found_by_gpu_and_shape() -> None:
    gpu = get_hardware(NAME)
    found = best_profile(gpu, get_model("llama-3.1-8b"))
    assert found is not None
    assert found.name == "a100-80gb-sxm: llama-3.1-8b"
    assert best_profile(get_hardware("l40s"), get_model("llama-3-8b")) is None
    quantised = Model("q", 32, 4096, 32, 8, 128, 14336, 128256, 8192, quantization="int8")
    assert best_profile(gpu, quantised) is None
    other_vocabulary = Model("v", 32, 4096, 32, 8, 128, 14336, 32000, 8192)
    assert best_profile(gpu, other_vocabulary) is None


def test_a_profile_describes_itself_in_a_line() -> None:
    line = describe_profile(SHIPPED / f"{NAME}.json")
    assert line.startswith("a100-80gb-sxm, 2026-11-29: llama-2-7b")
    assert "llama-3.1-8b" in line


def test_shipped_profiles_are_small_and_carry_sources_and_licences() -> None:
    for path in shipped_profiles().values():
        assert path.stat().st_size < 150_000
        data = json.loads(path.read_text())
        assert data["date"]
        assert data["accuracy"]
        assert all(source["commit"] and source["licence"] for source in data["sources"])
        assert '"/' not in path.read_text(), "an absolute path of the machine that fitted it"


# ---- files from outside ----


def shipped() -> Json:
    data: Json = json.loads((SHIPPED / f"{NAME}.json").read_text())
    return data


def section(data: Json, *keys: str) -> Json:
    for key in keys:
        data = data[key]  # type: ignore[assignment]  # JSON objects all the way down
    return data


def written(folder: Path, data: object) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(data))
    return path


def test_a_profile_names_its_kernels_or_its_sources_or_nothing(tmp_path: Path) -> None:
    data = shipped()

    def kernels() -> str | None:
        return load_profile(written(tmp_path, data), "llama-3.1-8b").kernels

    assert kernels() == "sglang 0.5.10, trtllm 1.0.0, vidur 7d47513, vllm 0.14.0"
    assert kernels() == load_profile("a100-80gb-sxm", "llama-3.1-8b").overlapped().kernels
    data["kernels"] = "servetwin sdpa/cpu/float32"
    assert kernels() == "servetwin sdpa/cpu/float32"
    del data["kernels"], data["sources"]
    assert kernels() is None


def test_ca_01_beyond_the_grid_the_line_goes_on_and_is_marked(tmp_path: Path) -> None:
    data = shipped()
    shape = {"hidden_size": 16_384, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    shape |= {"num_layers": 1, "intermediate_size": 23_824, "vocab_size": 32}
    knots = [2**i for i in range(13)]
    toy = section(data, "models", "llama-3-8b")
    toy |= {"shape": shape, "layer": {"tokens": knots, "us": [1e3 * (5 + 0.01 * n) for n in knots]}}
    data["models"], data["aliases"] = {"toy": toy}, {}
    profile = load_profile(written(tmp_path, data), "toy")
    once = profile.roofline.once(16_384)
    assert profile.dense[16_384] - once == pytest.approx(168.84e-3, rel=0.05)
    columns = {name: np.array([0, 16_384]) for name in StepFeatures._fields}
    assert profile.extrapolated(columns).tolist() == [False, True]


def test_ca_04_above_the_largest_graph_a_step_runs_eagerly_at_its_true_size(tmp_path: Path) -> None:
    data = shipped()
    section(data, "graphs").update({"sizes": [1, 2, 4, 8, 16, 24, 32], "eager_us": 3000.0})
    dense = load_profile(written(tmp_path, data), "llama-3-8b").dense
    plain = PROFILES["llama-3-8b"].dense
    assert [dense[n] == dense[p] for n, p in ((3, 4), (9, 16), (17, 24))] == [True] * 3
    assert plain[32] + 0.003 < dense[33] < plain[40] + 0.003


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_ca_06_a_mistaken_unit_is_refused(tmp_path: Path, factor: float) -> None:
    data = shipped()
    layer = section(data, "models", "llama-3-8b", "layer")
    layer["us"] = [factor * us for us in layer["us"]]  # type: ignore[attr-defined]  # a list of numbers
    with pytest.raises(InputError, match="is the unit microseconds"):
        load_profile(written(tmp_path, data), "llama-3-8b")


class Marker:
    """What a pickle bomb does: create a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("suffix", ["pkl", "pt", "json"])
def test_se_01_nothing_in_a_profile_is_executed(tmp_path: Path, suffix: str) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / f"bomb.{suffix}"
    path.write_bytes(pickle.dumps(Marker(marker)))
    with pytest.raises(InputError) as caught:
        load_profile(path, "llama-3-8b")
    assert "\n" not in str(caught.value)
    assert not marker.exists()
    assert load_profile(written(tmp_path, shipped()), "llama-3-8b").error is not None


HOSTILE: dict[str, tuple[tuple[str, ...], object]] = {
    "schema": (("schema",), 2),
    "text for a number": (("host", "per_step_us"), "fast"),
    "a negative time": (("host", "per_seq_us"), -1.0),
    "NaN": (("graphs", "eager_us"), float("nan")),
    "true is no number": (("peaks", "flops"), True),
    "a huge integer": (("peaks", "flops"), 10**400),
    "a list for an object": (("models", "llama-3-8b"), []),
    "a falling axis": (("models", "llama-3-8b", "head", "rows"), [2, 1]),
    "a short row": (("models", "llama-3-8b", "decode_attention", "us"), [[1.0]]),
    "zero layers": (("models", "llama-3-8b", "shape", "num_layers"), 0),
    "heads that do not divide": (("models", "llama-3-8b", "shape", "num_kv_heads"), 5),
    "an alias to nothing": (("aliases", "x"), "nothing"),
    "a fraction of a layer": (("models", "llama-3-8b", "shape", "num_layers"), 1.5),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_wrong_field_is_named_in_one_line(tmp_path: Path, case: str) -> None:
    keys, value = HOSTILE[case]
    data = shipped()
    section(data, *keys[:-1])[keys[-1]] = value
    with pytest.raises(InputError) as caught:
        load_profile(written(tmp_path, data), "llama-3-8b")
    assert "mine.json" in str(caught.value)
    assert keys[-1] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_profile_of_a_newer_schema_is_refused_as_such(tmp_path: Path) -> None:
    data = shipped() | {"schema": 7}
    with pytest.raises(InputError, match=r"mine\.json: schema 7 is newer than 1, which this version"):
        load_profile(written(tmp_path, data), "llama-3-8b")


def test_a_gpu_scale_multiplies_gpu_times_alone_and_must_not_beat_the_peaks(tmp_path: Path) -> None:
    plain = PROFILES["llama-3-8b"]
    step = decodes(8, 8000)
    scaled = load_profile(written(tmp_path, shipped() | {"gpu_scale": 1.25}), "llama-3-8b")
    host = plain.host.per_step + 8 * plain.host.per_seq
    assert scaled.step_time(step) - host == pytest.approx(1.25 * (plain.step_time(step) - host))
    with pytest.raises(InputError, match="under physics"):
        load_profile(written(tmp_path, shipped() | {"gpu_scale": 0.5}), "llama-3-8b")
    with pytest.raises(InputError, match="gpu_scale must be between"):
        load_profile(written(tmp_path, shipped() | {"gpu_scale": 0}), "llama-3-8b")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"schema": 1}', "\x00"])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"p\.json"):
        load_profile(path, "llama-3-8b")


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(InputError, match="did you mean llama-3-8b"):
        load_profile(NAME, "llama-3-8")
    with pytest.raises(InputError, match="did you mean a100-80gb-sxm"):
        load_profile("a100-80gb-sx", "llama-3-8b")
    with pytest.raises(InputError, match="no model of the shape"):
        load_profile(NAME, Model("tiny", 2, 64, 4, 4, 16, 128, 100, 512))
    with pytest.raises(InputError, match="No such file"):
        load_profile("absent.json", "llama-3-8b")


def test_layers_grow_with_tokens_step_by_step() -> None:
    knots = json.loads((SHIPPED / f"{NAME}.json").read_text())["models"]
    for name in knots:
        assert all(a <= b for a, b in pairwise(knots[name]["layer"]["us"]))
