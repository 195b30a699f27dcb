"""Traces of one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from simulator.errors import InputError, suggest
from simulator.workload.traces.clock import Clock
from simulator.workload.traces.csv_rows import OURS, Columns
from simulator.workload.traces.hash_blocks import HashIds
from simulator.workload.traces.lines import first_line, read_lines
from simulator.workload.traces.rows import Row, Rows

MAX_DOCUMENT = 64 << 20  # characters of one object over many lines

MOONCAKE: Columns = {
    "arrival": "timestamp",
    "prompt": "input_length",
    "output": "output_length",
    "hash_ids": "hash_ids",
    **OURS,
}


def read_mooncake(path: Path, unit: str | None = None, hash_block: int | None = None) -> Rows:
    """Read Mooncake's form, which AIPerf and vLLM's timed_trace share: ms, an id per started block.

    `hash_block`, or a `block_size` in the first row, says how many tokens a block has; else the ids' number
    shows it (see `hash_blocks`). Later turns of AIPerf's sessions, which have a delay instead of a
    timestamp, are skipped. Text and tools are not read.
    """
    first = next(iter_objects(path), (0, {}))[1]
    block = hash_block or first.get("block_size")
    if block is not None and (not isinstance(block, int) or block < 1):
        raise InputError(f"{path}, line 1: block_size must be a whole number >= 1, got {block!r}")
    return _read(path, MOONCAKE, Rows(Clock(str(path), unit or "ms"), HashIds(block)))


def read_jsonl(path: Path, columns: Columns, unit: str | None, optional: Columns | None = None) -> Rows:
    """Read the named keys of each object; those of `optional` where a row has them."""
    first = next(iter_objects(path), (0, {}))[1]
    for field, key in columns.items():
        if key not in first:
            raise InputError(f"{path}: no key {key!r} for {field} in the first row{suggest(key, first)}")
    return _read(path, {**(optional or {}), **columns}, Rows(Clock(str(path), unit)))


def _read(path: Path, columns: Columns, rows: Rows) -> Rows:
    for line, value in iter_objects(path, rows):
        rows.add(line, Row(**{field: value.get(key) for field, key in columns.items()}))
    return rows


def iter_objects(path: Path, rows: Rows | None = None) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (line number, object); what is no object is counted in `rows`, if given. Decimals stay exact.

    A file that is one object over many lines is yielded as that.
    """

    def skip(line: int, reason: str = "line longer than 10 MiB") -> None:
        if rows is not None:
            rows.skip(line, reason)

    is_document = first_line(path) == "{"
    for number, line in enumerate([_document(path)] if is_document else read_lines(path, skip), start=1):
        if line.isspace():
            continue
        try:
            value = json.loads(line, parse_float=Decimal, parse_constant=str)
        except (ValueError, RecursionError):
            skip(number, "line is not JSON")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            skip(number, "line is not a JSON object")


def _document(path: Path) -> str:
    """Return a whole file of many lines, if it is no larger than we are ready to hold."""
    lines, size = [], 0
    for line in read_lines(path):
        lines.append(line)
        size += len(line)
        if size > MAX_DOCUMENT:
            raise InputError(f"{path}: one JSON object of more than {MAX_DOCUMENT >> 20} MiB")
    return "".join(lines)
