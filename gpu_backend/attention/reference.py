"""The truth that attention backends are held to: float64 on gathered KV, over random paged layouts.

`attention_error` serves the unit tests and `gpu check`: it draws a step whose blocks are scattered, lets a
backend write and attend, and returns the largest difference. KV that nobody may read is large, so that one
token too many shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_backend.attention.base import AttentionBackend, AttentionInputs, ChunkRows

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest difference from float64 for unit normal q, k and v: what a type rounds of results up to 4."""

STALE = 100.0  # size of KV that belongs to nobody
SPARE_BLOCKS = 8  # that no table holds


@dataclass(frozen=True, slots=True)
class Case:
    """One step's shape. Contexts count the step's own tokens."""

    decodes: Sequence[int] = ()  # context of each
    chunks: Sequence[tuple[int, int]] = ()  # (tokens, context) of each
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    window: int | None = None
    dummies: int = 0  # decodes of one token on the dummy block, as a padded graph has them
    padding: int = 0  # rows after the last chunk


@dataclass(slots=True)
class Step:
    """A case with its tensors drawn."""

    q: Tensor  # (rows, heads, head_dim)
    k: Tensor  # (rows, kv_heads, head_dim)
    v: Tensor
    keys: Tensor  # (num_blocks + 1, block_size, kv_heads, head_dim), the last one the dummy
    values: Tensor
    inputs: AttentionInputs


def reference_attention(
    q: Tensor, keys: Tensor, values: Tensor, inputs: AttentionInputs, scale: float, window: int | None = None
) -> Tensor:
    """Return attention over written pages in float64, sequence by sequence; padding rows are 0."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    group = q.shape[1] // keys.shape[2]
    for first, num_tokens, context, table in _sequences(inputs):
        positions = torch.arange(context - num_tokens, context, device=q.device)
        tokens = torch.arange(context, device=q.device)
        hidden = tokens[None] > positions[:, None]
        if window is not None:
            hidden |= tokens[None] <= positions[:, None] - window
        rows = slice(first, first + num_tokens)
        for head in range(keys.shape[2]):
            k = keys[table.long(), :, head].flatten(0, 1)[:context].double()
            v = values[table.long(), :, head].flatten(0, 1)[:context].double()
            heads = slice(head * group, (head + 1) * group)
            scores = torch.einsum("rhd,td->hrt", q[rows, heads].double(), k) * scale
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            out[rows, heads] = torch.einsum("hrt,td->rhd", weights, v)
    return out


def _sequences(inputs: AttentionInputs) -> list[tuple[int, int, int, Tensor]]:
    """List (first row, rows, context, block table) of every decode and chunk."""
    lens = inputs.decode_lens.tolist()
    decodes = [(i, 1, lens[i], inputs.decode_tables[i]) for i in range(inputs.num_decodes)]
    return decodes + [
        (*chunk, table) for chunk, table in zip(inputs.chunks, inputs.chunk_tables, strict=False)
    ]


def draw_step(case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Step:
    """Draw a step of this shape: blocks in random order, q, k, v and older KV unit normal, the rest stale."""
    generator = torch.Generator(device).manual_seed(seed)
    spans = [(1, context) for context in case.decodes] + list(case.chunks)
    counts = [-(-context // case.block_size) for _, context in spans]
    dummy = sum(counts) + SPARE_BLOCKS
    order = torch.randperm(dummy, generator=torch.Generator().manual_seed(seed)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in counts]
    width = max(counts, default=1) + 1  # a column that nobody reads
    tables = [table + [dummy] * (width - len(table)) for table in tables]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    pages = normal(2, dummy + 1, case.block_size, case.kv_heads, case.head_dim).mul_(STALE)
    slots, own = [], []
    for (num_tokens, context), table in zip(spans, tables, strict=True):
        places = [table[t // case.block_size] * case.block_size + t % case.block_size for t in range(context)]
        own += places
        slots.append(places[context - num_tokens :])
    pages.flatten(1, 2)[:, own] = normal(2, len(own), case.kv_heads, case.head_dim)
    num_decodes = len(case.decodes)
    unused = [dummy * case.block_size]
    slots[num_decodes:num_decodes] = [unused] * case.dummies
    tables[num_decodes:num_decodes] = [[dummy] * width] * case.dummies
    flat = [slot for each in slots for slot in each] + unused * case.padding
    inputs = _inputs(case, flat, tables, device)
    q, k, v = (
        normal(len(flat), n, case.head_dim).to(device) for n in (case.heads, case.kv_heads, case.kv_heads)
    )
    return Step(q, k, v, pages[0], pages[1], inputs)


def _inputs(case: Case, slots: list[int], tables: list[list[int]], device: torch.device) -> AttentionInputs:
    num_decodes = len(case.decodes) + case.dummies
    starts = [0]
    for num_tokens, _ in case.chunks:
        starts.append(starts[-1] + num_tokens)

    def ints(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    all_tables = torch.tensor(tables, dtype=torch.int32, device=device)
    return AttentionInputs(
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        num_decodes=num_decodes,
        decode_tables=all_tables[:num_decodes],
        decode_lens=ints([*case.decodes, *[1] * case.dummies]),
        decode_contexts=list(case.decodes),
        chunks=[
            ChunkRows(num_decodes + start, num_tokens, context)
            for start, (num_tokens, context) in zip(starts, case.chunks, strict=False)
        ],
        chunk_tables=all_tables[num_decodes:],
        chunk_starts=ints(starts),
        chunk_lens=ints([context for _, context in case.chunks]),
    )


def attention_error(
    backend: AttentionBackend, case: Case, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> float:
    """Return the largest difference of a backend from float64 over the rows that somebody reads.

    Infinity where any row, padding included, is not finite, or where `write` left other pages than plain
    indexing does. Compare with TOLERANCES.
    """
    step = draw_step(case, dtype, device, seed)
    keys, values = step.keys.clone(), step.values.clone()
    keys.flatten(0, 1)[step.inputs.slots] = step.k
    values.flatten(0, 1)[step.inputs.slots] = step.v
    scale = case.head_dim**-0.5
    backend.write(step.k, step.v, step.keys, step.values, step.inputs.slots)
    out = backend.attend(step.q, step.keys, step.values, step.inputs, scale=scale, window=case.window)
    usable = slice(len(keys) - 1)  # the last block is the dummy
    written = torch.equal(step.keys[usable], keys[usable]) and torch.equal(
        step.values[usable], values[usable]
    )
    if not written or not bool(out.isfinite().all()):
        return float("inf")
    gap = (out - reference_attention(step.q, keys, values, step.inputs, scale, case.window)).abs()
    first = len(case.decodes)
    read = torch.cat([gap[:first], gap[first + case.dummies : len(gap) - case.padding]])
    return float(read.max())
