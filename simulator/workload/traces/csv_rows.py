"""Csv traces: a format is a row of column names."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from simulator.errors import InputError, suggest
from simulator.workload.traces.clock import Clock
from simulator.workload.traces.lines import read_lines
from simulator.workload.traces.rows import Row, Rows

Columns = dict[str, str]
"""Field of `Row` -> column of the file."""

AZURE: Columns = {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
VIDUR: Columns = {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}
BURSTGPT: Columns = {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"}
BURSTGPT_3: Columns = {"session": "Session ID", "api_s": "Elapsed time"}  # further columns of version 3
SPLITWISE: Columns = {"arrival": "arrival_timestamp", "prompt": "prompt_size", "output": "token_size"}
APEX: Columns = {"arrival": "StartTimeOffset", "prompt": "ContextTokens", "output": "GeneratedTokens"}
LLMSERVINGSIM: Columns = {"arrival": "arrival_time_ns", "prompt": "input_toks", "output": "output_toks"}
OURS: Columns = {name: name for name in ("max_tokens", "priority", "tenant", "id", "timeout_s")}
"""Columns that `write_trace` adds to vidur's when the workload has them."""


def read_csv(path: Path, columns: Columns, unit: str | None, optional: Columns | None = None) -> Rows:
    """Read the named columns; those of `optional` where the header has them."""
    rows = Rows(Clock(str(path), unit))
    for line, values in iter_csv(path, columns, rows, optional):
        rows.add(line, Row(**values))
    return rows


def iter_csv(
    path: Path, columns: Columns, rows: Rows, optional: Columns | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, values by field); rows that cannot be split are counted in `rows`."""
    lines = read_lines(path, lambda line: rows.skip(line, "line longer than 10 MiB"))
    reader = csv.reader(lines)
    try:
        header = next((row for row in reader if row), [])
        places = _places(path, header, columns, optional or {})
        width = max(places.values()) + 1
        for row in reader:
            if len(row) >= width:
                yield reader.line_num, {name: row[i] for name, i in places.items()}
            elif row:
                rows.skip(reader.line_num, "row is too short")
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not csv: {error}") from error


def _places(path: Path, header: list[str], columns: Columns, optional: Columns) -> dict[str, int]:
    names = [name.strip() for name in header]
    for field, column in columns.items():
        if column not in names:
            raise InputError(f"{path}: no column {column!r} for {field}{suggest(column, names)}")
    wanted = {**{f: c for f, c in optional.items() if c in names}, **columns}
    return {field: names.index(column) for field, column in wanted.items()}
