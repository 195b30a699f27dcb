"""Prefix ids as runs: what goes in comes out, and hits are those of a cache that forgets nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.workload.trace_blocks import TraceBlocks

PROMPTS = st.lists(st.lists(st.integers(-3, 12), max_size=8), max_size=8)


def blocks(ids: list[list[int]], block_size: int = 16) -> TraceBlocks:
    offsets = np.cumsum([0, *(len(x) for x in ids)])
    return TraceBlocks.of_ids(np.array([i for x in ids for i in x], np.int64), offsets, block_size)


@given(PROMPTS, st.randoms())
def test_ids_come_out_as_they_went_in_and_follow_their_rows(ids: list[list[int]], random: object) -> None:
    b = blocks(ids)
    assert [b.of(i) for i in range(len(b))] == ids
    assert b.num_ids.tolist() == [len(x) for x in ids]
    rows = list(range(len(ids)))[::2][::-1]
    assert [b.take(np.array(rows, np.int64)).of(i) for i in range(len(rows))] == [ids[i] for i in rows]


@given(PROMPTS)
def test_pieces_are_equal_or_apart_and_keep_the_ids(ids: list[list[int]]) -> None:
    pieces = blocks(ids).pieces()
    assert [pieces.of(i) for i in range(len(pieces))] == ids
    spans = set(zip(pieces.lo.tolist(), pieces.hi.tolist(), strict=True))
    covered = [i for lo, hi in spans for i in range(lo, hi)]
    assert len(covered) == len(set(covered)) == blocks(ids).num_distinct == len({i for x in ids for i in x})


@given(PROMPTS)
def test_hits_are_the_leading_ids_that_occurred_before(ids: list[list[int]]) -> None:
    seen: set[int] = set()
    expected = []
    for prompt in ids:
        hits = 0
        for place, id in enumerate(prompt):
            if id not in seen and hits == place:
                pass
            elif id in seen and hits == place:
                hits += 1
            seen.add(id)
        expected.append(hits)
    assert blocks(ids).hit_blocks().tolist() == expected


def test_a_long_repeated_prefix_costs_a_run() -> None:
    b = blocks([list(range(10_000)), [*range(9_000), *range(10_000, 12_000)]])
    assert len(b.lo) == 3
    assert b.hit_blocks().tolist() == [0, 9_000]
