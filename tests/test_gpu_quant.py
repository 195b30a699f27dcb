"""INT8 weights: what rounding costs, and that layers multiply by what they keep."""

from __future__ import annotations

import pytest
import torch
from gpu_sequences import Pages

from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.engine import Engine
from gpu_backend.loader import random_decoder
from gpu_backend.quant import LARGEST, Int8Linear, quantize_decoder, quantize_linear
from simulator.errors import ConfigError


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_no_weight_moves_by_more_than_half_a_step() -> None:
    weight = drawn(24, 40) * torch.logspace(-3, 2, 24)[:, None]  # each channel has a size of its own
    linear = quantize_linear(weight)
    gap = (linear.weight * linear.scale[:, None] - weight).abs()
    assert (gap <= linear.scale[:, None] * (0.5 + 1e-5)).all()
    assert linear.weight.abs().amax(dim=1).tolist() == [LARGEST] * 24


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = drawn(3, 8)
    weight[1] = 0
    linear = quantize_linear(weight)
    assert torch.equal(linear(drawn(5, 8))[:, 1], torch.zeros(5))


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("rows", [1, 8, 9, 40])
def test_the_product_is_that_of_the_rounded_weight(rows: int, dtype: torch.dtype, bound: float) -> None:
    x, bias = drawn(rows, 64).to(dtype), drawn(48).to(dtype)
    linear = quantize_linear(drawn(48, 64), bias)
    truth = x.double() @ (linear.weight.double() * linear.scale.double()[:, None]).T + bias.double()
    out = linear(x)
    assert out.dtype == dtype
    assert float((out - truth).abs().max()) < bound * float(truth.abs().max())


def test_leading_dimensions_are_kept() -> None:
    linear = quantize_linear(drawn(6, 8))
    x = drawn(2, 3, 8)
    assert torch.equal(linear(x), linear(x.view(6, 8)).view(2, 3, 6))


def test_a_quantised_decoder_is_near_the_plain_one() -> None:
    config = DecoderConfig(2, 64, 4, 2, 16, 96, 50, 64, qkv_bias=True)
    decoder = random_decoder(config, "cpu", torch.float32)
    tokens = list(range(20))

    def logits() -> torch.Tensor:
        pages = Pages(decoder, SdpaGather())
        return pages.step((pages.sequence(tokens), len(tokens)))

    plain = logits()
    quantize_decoder(decoder)
    assert all(isinstance(projection, Int8Linear) for _, _, projection in decoder.projections())
    assert len(list(decoder.projections())) == 8
    gap = (logits() - plain).abs().max() / plain.abs().max()
    assert 0 < float(gap) < 0.02


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.quantization", "int4", "model.quantization: the engine knows int8 weights only, got int4"),
        ("model.quantization", "fp8", "model.quantization: the engine knows int8 weights only, got fp8"),
        ("kv.kv_cache_dtype", "fp8", "kv.kv_cache_dtype: the engine keeps KV in the type it computes in"),
        ("kv.kv_cache_dtype", "int8", "kv.kv_cache_dtype: the engine keeps KV in the type it computes in"),
    ],
)
def test_types_that_the_engine_does_not_compute_are_refused(key: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Engine("tiny-cpu", device="cpu", set={key: value})
    assert "\n" not in str(caught.value)
