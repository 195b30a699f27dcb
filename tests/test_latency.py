"""Linear and roofline models: bitwise equal runs of decodes, physics, scaling, overlap."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.latency.base import LatencyModel, StepFeatures
from simulator.latency.estimate import estimate
from simulator.latency.graphs import graph_sizes, padded
from simulator.latency.linear import LinearModel
from simulator.latency.profile import MAX_BATCH, Profile
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import get_hardware
from simulator.specs.models import Model, MoE

A100 = get_hardware("a100-80gb-sxm")
LLAMA = Model("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192)
LINEAR = LinearModel(1.1e-2, 3e-6, 3.2e-5, 8.3e-8, 1e-10, host=1.5e-3)
ESTIMATE = estimate(A100, LLAMA)
MODELS: dict[str, LatencyModel] = {
    "linear": LINEAR,
    "linear overlapped": LINEAR.overlapped(),
    "linear floored": LinearModel(-0.02, per_kv_token=1e-6),
    "estimate": ESTIMATE,
    "estimate overlapped": ESTIMATE.overlapped(),
    "estimate scaled": ESTIMATE.scaled(flops=2.0, bandwidth=1.3),
}


def decodes(batch: int, kv: int) -> StepFeatures:
    return StepFeatures(batch, batch, batch, batch, kv, kv)


@pytest.mark.parametrize("name", MODELS)
@given(batch=st.integers(1, 2 * MAX_BATCH), mean_kv=st.integers(1, 200_000), k=st.integers(1, 40))
def test_decode_times_are_bitwise_the_step_times(name: str, batch: int, mean_kv: int, k: int) -> None:
    model, step = MODELS[name], decodes(batch, batch * mean_kv + batch // 2)
    singly = [model.step_time(step._replace(decode_kv=step.decode_kv + i * batch)) for i in range(k)]
    assert model.decode_times(step, k).tolist() == singly


@pytest.mark.parametrize("name", MODELS)
def test_no_step_takes_no_time_and_more_kv_never_less(name: str) -> None:
    model = MODELS[name]
    for batch in (1, 3, 64, 300, 3000):
        times = model.decode_times(decodes(batch, batch), 5000)
        assert times.min() > 0
        assert np.diff(times).min() >= -1e-15


def test_linear_coefficients_are_read_as_written() -> None:
    mixed = StepFeatures(66, 3, 3, 2, 1000, 600, 64, 64 * 132.0, 164)
    gpu = 1.1e-2 + 3e-6 * 66 + 1e-10 * 64 * 132 + 8.3e-8 * 1000
    assert LINEAR.step_time(mixed) == pytest.approx(gpu + 1.5e-3 + 3 * 3.2e-5)


def test_linear_scaling_moves_memory_and_compute_terms_apart() -> None:
    scaled = LINEAR.scaled(flops=2.0, bandwidth=4.0)
    assert (scaled.constant, scaled.per_kv_token) == (LINEAR.constant / 4, LINEAR.per_kv_token / 4)
    assert (scaled.per_token, scaled.per_prefill_work) == (LINEAR.per_token / 2, LINEAR.per_prefill_work / 2)
    assert (scaled.host, scaled.per_seq) == (LINEAR.host, LINEAR.per_seq)


@pytest.mark.parametrize(
    ("field", "value"),
    [("per_token", -1.0), ("floor", 0.0), ("host", float("nan")), ("constant", float("inf"))],
)
def test_linear_refuses_what_time_cannot_be_made_of(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        LinearModel(**{"constant": 0.01, field: value})


def test_ca_02_a_line_below_zero_is_floored() -> None:
    slope = (7.6 - 1.0) / (4096 - 1024) * 1e-3
    line = LinearModel(1.0e-3 - 1024 * slope, per_token=slope, floor=1.0e-3)
    assert line.constant + 64 * slope < 0
    assert line.step_time(StepFeatures.prefill([(64, 0)])) == 1.0e-3


@pytest.mark.parametrize(("host_ms", "sync", "overlapped"), [(4, 14, 10), (12, 22, 12), (0, 10, 10)])
def test_ca_07_host_time_adds_or_overlaps(host_ms: float, sync: float, overlapped: float) -> None:
    model = LinearModel(0.010, host=host_ms * 1e-3)
    step = decodes(1, 1000)
    assert model.decode_times(step, 100).mean() == pytest.approx(sync * 1e-3)
    assert model.overlapped().decode_times(step, 100).mean() == pytest.approx(overlapped * 1e-3)


def test_ca_04_steps_are_padded_to_graph_sizes() -> None:
    sizes = [1, 2, 4, 8, 16, 24, 32]
    assert padded([3, 9, 16, 17, 33], sizes).tolist() == [4, 16, 16, 24, 33]
    ladder = graph_sizes()
    assert ladder[:6] == [1, 2, 4, 8, 16, 24]
    assert (ladder[-1], len(ladder)) == (512, 3 + 31 + 17)
    assert ESTIMATE.step_time(decodes(9, 900)) - ESTIMATE.host.per_seq * 9 == pytest.approx(
        ESTIMATE.dense[16] + ESTIMATE.head[9] + _attention(9, 900) + ESTIMATE.host.per_step
    )


def _attention(batch: int, kv: int) -> float:
    return 32 * float(ESTIMATE.roofline.decode_attention(batch, kv / batch))


def test_estimate_never_beats_the_peaks() -> None:
    weights = sum(n * k for n, k in LLAMA.layer_gemms()) * 32
    for tokens in (1, 100, 129, 2048, 16_384, 40_000):
        time = ESTIMATE.step_time(StepFeatures.prefill([(tokens, 0)]))
        pairs = tokens * tokens / 2 * 32 * 4 * 32 * 128
        assert time > max(2 * weights / A100.hbm_bandwidth, (2 * weights * tokens + pairs) / A100.flops)
    for batch, kv in ((1, 10), (256, 4096), (2000, 500)):
        floor = (2 * weights + batch * kv * LLAMA.kv_bytes_per_token()) / A100.hbm_bandwidth
        assert ESTIMATE.step_time(decodes(batch, batch * kv)) > floor


def test_estimate_says_that_it_is_one() -> None:
    assert ESTIMATE.provenance.startswith("estimated")
    assert ESTIMATE.error is None
    assert ESTIMATE.extrapolated({"num_tokens": np.array([1, 5])}).tolist() == [True, True]


def test_continues_past_its_tables_without_a_jump() -> None:
    for sums in (
        [StepFeatures.prefill([(m, 0)]) for m in (16_384, 16_385, 16_386)],
        [decodes(b, b * 100) for b in (1024, 1025, 1026)],
        [StepFeatures(5000, s, s, 0, 0, 0, 5000, 1e6, 500) for s in (2048, 2049, 2050)],
    ):
        times = [ESTIMATE.step_time(step) for step in sums]
        assert all(0 < b - a < 0.002 * a for a, b in pairwise(times))


def test_a_faster_gpu_is_faster_where_its_peak_matters() -> None:
    bandwidth, flops = ESTIMATE.scaled(bandwidth=2.0), ESTIMATE.scaled(flops=2.0)
    decode, prefill = decodes(1, 4000), StepFeatures.prefill([(8192, 0)])
    assert bandwidth.step_time(decode) < 0.65 * ESTIMATE.step_time(decode)
    assert flops.step_time(decode) > 0.95 * ESTIMATE.step_time(decode)
    assert flops.step_time(prefill) < 0.6 * ESTIMATE.step_time(prefill)
    assert "scaled" in flops.provenance
    with pytest.raises(ValueError, match="must be > 0"):
        ESTIMATE.scaled(flops=0.0)


def test_a_mixture_of_experts_reads_more_weights_as_the_batch_grows() -> None:
    moe = Model("moe", 2, 1024, 16, 4, 64, 4096, 1000, 4096, moe=MoE(8, 2, 4096))
    roofline = Roofline.of(A100, moe)
    one, many = roofline.layer([1, 64])
    expert_bytes = 2 * 3 * 4096 * 1024
    assert many - one > 0.9 * 6 * expert_bytes / A100.hbm_bandwidth


def test_draws_are_seeded_and_spread() -> None:
    draws = ESTIMATE.draws(50, np.random.default_rng(1))
    times = [draw.step_time(decodes(8, 8000)) for draw in draws]
    again = [draw.step_time(decodes(8, 8000)) for draw in ESTIMATE.draws(50, np.random.default_rng(1))]
    assert times == again
    assert 0.05 < np.std(np.log(times)) < 0.25
    assert all(isinstance(draw, Profile) for draw in draws)
