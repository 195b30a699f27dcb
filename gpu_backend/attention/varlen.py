"""Paged attention by torch's own FlashAttention kernel, where `varlen_attn` takes block tables.

torch 2.13 for CUDA does, torch 2.11 does not. FlashAttention-2 upstream takes pages of a multiple of 256
tokens only; torch's documentation names no limit, so a trial call with this page size decides. Untested on
hardware: there is no CPU kernel behind it.
"""

from __future__ import annotations

import importlib.util
import inspect

import torch
from torch import Tensor

from gpu_backend.attention.base import AttentionInputs

MODULE = "torch.nn.attention.varlen"


class TorchVarlenPaged:
    """Two calls a layer: one for the decodes, one for the chunks."""

    name = "varlen"

    @staticmethod
    def is_available(device: torch.device, block_size: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        """Say whether this torch attends to pages of this size on this device."""
        return why_unavailable(device, block_size, dtype) is None

    def write(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put k and v into the pages at `slots`."""
        keys.view(-1, *keys.shape[2:]).index_copy_(0, slots, k)
        values.view(-1, *values.shape[2:]).index_copy_(0, slots, v)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Return the attention of every row; padding rows come back as 0."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        first, num_chunks = inputs.num_decodes, len(inputs.chunks)
        last = first + sum(chunk.num_tokens for chunk in inputs.chunks)
        out[last:].zero_()
        if first:
            starts = torch.arange(first + 1, dtype=torch.int32, device=q.device)
            tables, lens = inputs.decode_tables[:first], inputs.decode_lens[:first]
            longest = tables.shape[1] * keys.shape[1]  # known at capture, unlike the contexts
            out[:first] = _varlen(q[:first], keys, values, starts, tables, lens, 1, longest, scale, window)
        if num_chunks:
            starts = inputs.chunk_starts[: num_chunks + 1]
            tables, lens = inputs.chunk_tables[:num_chunks], inputs.chunk_lens[:num_chunks]
            rows = max(chunk.num_tokens for chunk in inputs.chunks)
            longest = max(chunk.context for chunk in inputs.chunks)
            q = q[first:last]
            out[first:last] = _varlen(q, keys, values, starts, tables, lens, rows, longest, scale, window)
        return out


def _varlen(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    starts: Tensor,
    tables: Tensor,
    lens: Tensor,
    max_rows: int,
    longest: int,
    scale: float,
    window: int | None,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        q,
        keys,
        values,
        starts,
        None,
        max_rows,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
        seqused_k=lens,
        block_table=tables,
    )
    assert isinstance(attended, Tensor)  # a pair only where the sums of the softmax are asked for
    return attended


def why_unavailable(device: torch.device, block_size: int, dtype: torch.dtype) -> str | None:
    """Return why this torch cannot attend to such pages, None if it can."""
    if device.type != "cuda":
        return "torch has no CPU kernel for it"
    if importlib.util.find_spec(MODULE) is None:
        return f"torch {torch.__version__} has no {MODULE}"
    from torch.nn.attention.varlen import varlen_attn

    if "block_table" not in inspect.signature(varlen_attn).parameters:
        return f"varlen_attn of torch {torch.__version__} takes no block_table"
    row = torch.zeros((1, 1, 64), dtype=dtype, device=device)
    page = torch.zeros((1, block_size, 1, 64), dtype=dtype, device=device)
    one = torch.ones(1, dtype=torch.int32, device=device)
    starts = torch.arange(2, dtype=torch.int32, device=device)
    try:
        _varlen(row, page, page, starts, one[None] - 1, one, 1, 1, 1.0, None)
    except (RuntimeError, NotImplementedError) as error:  # what torch raises for a page size or a type
        return str(error).splitlines()[0]
    return None
