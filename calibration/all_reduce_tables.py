"""Read public all-reduce tables: AIConfigurator's (csv) and Vidur's (csv). Sizes in bytes, times in ms.

Of AIConfigurator the rows replayed from a CUDA graph: eager ones show the host's 44 us, which an engine pays
at another place. Of Vidur (NCCL, 1 us resolution) the rows of groups within one server; it does not name the
GPU but the host, an A100 DGX. Left out: other collectives, send and receive.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from calibration import vidur
from calibration.timings import Timing, seconds_of
from simulator.errors import InputError

AICONFIGURATOR = ("framework", "version", "device", "kernel_source", "num_gpus", "message_size", "latency")
VIDUR = ("time_stats.all_reduce.median", "num_workers", "devices_per_node", "size", "collective")
VIDUR_DEVICES = {
    "a100_dgx": "a100",
    "h100_dgx": "h100",
}  # as Vidur's folders and the snapshot's file names say


def read_all_reduces(path: Path) -> Iterator[Timing]:
    """Read either table by its columns; InputError names the line and the field."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or []
        needed = VIDUR if "collective" in columns else AICONFIGURATOR
        missing = [name for name in needed if name not in columns]
        if missing:
            raise InputError(f"{path}: not a table of all-reduces: lacks {', '.join(missing)}")
        read = _vidur if needed is VIDUR else _aiconfigurator
        try:
            for row in rows:
                timing = read(row, path, f"{path}:{rows.line_num}")
                if timing is not None:
                    yield timing
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not a CSV file: {error}") from None


def is_all_reduces(header: str) -> bool:
    """Say whether a file's first line is that of such a table."""
    columns = header.strip().split(",")
    return any(all(name in columns for name in table) for table in (AICONFIGURATOR, VIDUR))


def _aiconfigurator(row: dict[str, str], path: Path, place: str) -> Timing | None:
    if row["kernel_source"].endswith("_eager"):
        return None
    seconds = seconds_of(row["latency"], "ms", f"{place}: latency")
    source = f"{row['framework']} {row['version']}".lower()
    size, gpus = (_whole(row, name, place) for name in ("message_size", "num_gpus"))
    return Timing("all_reduce", seconds, source, row["device"], m=size, n=gpus)


def _vidur(row: dict[str, str], path: Path, place: str) -> Timing | None:
    if row["collective"] != "all_reduce" or row["num_workers"] != row["devices_per_node"]:
        return None
    seconds = seconds_of(row["time_stats.all_reduce.median"], "ms", f"{place}: all_reduce")
    device = next((name for host, name in VIDUR_DEVICES.items() if host in path.stem), path.stem)
    size, gpus = (_whole(row, name, place) for name in ("size", "num_workers"))
    return Timing("all_reduce", seconds, vidur.SOURCE, device, m=size, n=gpus)


def _whole(row: dict[str, str], name: str, place: str) -> int:
    try:
        value = int(row[name])
    except (TypeError, ValueError):
        value = 0
    if not 1 <= value < 2**40:
        raise InputError(f"{place}: {name} must be a whole number >= 1, got {str(row[name])[:40]!r}")
    return value
