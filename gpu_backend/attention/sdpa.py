"""The reference: torch's scaled_dot_product_attention over KV gathered from the pages.

Default on the CPU, and what other backends are tested against. Decodes are sorted by length and attend in
groups, one masked call each, so that one long sequence does not pad all others to its length; the query
heads that share a KV head are the rows of one small matrix product. Chunks attend one by one. Gathering
copies the KV of every layer: right everywhere, but with the wrong cost on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_backend.attention.base import AttentionInputs, ChunkRows


class _Decodes(NamedTuple):
    """Decodes of similar length."""

    rows: Tensor | None  # (n,) int64, None for the first n rows in their order
    num: int
    blocks: Tensor  # (n * blocks,) int32: their tables without what nobody reads
    mask: Tensor  # (n, 1, 1, blocks * block_size), added to the scores


class _Chunk(NamedTuple):
    rows: slice
    blocks: Tensor  # (blocks,) int32
    length: int  # tokens in these blocks that any row reads
    mask: Tensor | None  # (rows, length); None: causal from the first token on


class _Plan(NamedTuple):
    """What the layers of one step with one window share."""

    decodes: list[_Decodes]
    chunks: list[_Chunk]


class SdpaGather:
    """Keeps the plan of the last step, known by its AttentionInputs: inputs changed in place go unseen."""

    name = "sdpa"

    def __init__(self, *, padding_per_call: int = 512) -> None:
        """`padding_per_call`: padded tokens a group may have before a further call is cheaper.

        Measured at 2 KV heads of 64 in float32 on one AVX512 core: best from 256 to 1,024.
        """
        self.padding_per_call = padding_per_call
        self._step: AttentionInputs | None = None
        self._plans: dict[int | None, _Plan] = {}

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
        """Attend from every row; padding rows come back as zeros."""
        if inputs is not self._step:
            self._step, self._plans = inputs, {}
        if window not in self._plans:
            self._plans[window] = self._plan(inputs, keys.shape[1], window, q)
        plan = self._plans[window]
        out = q.new_zeros(q.shape)
        for decodes in plan.decodes:
            attended = _attend_decodes(q, keys, values, decodes, scale)
            if decodes.rows is None:
                out[: decodes.num] = attended
            else:
                out.index_copy_(0, decodes.rows, attended)
        for chunk in plan.chunks:
            out[chunk.rows] = _attend_chunk(q, keys, values, chunk, scale)
        return out

    def _plan(self, inputs: AttentionInputs, block_size: int, window: int | None, q: Tensor) -> _Plan:
        groups = self._groups(inputs.decode_contexts)
        decodes = [_plan_decodes(inputs, group, block_size, window, q) for group in groups]
        tables = zip(inputs.chunks, inputs.chunk_tables, strict=False)  # tables may be padded
        return _Plan(decodes, [_plan_chunk(chunk, table, block_size, window, q) for chunk, table in tables])

    def _groups(self, contexts: list[int]) -> list[list[int]]:
        """Cut the rows, longest first, where padding to a group's longest would exceed the limit."""
        groups: list[list[int]] = []
        longest = padding = 0
        for row in sorted(range(len(contexts)), key=lambda row: -contexts[row]):
            padding += longest - contexts[row]
            if not groups or padding > self.padding_per_call:
                groups.append([])
                longest, padding = contexts[row], 0
            groups[-1].append(row)
        return groups


def _plan_decodes(
    inputs: AttentionInputs, rows: list[int], block_size: int, window: int | None, q: Tensor
) -> _Decodes:
    lengths = [inputs.decode_contexts[row] for row in rows]
    first = max(0, min(lengths) - window) // block_size if window else 0
    last = -(-max(lengths) // block_size)
    whole = len(rows) == len(inputs.decode_contexts)
    if whole:
        rows = list(range(len(rows)))
    index = torch.tensor(rows, device=q.device)
    blocks = inputs.decode_tables[index, first:last].flatten()
    ends = inputs.decode_lens[index, None]
    positions = torch.arange(first * block_size, last * block_size, device=q.device)
    hidden = positions >= ends
    if window:
        hidden |= positions < ends - window
    return _Decodes(None if whole else index, len(rows), blocks, _mask(hidden, q)[:, None, None])


def _plan_chunk(chunk: ChunkRows, table: Tensor, block_size: int, window: int | None, q: Tensor) -> _Chunk:
    start = chunk.context - chunk.num_tokens
    first = max(0, start + 1 - window) // block_size if window else 0
    length = chunk.context - first * block_size
    blocks = table[first : -(-chunk.context // block_size)]
    rows = slice(chunk.first, chunk.first + chunk.num_tokens)
    if start == 0 and (window is None or window >= chunk.context):
        return _Chunk(rows, blocks, length, None)
    queries = torch.arange(start, chunk.context, device=q.device)[:, None]
    positions = torch.arange(first * block_size, chunk.context, device=q.device)
    hidden = positions > queries
    if window:
        hidden |= positions <= queries - window
    return _Chunk(rows, blocks, length, _mask(hidden, q))


def _mask(hidden: Tensor, q: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, float("-inf"))


def _attend_decodes(q: Tensor, keys: Tensor, values: Tensor, decodes: _Decodes, scale: float) -> Tensor:
    num, kv_heads, head_dim = decodes.num, keys.shape[2], keys.shape[3]
    q = q[:num] if decodes.rows is None else q.index_select(0, decodes.rows)
    k = keys.index_select(0, decodes.blocks).view(num, -1, kv_heads, head_dim).transpose(1, 2)
    v = values.index_select(0, decodes.blocks).view(num, -1, kv_heads, head_dim).transpose(1, 2)
    grouped = q.view(num, kv_heads, -1, head_dim)
    attended = F.scaled_dot_product_attention(grouped, k, v, attn_mask=decodes.mask, scale=scale)
    return attended.flatten(1, 2)


def _attend_chunk(q: Tensor, keys: Tensor, values: Tensor, chunk: _Chunk, scale: float) -> Tensor:
    k = keys.index_select(0, chunk.blocks).flatten(0, 1)[: chunk.length]
    v = values.index_select(0, chunk.blocks).flatten(0, 1)[: chunk.length]
    attended = F.scaled_dot_product_attention(
        q[chunk.rows].transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended[0].transpose(0, 1)
