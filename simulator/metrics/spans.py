"""Spans of equal steps, packed while a run goes on and written out step by step when it is over.

A span keeps the values of its first step; what the others change is arithmetic: each decode reads one token
more, a chunk goes on where it ended, and the blocks opened in every repetition are listed beside it.
"""

from __future__ import annotations

import struct
from array import array

import numpy as np

from simulator.metrics.tables import Ints, StepTable

SPAN = (
    "count",
    "start",
    "prefill_work",
    "num_seqs",
    "num_sampled",
    "num_decodes",
    "num_padding",
    "decode_kv",
    "group_kv_max",
    "padding_kv_max",
    "prefill_tokens",
    "prefill_kv_max",
    "num_running",
    "num_waiting",
    "free_blocks",
    "unhashed_blocks",
    "kv_tokens",
    "num_preempted",
    "num_evicted",
)
"""What is kept of a span of equal steps: the values of its first, as `schedule` left them."""
pack_span = struct.Struct(f"q2d{len(SPAN) - 3}q").pack  # several times as fast as array.extend


def span_columns(packed: array[int]) -> dict[str, Ints]:
    """Return the columns of packed spans, whole numbers save for times and work."""
    rows = np.asarray(packed, dtype=np.int64).reshape(-1, len(SPAN))
    columns: dict[str, Ints] = {name: rows[:, i] for i, name in enumerate(SPAN)}
    return columns | {name: columns[name].view(np.float64) for name in ("start", "prefill_work")}


def written_out(packed: array[int], step_ends: array[float], taken: array[int], num_blocks: int) -> StepTable:
    """Return the steps that have ended; `taken` are the blocks that decodes opened in each repeated one."""
    spans, ends = span_columns(packed), np.array(step_ends)
    count = spans["count"]

    def column(name: str) -> Ints:
        return np.repeat(spans[name], count)[: len(ends)]

    first = np.repeat(np.cumsum(count) - count, count)[: len(ends)]
    again = np.arange(len(ends)) - first  # 0, 1, .. in a span
    repeated = again > 0
    opened = np.zeros(len(ends), np.int64)
    opened[repeated] = np.asarray(taken, dtype=np.int64)[: int(repeated.sum())]
    before = np.cumsum(opened)
    before -= before[first]
    num_decodes, num_padding, chunk = column("num_decodes"), column("num_padding"), column("prefill_tokens")
    members = num_decodes - num_padding
    evicted = column("num_evicted") + np.maximum(before - column("unhashed_blocks"), 0)
    longest = column("group_kv_max") + again * (members > 0)
    return StepTable(
        start=np.where(repeated, np.roll(ends, 1), column("start")),
        end=ends,
        num_tokens=num_decodes + chunk,
        num_seqs=column("num_seqs"),
        num_sampled=column("num_sampled") - num_padding,
        num_decodes=num_decodes,
        decode_kv=column("decode_kv") + again * members,
        decode_kv_max=np.maximum(longest, column("padding_kv_max")),
        prefill_tokens=chunk,
        prefill_work=column("prefill_work") + again * chunk * chunk,
        prefill_kv_max=column("prefill_kv_max") + again * chunk,
        num_running=column("num_running"),
        num_waiting=column("num_waiting"),
        used_blocks=num_blocks - column("free_blocks") + before,
        kv_tokens=column("kv_tokens") + again * (members + chunk),
        num_preempted=np.where(repeated, 0, column("num_preempted")),
        evicted_blocks=np.diff(evicted, prepend=0),
    )
