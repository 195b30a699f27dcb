"""Write a workload as a trace that `read_trace` reads back."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from simulator.errors import ConfigError, suggest
from simulator.workload.traces.csv_rows import VIDUR
from simulator.workload.traces.hash_blocks import MOONCAKE_BLOCK
from simulator.workload.workload import Workload

WRITERS = ("mooncake", "csv")


def write_trace(workload: Workload, path: str | Path, format: str = "mooncake") -> None:
    """Write `mooncake` (jsonl in ms, with prefix ids) or `csv` (vidur's columns in seconds, without).

    Further columns (max_tokens, priority, tenant, id, timeout_s) are written where the workload has any.
    Times are kept to the nanosecond; a path ending in .gz is compressed. Both forms are open loop: of
    sessions the recorded times are written, not who waits for whom.
    """
    if format not in WRITERS:
        raise ConfigError(f"trace convert: unknown format {format!r}{suggest(format, WRITERS)}")
    path = Path(path)
    with _create(path) as file:
        if format == "csv":
            _write_csv(workload, file)
        else:
            file.writelines(json.dumps(row) + "\n" for row in _mooncake(workload))


def _create(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "wb"), encoding="utf-8", newline="")
    return path.open("w", encoding="utf-8", newline="")


def _write_csv(workload: Workload, file: IO[str]) -> None:
    extra = dict(_extra(workload))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*VIDUR.values(), *extra])
    seconds = (f"{t:.9f}".rstrip("0").rstrip(".") for t in workload.arrival.tolist())
    writer.writerows(
        zip(seconds, workload.num_prompt.tolist(), workload.num_output.tolist(), *extra.values(), strict=True)
    )


def _mooncake(workload: Workload) -> Iterator[dict[str, object]]:
    extra, blocks = dict(_extra(workload)), workload.blocks
    for i in range(len(workload)):
        ms = round(float(workload.arrival[i]) * 1000, 6)
        row: dict[str, object] = {
            "timestamp": int(ms) if ms.is_integer() else ms,
            "input_length": int(workload.num_prompt[i]),
            "output_length": int(workload.num_output[i]),
        }
        if blocks is not None:
            row["hash_ids"] = blocks.of(i)
            if blocks.block_size != MOONCAKE_BLOCK:
                row["block_size"] = blocks.block_size
        row.update((name, column[i]) for name, column in extra.items() if column[i] != "")
        yield row


def _extra(workload: Workload) -> Iterator[tuple[str, list[object]]]:
    """Yield the further columns; "" where a row has nothing."""
    if (workload.max_tokens > 0).any():
        yield "max_tokens", [x or "" for x in workload.max_tokens.tolist()]
    if workload.priority.any():
        yield "priority", workload.priority.tolist()
    if workload.tenants is not None:
        yield "tenant", list(workload.tenants)
    if workload.ids is not None:
        yield "id", list(workload.ids)
    if workload.timeout is not None:
        yield "timeout_s", [x if x == x else "" for x in workload.timeout.tolist()]
