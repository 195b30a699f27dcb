"""Attention over KV pages in Triton: one kernel for decodes and chunks, one that merges splits.

A program owns one KV head and a tile of query rows, and walks over the sequence's context a tile of tokens at
a time, with the running softmax of FlashAttention-2 (Dao 2023, algorithm 1). The query heads that share a KV
head lie side by side in the tile, so K and V are read once for all of them. Where there are too few programs
to fill the device, the context is split over several (Flash-Decoding, Dao et al. 2023), each of which leaves
a partial result that `_merge_splits` combines. Untested on hardware: run in the interpreter and compiled for
sm_80 and sm_90 only.

What CUDA asks for: `tl.dot` needs 16 in every dimension; offsets of pages overflow int32, so they are int64;
fp32 must not become TF32 ("ieee"); no loop bound or grid depends on a value that only the device knows.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SPLITS = 64  # `_merge_splits` holds (splits, head_dim) fp32 in registers: 64 x 128 are 64 a thread
PROGRAMS_PER_SM = 2  # as many decodes as the shared memory of an A100's SM holds: see `launch_shape`


class LaunchShape(NamedTuple):
    """How much one program holds."""

    block_m: int  # rows x heads of the group, packed
    tile: int  # tokens of K and V per iteration
    num_warps: int
    num_stages: int  # depth of the pipeline of loads


def launch_shape(max_rows: int, group: int, head_dim: int, itemsize: int) -> LaunchShape:
    """Choose the tile for sequences of up to `max_rows` rows, with `group` query heads a KV head.

    Decodes are bound by memory: 16 packed rows are the least that `tl.dot` takes, and 5 stages are two tiles
    of K and V in flight (the block table's own load takes the other stages), 64 KiB a program, above the
    latency x bandwidth of an H200's SM (4.8 TB/s x 0.7 us / 132 = 25 KiB). They take 70 KiB of shared
    memory, so two programs fit an A100's SM (164 KiB) and three an H100's (228 KiB). Prefill is bound by the
    matrix units: 128 rows over 8 warps are two warp groups of 64, the shape of Hopper's wgmma, and compile
    without spills for both; 64 rows of 4 warps need tiles of 32 for that. fp32 runs on the ordinary units
    and serves checks only.
    """
    packed, least = max_rows * group, max(triton.next_power_of_2(group), 16)
    if itemsize > 2:
        return LaunchShape(least, 16, 4, 2)
    if packed <= 16:
        return LaunchShape(16, 64 if head_dim <= 128 else 32, 4, 5)
    if packed <= 64 or head_dim > 128:
        return LaunchShape(max(least, 64), 32, 4 if head_dim <= 128 else 8, 5 if head_dim <= 128 else 3)
    return LaunchShape(max(least, 128), 64, 8, 3)


def choose_splits(programs: int, longest: int, num_sms: int, min_split: int, least: int) -> int:
    """Say over how many programs to split a context: a power of two, so that few variants are compiled.

    `programs` is their number without splits, `longest` the longest possible context in tokens, `min_split`
    what a split reads at least, `least` the splits to have in any case if the context allows.
    """
    wanted = max(PROGRAMS_PER_SM * num_sms // programs, least)
    bound = min(wanted, max(longest // min_split, 1), MAX_SPLITS)
    return 1 << (bound.bit_length() - 1)


@triton.jit
def _visit_tiles(
    weighted, top, total, q, positions, keys, values, table, begin, end, context, page_stride, token_stride,
    scale, window, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Fold the tiles begin..end-1 of K and V into the running softmax of the rows.

    `top` is each row's largest score so far (base 2), `total` its sum of weights, `weighted` its sum of
    weighted V. Without MASKED every row sees every token of these tiles and the head needs no padding.
    """
    dims = tl.arange(0, HEAD_PAD)
    for tile in range(begin, end):
        tokens = tile * TILE + tl.arange(0, TILE)
        if MASKED:
            blocks = tl.load(table + tokens // BLOCK_SIZE, mask=tokens < context, other=0)
        else:
            blocks = tl.load(table + tokens // BLOCK_SIZE)
        rows = blocks.to(tl.int64) * page_stride + (tokens % BLOCK_SIZE) * token_stride
        offsets = rows[:, None] + dims[None, :]
        if MASKED:  # V past the context may be anything, and 0 x nan is nan: it is never read
            mask = (tokens < context)[:, None] & (dims < HEAD_DIM)[None, :]
            k = tl.load(keys + offsets, mask=mask, other=0.0)
            v = tl.load(values + offsets, mask=mask, other=0.0)
        else:
            k = tl.load(keys + offsets)
            v = tl.load(values + offsets)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if MASKED:
            visible = tokens[None, :] <= positions[:, None]
            if WINDOWED:
                visible = visible & (tokens[None, :] > positions[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet has top = -inf, and -inf - -inf is nan.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weights, 1)
        weighted = tl.dot(weights.to(v.dtype), v, weighted * keep[:, None], input_precision="ieee")
        top = new_top
    return weighted, top, total


# What changes from step to step compiles no further variant.
@triton.jit(do_not_specialize=["tables", "starts", "contexts", "table_stride", "window", "splits"])
def _attend(
    out, partial, sums, q, keys, values, tables, starts, contexts, table_stride, out_row_stride, q_row_stride,
    q_head_stride, page_stride, token_stride, head_stride, scale, window, splits,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, MIN_TILES: tl.constexpr, ONE_ROW: tl.constexpr,
    SPLIT: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of rows of one sequence and one KV head to one split of its context.

    Grid: (KV heads, sequences, row tiles x splits). Neighbours on the first axis read neighbouring heads of
    the same pages. On the last axis the latest rows, which read most, come first.
    """
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1)
    split = tl.program_id(2) % splits
    row_tile = (tl.num_programs(2) - 1 - tl.program_id(2)) // splits
    context = tl.load(contexts + sequence)
    if ONE_ROW:
        first_row = sequence
        num_rows = 1
    else:
        first_row = tl.load(starts + sequence)
        num_rows = tl.load(starts + sequence + 1) - first_row
    ROWS: tl.constexpr = BLOCK_M // GROUP
    skipped = row_tile * ROWS
    if skipped >= num_rows:
        return

    # Which row of the sequence and which head of the group each packed row is; BLOCK_M % GROUP are idle.
    packed = tl.arange(0, BLOCK_M)
    rows = skipped + packed // GROUP
    heads = kv_head * GROUP + packed % GROUP
    dims = tl.arange(0, HEAD_PAD)
    is_row = (packed < ROWS * GROUP) & (rows < num_rows)
    out_rows = (first_row + rows).to(tl.int64)

    # The tiles of tokens that these rows see, and this split's share of them.
    first_position = context - num_rows + skipped
    tiles = tl.cdiv(tl.minimum(context, first_position + ROWS), TILE)
    begin = 0
    if WINDOWED:
        begin = tl.maximum(first_position - window + 1, 0) // TILE
    if SPLIT:
        share = tl.maximum(tl.cdiv(tiles - begin, splits), MIN_TILES)
        begin += split * share
        tiles = tl.minimum(tiles, begin + share)
        at = (out_rows * (tl.num_programs(0) * GROUP) + heads) * splits + split
        if begin >= tiles:
            tl.store(sums + at, tl.full((BLOCK_M,), float("-inf"), tl.float32), mask=is_row)
            return

    q_offsets = out_rows[:, None] * q_row_stride + heads[:, None] * q_head_stride + dims[None, :]
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(q + q_offsets, mask=mask, other=0.0)
    weighted = tl.zeros((BLOCK_M, HEAD_PAD), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    positions = first_position + packed // GROUP
    table = tables + sequence.to(tl.int64) * table_stride
    keys += kv_head * head_stride
    values += kv_head * head_stride
    if not WINDOWED and HEAD_PAD == HEAD_DIM:  # whole tiles that even the first row sees
        whole = tl.minimum(tl.maximum((first_position + 1) // TILE, begin), tiles)
        weighted, top, total = _visit_tiles(
            weighted, top, total, query, positions, keys, values, table, begin, whole, context, page_stride,
            token_stride, scale, window, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, TILE, False, WINDOWED,
        )  # fmt: skip
        begin = whole
    weighted, top, total = _visit_tiles(
        weighted, top, total, query, positions, keys, values, table, begin, tiles, context, page_stride,
        token_stride, scale, window, HEAD_DIM, HEAD_PAD, BLOCK_SIZE, TILE, True, WINDOWED,
    )  # fmt: skip

    # A row may have seen nothing of a split that other rows of its tile read: weight 0, result 0.
    total = tl.where(total > 0, total, 1.0)
    result = weighted / total[:, None]
    if SPLIT:
        tl.store(sums + at, top + tl.log2(total), mask=is_row)
        tl.store(partial + at[:, None] * HEAD_DIM + dims[None, :], result, mask=mask)
    else:
        offsets = out_rows[:, None] * out_row_stride + heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out + offsets, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _merge_splits(
    out, partial, sums, out_row_stride,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Weigh the splits of one row and head by their sums, kept as log2. Grid: (rows, heads)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, HEAD_PAD)
    at = (row * tl.num_programs(1) + head) * SPLITS + tl.arange(0, SPLITS)
    logs = tl.load(sums + at)
    top = tl.max(logs, 0)
    weights = tl.exp2(logs - tl.where(top == float("-inf"), 0.0, top))
    # An empty split left its part of `partial` unwritten.
    mask = (logs > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
    parts = tl.load(partial + at[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    total = tl.sum(weights, 0)
    result = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + row * out_row_stride + head * HEAD_DIM + dims, result.to(out.dtype.element_ty),
             mask=dims < HEAD_DIM)  # fmt: skip


class Sequences(NamedTuple):
    """Whom one launch attends for: sequence i owns rows starts[i] .. starts[i+1]-1, or row i where None."""

    tables: Tensor  # (sequences, blocks) int32
    contexts: Tensor  # (sequences,) int32: tokens that the last row of each reads
    starts: Tensor | None  # (sequences + 1,) int32
    max_rows: int  # of a sequence
    longest: int  # context that may occur
    splits: int = 1  # at least, where the context allows


def attend_pages(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: Sequences,
    *,
    scale: float,
    window: int | None,
    num_sms: int,
    min_split: int,
) -> None:
    """Attend from all rows of q to their sequences' pages and write `out`; both (rows, heads, head_dim).

    No value of the device is read by the host. `min_split`: tokens that a split reads at least.
    """
    tables, contexts, starts, max_rows, longest, least = sequences
    num_rows, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = keys.shape
    group, padded = heads // kv_heads, triton.next_power_of_2(head_dim)
    shape = launch_shape(max_rows, group, head_dim, q.element_size())
    row_tiles = triton.cdiv(max_rows, shape.block_m // group)
    seen = longest if window is None else min(longest, window + max_rows)
    splits = choose_splits(kv_heads * len(tables) * row_tiles, seen, num_sms, min_split, least)
    partial = sums = out  # not touched without splits
    if splits > 1:
        partial = torch.empty((num_rows, heads, splits, head_dim), dtype=torch.float32, device=q.device)
        sums = torch.empty((num_rows, heads, splits), dtype=torch.float32, device=q.device)
    _attend[(kv_heads, len(tables), row_tiles * splits)](
        out, partial, sums, q, keys, values, tables, contexts if starts is None else starts, contexts,
        tables.stride(0), out.stride(0), q.stride(0), q.stride(1), keys.stride(0), keys.stride(1),
        keys.stride(2), scale * math.log2(math.e), window or 0, splits,
        GROUP=group, HEAD_DIM=head_dim, HEAD_PAD=padded, BLOCK_SIZE=block_size, BLOCK_M=shape.block_m,
        TILE=shape.tile, MIN_TILES=max(min_split // shape.tile, 1), ONE_ROW=starts is None, SPLIT=splits > 1,
        WINDOWED=window is not None, num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    if splits > 1:
        _merge_splits[(num_rows, heads)](
            out, partial, sums, out.stride(0), HEAD_DIM=head_dim, HEAD_PAD=padded, SPLITS=splits
        )
