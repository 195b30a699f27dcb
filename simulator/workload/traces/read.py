"""Find a trace's format by its header or keys, and read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simulator.errors import ConfigError, InputError, suggest
from simulator.workload.traces.clock import UNITS
from simulator.workload.traces.csv_rows import AZURE, VIDUR, Columns, read_csv
from simulator.workload.traces.formats import FORMATS, Options, first_keys
from simulator.workload.traces.json_rows import read_jsonl
from simulator.workload.traces.rows import Row, Rows
from simulator.workload.workload import Workload

FIELDS = tuple(name for name in Row._fields if name != "hash_ids")
NEEDED = ("arrival", "prompt", "output")
HOW = "name the columns: --columns arrival=COLUMN,prompt=COLUMN,output=COLUMN [--time-unit s|ms|us|ns]"


def read_trace(
    path: str | Path,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    hash_block_size: int | None = None,
    *,
    start_s: float = 0.0,
    duration_s: float | None = None,
    seed: int = 0,
) -> Workload:
    """Read a trace file, `.gz` and `.xz` included, into a workload whose first request arrives at 0.

    `columns` maps fields (arrival, prompt, output; optional max_tokens, priority, tenant, id, timeout_s,
    session, think_s, api_s) to the columns of a csv or the keys of a jsonl. `time_unit` is that of numeric
    stamps and overrides the format's; so does `hash_block_size`, the tokens that one prefix id covers.
    A file of parameters (ServeGen) has requests only once drawn: those of `duration_s` from `start_s` on
    (default at most an hour), with `seed`, at the file's own times. Other formats are read whole.
    Raises InputError for a file that cannot be used, ConfigError for options that cannot.
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
    options = Options(time_unit, hash_block_size, start_s, duration_s, seed)
    return FORMATS[format].read(path, options)


def detect(path: Path) -> str:
    """Return the name of the format whose keys the first row has."""
    kind, found = first_keys(path)
    for name, format in FORMATS.items():
        if format.kind in (kind, None) and format.keys <= found and not format.without & found:
            return name
    for columns in (AZURE, VIDUR):
        if found >= {columns["prompt"], columns["output"]}:
            raise InputError(
                f"{path}: has lengths but no arrival times ({columns['arrival']}); add them, or {HOW}, "
                "or draw such lengths (workload.lengths: {kind: quantiles}) with an arrival process"
            )
    if found == {"client", "dataset"}:
        raise InputError(f"{path}: has ServeGen's token counts but no rates; read its clients.csv instead")
    seen = ", ".join(sorted(found)[:12]) or "nothing"
    known = ", ".join(FORMATS)
    raise InputError(f"{path}: unknown trace format (found {seen[:300]}). Known: {known}. For others {HOW}")


def _by_columns(path: Path, columns: Columns, unit: str | None) -> Rows:
    for field in columns:
        if field not in FIELDS:
            raise ConfigError(f"workload.columns.{field}: unknown field{suggest(field, FIELDS)}")
    if missing := [field for field in NEEDED if field not in columns]:
        hint = "; without arrival times a trace cannot be replayed" if "arrival" in missing else ""
        raise ConfigError(f"workload.columns: {', '.join(missing)} not given{hint}; {HOW}")
    kind, _ = first_keys(path)
    return read_csv(path, columns, unit) if kind == "csv" else read_jsonl(path, columns, unit)
