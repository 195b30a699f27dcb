"""How many tokens a prefix id covers: found by the number of ids, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.workload import Workload, read_trace
from simulator.workload.traces.hash_blocks import OTHER_BLOCKS


def read(tmp_path: Path, rows: list[tuple[int, int]], **first: object) -> Workload:
    """Rows are prompts and their numbers of ids."""
    objects = [
        {"timestamp": t, "input_length": n, "output_length": 1, "hash_ids": list(range(k))}
        for t, (n, k) in enumerate(rows)
    ]
    objects[0] |= first
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in objects))
    return read_trace(path)


def block_size(w: Workload) -> int:
    assert w.blocks is not None
    return w.blocks.block_size


@pytest.mark.parametrize("block", OTHER_BLOCKS)
def test_the_one_size_that_every_row_agrees_with_is_taken_and_said(block: int, tmp_path: Path) -> None:
    rows = [(n, -(-n // block)) for n in (5, 700, 1500, 4000)]
    w = read(tmp_path, rows)
    assert (len(w), block_size(w)) == (4, block)
    assert f"prefix ids are one per {block} prompt tokens, as their number shows" in w.notes


def test_512_is_taken_where_it_fits_or_nothing_tells(tmp_path: Path) -> None:
    for rows in ([(600, 2), (5, 1)], [(5, 1), (9, 1)], [(5, 0), (9, 0), (1025, 3)]):
        w = read(tmp_path, rows)
        assert (len(w), block_size(w), w.notes) == (len(rows), 512, ())


def test_a_row_that_disagrees_with_most_is_skipped(tmp_path: Path) -> None:
    w = read(tmp_path, [(655, 2), (672, 2), (20, 2)])
    assert w.num_prompt.tolist() == [655, 672]
    assert w.skipped == {"hash_ids are not one per 512 prompt tokens": 1}
    assert w.notes[0].startswith("skipped 1 of 3 rows")


def test_a_file_that_agrees_with_no_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hash_ids are not one per block of 512 or of 16, 32"):
        read(tmp_path, [(655, 2), (20, 2), (700, 7)])


def test_a_size_that_the_file_gives_is_kept(tmp_path: Path) -> None:
    w = read(tmp_path, [(600, 13), (20, 2)], block_size=48)
    assert (block_size(w), w.skipped) == (48, {"hash_ids are not one per 48 prompt tokens": 1})
