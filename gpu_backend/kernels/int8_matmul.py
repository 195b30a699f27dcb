"""Product of 16-bit activations with 8-bit weights in Triton: x W^T with W kept as int8 and a scale a row.

W is read once, turned into x's type in registers (exact: |w| <= 127) and multiplied there; the scale of each
output channel comes at the end, so the sum runs over unscaled numbers. W is the left operand: Hopper's wgmma
takes its left one from registers, where the converted numbers already are. Untested on hardware: run in the
interpreter and compiled for sm_80 and sm_90 only.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class TileShape(NamedTuple):
    """What one program holds: block_n output channels of block_m rows, block_k inputs at a time."""

    block_n: int
    block_m: int
    block_k: int
    num_warps: int
    num_stages: int


def tile_shape(rows: int, channels: int, itemsize: int) -> TileShape:
    """Choose the tile for this many rows and output channels.

    Few rows are bound by reading W. 32 channels make 128 programs of the smallest matrix of an 8B model
    (4096 channels), about one for each SM of an A100 (108) or H100 (132); 256 inputs over 4 stages keep
    24 KiB of W in flight in each. Wide matrices have programs enough with 64 channels, which read x half as
    often. Many rows are bound by the matrix units: 128 x 128.
    """
    if itemsize > 2:
        return TileShape(32, 16, 64, 4, 2)  # fp32 serves checks only
    if rows <= 64:
        block_m = max(triton.next_power_of_2(rows), 16)
        return TileShape(64 if channels >= 16384 else 32, block_m, 256 if block_m < 64 else 128, 4, 4)
    return TileShape(128, 128, 64, 8, 3)


@triton.jit(do_not_specialize=["num_rows"])
def _int8_matmul(
    out, x, weight, scale, bias, num_rows, channels, inputs, x_stride,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Grid: (row tiles, channel tiles); programs that share a tile of W are neighbours."""
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    weights = weight + n[:, None] * inputs + k[None, :]
    rows = x + m[:, None] * x_stride + k[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for first in range(0, inputs, BLOCK_K):
        is_input = (first + k < inputs)[None, :]
        a = tl.load(rows + first, mask=(m < num_rows)[:, None] & is_input, other=0.0)
        w = tl.load(weights + first, mask=(n < channels)[:, None] & is_input, other=0)
        total = tl.dot(w.to(a.dtype), tl.trans(a), total, input_precision="ieee")
    total *= tl.load(scale + n, mask=n < channels, other=0.0).to(tl.float32)[:, None]
    if BIASED:
        total += tl.load(bias + n, mask=n < channels, other=0.0).to(tl.float32)[:, None]
    mask = (n < channels)[:, None] & (m < num_rows)[None, :]
    tl.store(out + m[None, :] * channels + n[:, None], total.to(out.dtype.element_ty), mask=mask)


def int8_matmul(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x (weight * scale)^T + bias: x (rows, in), weight (out, in) int8, scale and bias (out,)."""
    rows, inputs = x.shape
    channels = weight.shape[0]
    if x.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError("rows of x and of the weight must be contiguous")
    shape = tile_shape(rows, channels, x.element_size())
    out = torch.empty((rows, channels), dtype=x.dtype, device=x.device)
    if rows:
        _int8_matmul[(triton.cdiv(rows, shape.block_m), triton.cdiv(channels, shape.block_n))](
            out, x, weight, scale, scale if bias is None else bias, rows, channels, inputs, x.stride(0),
            BLOCK_N=shape.block_n, BLOCK_M=shape.block_m, BLOCK_K=shape.block_k, BIASED=bias is not None,
            num_warps=shape.num_warps, num_stages=shape.num_stages,
        )  # fmt: skip
    return out
