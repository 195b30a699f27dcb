"""Spans of equal steps, packed while a run goes on and written out step by step when it is over.

A span keeps the values of its first step; what the others change is arithmetic: each decode reads one token
more, a chunk goes on where it ended, and the blocks opened in every repetition are listed beside it.
"""

from __future__ import annotations

import struct
from array import array
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.tables import Floats, Ints, StepTable

SPAN = np.dtype(
    [
        ("count", np.int32),
        ("start", np.float64),
        ("prefill_work", np.float64),
        ("decode_kv", np.int64),
        ("kv_tokens", np.int64),
        ("num_evicted", np.int64),
        ("num_seqs", np.int32),
        ("num_sampled", np.int32),
        ("num_decodes", np.int32),
        ("num_padding", np.int32),
        ("group_kv_max", np.int32),
        ("padding_kv_max", np.int32),
        ("prefill_tokens", np.int32),
        ("prefill_kv_max", np.int32),
        ("num_running", np.int32),
        ("num_waiting", np.int32),
        ("free_blocks", np.int32),
        ("unhashed_blocks", np.int32),
        ("num_preempted", np.int32),
    ]
)
"""What is kept of a span of equal steps: the values of its first, as `schedule` left them."""
pack_span = struct.Struct("=i2d3q13i").pack  # several times as fast as array.extend
SPAN_INTS = SPAN.itemsize // 4  # a row as an array("i") counts it; its first is `count`


def span_columns(packed: array[int]) -> NDArray[np.void]:
    """Return packed spans as rows of `SPAN`."""
    return np.frombuffer(packed, dtype=SPAN) if packed else np.zeros(0, dtype=SPAN)


def written_out(
    packed: array[int], step_ends: array[float], taken: array[int], stall: Floats, num_blocks: int
) -> StepTable:
    """Return the steps that have ended; `taken` are the blocks that decodes opened in each repeated one."""
    spans, ends = span_columns(packed), np.array(step_ends)
    count = spans["count"]

    def column(name: str) -> Ints:
        return _narrow(np.repeat(spans[name], count)[: len(ends)])

    first = np.repeat(np.cumsum(count) - count, count)[: len(ends)]
    again = _narrow(np.arange(len(ends)) - first)  # 0, 1, .. in a span
    repeated = again > 0
    opened = np.zeros(len(ends), np.int32)
    opened[repeated] = np.asarray(taken, dtype=np.int32)[: int(repeated.sum())]
    before = np.cumsum(opened, dtype=np.int64)
    before -= before[first]
    before = _narrow(before)
    del first, opened
    num_decodes, num_padding, chunk = column("num_decodes"), column("num_padding"), column("prefill_tokens")
    members = num_decodes - num_padding
    evicted = column("num_evicted") + np.maximum(before - column("unhashed_blocks"), 0)
    evicted = _narrow(np.diff(evicted, prepend=0))
    start = np.repeat(spans["start"], count)[: len(ends)]
    start[repeated] = ends[:-1][repeated[1:]]
    longest = column("group_kv_max") + again * (members > 0)
    return StepTable(
        start=start,
        end=ends,
        num_tokens=_narrow(num_decodes + chunk),
        num_seqs=_narrow(column("num_seqs")),
        num_sampled=_narrow(column("num_sampled") - num_padding),
        num_decodes=_narrow(num_decodes),
        decode_kv=_narrow(column("decode_kv") + again * members),
        decode_kv_max=_narrow(np.maximum(longest, column("padding_kv_max"))),
        prefill_tokens=_narrow(chunk),
        prefill_work=np.repeat(spans["prefill_work"], count)[: len(ends)] + again * chunk.astype(float) ** 2,
        prefill_kv_max=_narrow(column("prefill_kv_max") + again * chunk),
        num_running=_narrow(column("num_running")),
        num_waiting=_narrow(column("num_waiting")),
        used_blocks=_narrow(num_blocks - column("free_blocks") + before),
        kv_tokens=_narrow(column("kv_tokens") + again * (members + chunk)),
        num_preempted=_narrow(np.where(repeated, 0, column("num_preempted"))),
        evicted_blocks=evicted,
        stall=stall,
    )


def _narrow(values: Ints) -> Ints:
    """Return the same numbers in 32 bits where they fit: a million requests make five million steps."""
    if len(values) and int(values.max()) >= 2**31:
        return values
    return cast(Ints, values.astype(np.int32))
