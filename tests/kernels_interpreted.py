"""The Triton kernels on the CPU. test_gpu_kernels.py runs this file in a process with TRITON_INTERPRET set.

fp32 and fp16 only: in bf16 the interpreter's `tl.dot` is silently wrong. Shapes are small: a program costs
about 4 ms per tile of KV. fp32 walks in tiles of 16 tokens, fp16 of 64 (32 where a chunk fills 64 rows).
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from gpu_sequences import Pages

from gpu_backend.attention.reference import TOLERANCES, Case, attention_error, draw_step, reference_attention
from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.attention.triton_paged import TritonPaged
from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.kernels.int8_matmul import int8_matmul
from gpu_backend.kernels.paged_attention import Sequences, attend_pages, choose_splits
from gpu_backend.kernels.write_kv import write_kv
from gpu_backend.loader import random_decoder
from gpu_backend.quant import quantize_linear

assert os.environ.get("TRITON_INTERPRET") == "1"

CPU = torch.device("cpu")
DTYPES = [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)]
SMALL = {"heads": 4, "kv_heads": 2, "head_dim": 16}
CASES = {
    "decodes": Case([1, 16, 33, 70], **SMALL),
    "decodes with dummies": Case([5, 33], dummies=2, **SMALL),
    "chunks": Case(chunks=[(20, 20), (5, 60), (1, 17)], **SMALL),
    "mixed with padding": Case([40, 3], [(9, 30), (16, 16)], padding=3, **SMALL),
    "no groups": Case([20], [(18, 40)], heads=2, kv_heads=2, head_dim=16),
    "group of 7": Case([40], [(4, 50)], heads=14, kv_heads=2, head_dim=16),
    "group of 20": Case([40], [(3, 20)], heads=20, kv_heads=1, head_dim=16),
    "head of 128": Case([40], [(6, 20)], heads=4, kv_heads=1, head_dim=128),
    "head of 24": Case([40], [(6, 20)], heads=4, kv_heads=2, head_dim=24),
    "head of 256": Case([40], [(6, 20)], heads=2, kv_heads=1, head_dim=256),
    "blocks of 64": Case([100, 64], [(20, 70)], block_size=64, **SMALL),
    "window": Case([5, 70], [(20, 20), (12, 60)], window=19, **SMALL),
    "window of one": Case([5, 40], [(5, 20)], window=1, **SMALL),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_attention_equals_float64(name: str, dtype: torch.dtype) -> None:
    assert attention_error(TritonPaged(), CASES[name], dtype, CPU) < TOLERANCES[dtype]


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("min_split", [256, 80, 40, 16])  # of the decodes, 1, 2, 4 and 8 splits
def test_splits_change_nothing(min_split: int, window: int | None) -> None:
    backend = TritonPaged(num_sms=8, min_split=min_split)
    case = Case([3, 130], [(2, 16), (6, 70)], heads=2, kv_heads=1, head_dim=16, window=window, padding=1)
    assert attention_error(backend, case, torch.float32, CPU) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("programs", "longest", "least", "splits"),
    [
        (8, 8192, 4, 32),
        (8, 160, 4, 1),
        (8, 600, 4, 2),
        (512, 8192, 4, 4),
        (512, 8192, 1, 1),
        (1, 131072, 1, 64),
    ],
)
def test_splits_fill_the_device_and_no_more(programs: int, longest: int, least: int, splits: int) -> None:
    assert choose_splits(programs, longest, 132, 256, least) == splits


def test_many_rows_in_half_precision() -> None:
    case = Case(chunks=[(70, 70), (40, 150)], heads=2, kv_heads=1, head_dim=64)  # fills tiles of 128 rows
    assert attention_error(TritonPaged(), case, torch.float16, CPU) < TOLERANCES[torch.float16]


def test_a_row_that_reads_nothing_is_zero() -> None:
    step = draw_step(Case([40, 40], **SMALL), torch.float32, CPU)
    lens = torch.tensor([40, 0], dtype=torch.int32)
    out = torch.full_like(step.q, torch.nan)
    for num_sms in (1, 8):
        decodes = Sequences(step.inputs.decode_tables, lens, None, 1, 64)
        attend_pages(
            out,
            step.q,
            step.keys,
            step.values,
            decodes,
            scale=1.0,
            window=None,
            num_sms=num_sms,
            min_split=16,
        )
        assert out[0].isfinite().all()
        assert (out[1] == 0).all()


def test_swapping_two_blocks_changes_the_result() -> None:
    step = draw_step(Case([40], **SMALL), torch.float32, CPU)
    backend = TritonPaged()
    before = backend.attend(step.q, step.keys, step.values, step.inputs, scale=1.0)
    tables = step.inputs.decode_tables[:, [2, 1, 0, 3]].contiguous()
    swapped = dataclasses.replace(step.inputs, decode_tables=tables)
    after = backend.attend(step.q, step.keys, step.values, swapped, scale=1.0)
    truth = reference_attention(step.q, step.keys, step.values, swapped, 1.0)
    assert not torch.allclose(before, after)
    # The last block is full of stale KV now: results of 100 and more.
    torch.testing.assert_close(after.double(), truth, rtol=1e-4, atol=1e-3)


def test_views_of_a_wider_row_are_read_by_their_strides() -> None:
    """As the model passes them: q and k cut out of one tensor, v out of a wider one."""
    step = draw_step(Case([40, 3], [(9, 30)], **SMALL), torch.float32, CPU)
    qk, qkv = torch.cat([step.q, step.k], dim=1), torch.cat([step.q, step.k, step.v], dim=1)
    q, k, v = qk[:, :4], qk[:, 4:], qkv[:, 6:]
    keys, values = step.keys.clone(), step.values.clone()
    write_kv(k, v, keys, values, step.inputs.slots)
    write_kv(step.k, step.v, step.keys, step.values, step.inputs.slots)
    assert torch.equal(keys, step.keys)
    assert torch.equal(values, step.values)
    backend = TritonPaged()
    dense = backend.attend(step.q, keys, values, step.inputs, scale=0.25)
    assert torch.equal(backend.attend(q, keys, values, step.inputs, scale=0.25), dense)


def test_a_decoder_computes_the_same_with_them() -> None:
    config = DecoderConfig(2, 32, 4, 2, 8, 16, 50, 64, sliding_window=7, sliding_layers=(False, True))
    decoder = random_decoder(config, "cpu", torch.float32)
    for _, _, projection in decoder.projections():
        projection.weight.mul_(10)  # so that attention matters
    found = []
    for backend in (SdpaGather(), TritonPaged()):
        pages = Pages(decoder, backend)
        one, two = pages.sequence(list(range(12))), pages.sequence(list(range(20, 37)))
        steps = [pages.step((one, 11), (two, 8)), pages.step((one, 1), (two, 9), padding=2)]
        found.append(torch.cat(steps))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "channels", "inputs"), [(1, 40, 70), (3, 32, 256), (17, 33, 64), (70, 130, 40)]
)
def test_int8_product_equals_dequantised(rows: int, channels: int, inputs: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, inputs, generator=generator).to(dtype)
    linear = quantize_linear(
        torch.randn(channels, inputs, generator=generator),
        torch.randn(channels, generator=generator).to(dtype),
    )
    truth = x.double() @ (linear.weight.double() * linear.scale.double()[:, None]).T
    bound = TOLERANCES[dtype] * float(truth.abs().max())
    assert float((int8_matmul(x, linear.weight, linear.scale) - truth).abs().max()) < bound
    assert linear.bias is not None
    biased = int8_matmul(x, linear.weight, linear.scale, linear.bias)
    assert float((biased - truth - linear.bias.double()).abs().max()) < bound
