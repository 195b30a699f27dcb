"""Find a trace's format by its header or keys, and read it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from simulator.errors import ConfigError, InputError, suggest
from simulator.workload.traces.clock import UNITS
from simulator.workload.traces.csv_rows import AZURE, OURS, VIDUR, Columns, read_csv
from simulator.workload.traces.json_rows import iter_objects, read_jsonl, read_mooncake
from simulator.workload.traces.lines import first_line
from simulator.workload.traces.rows import Row, Rows
from simulator.workload.workload import Workload

FIELDS = tuple(name for name in Row._fields if name != "hash_ids")
NEEDED = ("arrival", "prompt", "output")
HOW = "name the columns: --columns arrival=COLUMN,prompt=COLUMN,output=COLUMN [--time-unit s|ms|us|ns]"


class Options(NamedTuple):
    """What a user may say about a file beyond its format; None = as the format has it."""

    time_unit: str | None = None  # of numeric stamps
    hash_block_size: int | None = None  # prompt tokens that one prefix id covers


class Format(NamedTuple):
    """A format is known by keys that its first row has, and by keys of others that it has not."""

    summary: str
    kind: str  # csv | jsonl
    keys: frozenset[str]
    read: Callable[[Path, Options], Rows]
    without: frozenset[str] = frozenset()


def _csv(summary: str, columns: Columns, unit: str | None, optional: Columns | None = None) -> Format:
    def read(path: Path, options: Options) -> Rows:
        return read_csv(path, columns, options.time_unit or unit, optional)

    return Format(summary, "csv", frozenset(columns.values()), read)


FORMATS: dict[str, Format] = {
    "azure": _csv("Azure LLM inference traces 2023-2025, csv with absolute times", AZURE, None),
    "vidur": _csv("vidur, csv in seconds; also what `trace convert` writes as csv", VIDUR, "s", OURS),
    "mooncake": Format(
        "Mooncake, AIPerf and vLLM timed_trace, jsonl in ms with prefix ids of 512 tokens",
        "jsonl",
        frozenset({"timestamp", "input_length"}),
        lambda path, options: read_mooncake(path, options.time_unit, options.hash_block_size),
        without=frozenset({"chat_id"}),  # Qwen-Bailian: seconds, 16 tokens
    ),
}


def read_trace(
    path: str | Path,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    hash_block_size: int | None = None,
) -> Workload:
    """Read a trace file, `.gz` and `.xz` included, into a workload whose first request arrives at 0.

    `columns` maps fields (arrival, prompt, output; optional max_tokens, priority, tenant, id, timeout_s)
    to the columns of a csv or the keys of a jsonl. `time_unit` is that of numeric stamps and overrides the
    format's; so does `hash_block_size`, the tokens that one prefix id covers. Raises InputError for a
    file that cannot be used, ConfigError for options that cannot.
    """
    path = Path(path)
    if time_unit is not None and time_unit not in UNITS:
        raise ConfigError(f"workload.time_unit: must be s, ms, us or ns, got {time_unit!r}")
    if columns is not None:
        if format not in ("auto", "columns"):
            raise ConfigError(f"workload.columns: cannot be combined with workload.format {format}")
        return _by_columns(path, dict(columns), time_unit).workload()
    if format == "auto":
        format = detect(path)
    if format not in FORMATS:
        raise ConfigError(f"workload.format: unknown format {format!r}{suggest(format, FORMATS)}")
    return FORMATS[format].read(path, Options(time_unit, hash_block_size)).workload()


def detect(path: Path) -> str:
    """Return the name of the format whose keys the first row has."""
    kind, found = _first_keys(path)
    for name, format in FORMATS.items():
        if kind == format.kind and format.keys <= found and not format.without & found:
            return name
    for columns in (AZURE, VIDUR):
        if found >= {columns["prompt"], columns["output"]}:
            raise InputError(
                f"{path}: has lengths but no arrival times ({columns['arrival']}); add them, or {HOW}"
            )
    seen = ", ".join(sorted(found)[:12]) or "nothing"
    known = "; ".join(f"{name} ({f.summary})" for name, f in FORMATS.items())
    raise InputError(f"{path}: unknown trace format (found {seen[:300]}). Known: {known}. For others {HOW}")


def _first_keys(path: Path) -> tuple[str, frozenset[str]]:
    line = first_line(path)
    if not line:
        raise InputError(f"{path}: the file is empty")
    if line.startswith("{"):
        return "jsonl", frozenset(next(iter_objects(path), (0, {}))[1])
    try:
        return "csv", frozenset(name.strip() for name in next(csv.reader([line])))
    except csv.Error as error:
        raise InputError(f"{path}, line 1: neither csv nor jsonl: {error}") from error


def _by_columns(path: Path, columns: Columns, unit: str | None) -> Rows:
    for field in columns:
        if field not in FIELDS:
            raise ConfigError(f"workload.columns.{field}: unknown field{suggest(field, FIELDS)}")
    if missing := [field for field in NEEDED if field not in columns]:
        hint = "; without arrival times a trace cannot be replayed" if "arrival" in missing else ""
        raise ConfigError(f"workload.columns: {', '.join(missing)} not given{hint}; {HOW}")
    kind, _ = _first_keys(path)
    return read_csv(path, columns, unit) if kind == "csv" else read_jsonl(path, columns, unit)
