"""Write a step's K and V into the pages, in Triton. Untested on hardware, as paged_attention.py has it."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write_rows(
    k, v, keys, values, slots, k_row_stride, v_row_stride, token_stride,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr,
):  # fmt: skip
    """Copy one row of k and v, WIDTH numbers each, to its slot. Grid: (rows,).

    Padding rows share the dummy block; which of them wins there does not matter.
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH_PAD)
    mask = lane < WIDTH
    target = tl.load(slots + row) * token_stride + lane
    tl.store(keys + target, tl.load(k + row * k_row_stride + lane, mask=mask), mask=mask)
    tl.store(values + target, tl.load(v + row * v_row_stride + lane, mask=mask), mask=mask)


def write_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put k and v, (rows, kv_heads, head_dim), into the pages at `slots` (block * block_size + offset)."""
    rows, kv_heads, head_dim = k.shape
    width = kv_heads * head_dim
    if rows:
        _write_rows[(rows,)](
            k, v, keys, values, slots, k.stride(0), v.stride(0), keys.stride(1), WIDTH=width,
            WIDTH_PAD=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
