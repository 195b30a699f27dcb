"""Every shipped profile, everywhere: positive, never above the peaks, and never cheaper beyond its range."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.latency.base import StepFeatures
from simulator.latency.profile import Profile
from simulator.latency.profile_file import load_profile, shipped_profiles
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import MODELS

SECTIONS = [
    (name, model)
    for name, path in shipped_profiles().items()
    for model in json.loads(path.read_text(encoding="utf-8"))["models"]
    if model in MODELS
]
GPUS = {name: json.loads(path.read_text())["hardware"] for name, path in shipped_profiles().items()}
SLACK = 1 - 1e-9  # of rounding, in sums that should be equal


@cache
def profile_of(name: str, model: str) -> Profile:
    return load_profile(name, model)


def mixed(chunk: int, prefix: int, batch: int, mean_kv: int) -> StepFeatures:
    """One chunk after a prefix, beside decodes that read `mean_kv` tokens each."""
    seqs = batch + (chunk > 0)
    return StepFeatures(
        *(batch + chunk, seqs, seqs, batch, batch * mean_kv, mean_kv if batch else 0),
        *(chunk, chunk * (prefix + chunk / 2), prefix + chunk if chunk else 0),
    )


@pytest.mark.parametrize(("name", "model"), SECTIONS)
@few_or_many(
    20,
    60,
    chunk=st.integers(0, 40_000),
    prefix=st.integers(0, 200_000),
    batch=st.integers(0, 3000),
    mean_kv=st.integers(1, 200_000),
)
def test_no_step_beats_the_peaks(
    name: str, model: str, chunk: int, prefix: int, batch: int, mean_kv: int
) -> None:
    if not chunk + batch:
        return
    shape, gpu = MODELS[model], get_hardware(GPUS[name])
    step = mixed(chunk, prefix, batch, mean_kv)
    seconds = profile_of(name, model).step_time(step)
    weights = shape.num_layers * sum(n * k for n, k in shape.layer_gemms())
    flops = 2 * weights * step.num_tokens
    moved = 2 * weights + step.decode_kv * shape.kv_bytes_per_token()
    assert np.isfinite(seconds)
    assert seconds > 0.99 * max(flops / gpu.flops, moved / gpu.hbm_bandwidth)


@pytest.mark.parametrize(("name", "model"), SECTIONS)
@few_or_many(20, 60, batch=st.integers(1, 2500), mean_kv=st.integers(1, 200_000), more=st.integers(1, 50_000))
def test_decode_steps_never_get_cheaper_with_longer_contexts(
    name: str, model: str, batch: int, mean_kv: int, more: int
) -> None:
    profile = profile_of(name, model)
    longer = profile.step_time(mixed(0, 0, batch, mean_kv + more))
    assert longer >= profile.step_time(mixed(0, 0, batch, mean_kv)) * SLACK


@pytest.mark.parametrize(("name", "model"), SECTIONS)
@few_or_many(20, 60, batch=st.integers(0, 1500), mean_kv=st.integers(1, 100_000), more=st.integers(1, 500))
def test_decode_steps_never_get_cheaper_beyond_the_batches_measured(
    name: str, model: str, batch: int, mean_kv: int, more: int
) -> None:
    profile = profile_of(name, model)
    assert profile.reach is not None
    beyond = int(profile.reach.batch[-1]) + batch
    assert profile.step_time(mixed(0, 0, beyond + more, mean_kv)) >= SLACK * profile.step_time(
        mixed(0, 0, beyond, mean_kv)
    )


@pytest.mark.parametrize(("name", "model"), SECTIONS)
@few_or_many(20, 60, chunk=st.integers(0, 30_000), prefix=st.integers(0, 100_000), more=st.integers(1, 5000))
def test_prefill_steps_never_get_cheaper_beyond_the_tokens_measured(
    name: str, model: str, chunk: int, prefix: int, more: int
) -> None:
    profile = profile_of(name, model)
    assert profile.reach is not None
    beyond = int(profile.reach.tokens) + chunk
    small, large = (profile.step_time(mixed(tokens, prefix, 0, 1)) for tokens in (beyond, beyond + more))
    assert large >= SLACK * small


@pytest.mark.parametrize(("name", "model"), SECTIONS)
@few_or_many(
    20,
    60,
    chunk=st.integers(1, 20_000),
    prefix=st.integers(0, 100_000),
    chunks=st.integers(1, 400),
    more=st.integers(1, 2000),
)
def test_longer_chunks_never_cost_less_where_prefill_is_priced_by_its_line(
    name: str, model: str, chunk: int, prefix: int, chunks: int, more: int
) -> None:
    profile = profile_of(name, model)
    if profile.mixed is not None:
        return
    short, long = (
        profile.step_time(StepFeatures.prefill([(tokens, prefix)] * chunks))
        for tokens in (chunk, chunk + more)
    )
    assert long >= SLACK * short


@pytest.mark.parametrize(("name", "model"), SECTIONS)
@few_or_many(
    20,
    60,
    chunk=st.integers(1, 4000),
    batch=st.integers(0, 300),
    far=st.integers(0, 60_000),
    more=st.integers(1, 60_000),
)
def test_mixed_steps_never_get_cheaper_beyond_the_prefixes_measured(
    name: str, model: str, chunk: int, batch: int, far: int, more: int
) -> None:
    profile = profile_of(name, model)
    assert profile.reach is not None
    beyond = int(profile.reach.prefill_kv) + far
    near, further = (
        profile.step_time(mixed(chunk, prefix, batch, 500)) for prefix in (beyond, beyond + more)
    )
    assert further >= SLACK * near
