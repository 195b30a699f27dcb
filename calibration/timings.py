"""Timings: one row per measured kernel, whatever file it came from; seconds inside.

`servetwin`'s own file is a CSV with the columns of `Timing` that its operations need, `latency` in the unit
that the column `unit` names (s, ms, us or ns; never guessed), and `device` and `source` in words. Files of
AIConfigurator (parquet) and Vidur (csv) are read by their adapters.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.errors import InputError, suggest

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FITTED = ("gemm", "decode_attention", "prefill_attention", "elementwise", "all_reduce")
HOST = ("host_schedule", "host_build", "host_launch", "host_sync", "host_loop")
MEASURED = (  # by `servetwin gpu measure`: see fit_engine
    *("dense", "embedding", "head", "sampler", "skewed_attention", "mixed_attention", "step", "graph_step"),
    *(*HOST, "copy_out", "copy_in"),
)
OPS = (*FITTED, *MEASURED)


class Timing(NamedTuple):
    """One kernel's time in seconds. What does not apply to an operation is 0.

    gemm: C[m, n] = A[m, k] B[k, n]. elementwise: all of one layer's small kernels on m tokens, n elements
    a token. decode_attention: `batch` sequences that read `kv` tokens each, one layer.
    prefill_attention: `batch` chunks of `tokens` tokens after `kv` computed ones, one layer.
    all_reduce: m bytes on each of n GPUs of one server.

    Of servetwin's own engine: dense: one layer but attention, on m tokens, K and V written. embedding: what
    comes before the layers, m tokens. head, sampler: `batch` rows that sample. mixed_attention: `batch`
    decodes that read `kv` tokens each on average, and `chunks` chunks of `tokens` tokens in all, after
    `prefix` computed ones each; the longest context is `longest` tokens; one layer. skewed_attention: the
    same without chunks, decodes of unlike lengths. step: all layers and the head on such a batch of m rows;
    graph_step: its graph of m rows replayed. host_*: what the host does in a step of `batch` decodes.
    copy_out, copy_in: m KV blocks of n bytes each to host memory and back.
    """

    op: str
    seconds: float
    source: str  # engine and version, or the study
    device: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0
    tokens: int = 0
    kv: int = 0
    heads: int = 0
    kv_heads: int = 0
    prefix: int = 0
    chunks: int = 0
    longest: int = 0
    fixed: float = 0.0  # seconds once a step, which the layers do not explain; `seconds` is a layer's then


COUNTS = Timing._fields[4:-1]
NEEDED = {
    "gemm": ("m", "n", "k"),
    "elementwise": ("m", "n"),
    "decode_attention": ("batch", "kv", "heads", "kv_heads"),
    "prefill_attention": ("batch", "tokens", "heads", "kv_heads"),
    "all_reduce": ("m", "n"),
    "dense": ("m",),
    "embedding": ("m",),
    "head": ("batch",),
    "sampler": ("batch",),
    "skewed_attention": ("batch", "kv", "longest", "heads", "kv_heads"),
    "mixed_attention": ("batch", "kv", "tokens", "chunks", "longest", "heads", "kv_heads"),
    "step": ("m", "longest"),
    "graph_step": ("m", "batch", "kv"),
    **dict.fromkeys(HOST, ("batch",)),
    "copy_out": ("m", "n"),
    "copy_in": ("m", "n"),
}


def read_timings_csv(path: Path) -> Iterator[Timing]:
    """Read servetwin's own timings; InputError names the line and the column."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or []
        for column in ("op", "latency", "unit", "device", "source"):
            if column not in columns:
                hint = "; a time without its unit is not read" if column == "unit" else ""
                raise InputError(f"{path}: lacks the column {column!r}{hint}")
        try:
            for row in rows:
                yield _timing({key: value or "" for key, value in row.items() if key}, path, rows.line_num)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not a CSV file: {error}") from None


def _timing(row: dict[str, str], path: Path, line: int) -> Timing:
    place = f"{path}:{line}"
    op, unit = row["op"], row["unit"].strip()
    if op not in OPS:
        raise InputError(f"{place}: op {op[:40]!r} is unknown{suggest(op, OPS)}")
    if unit not in UNITS:
        raise InputError(f"{place}: unit {unit[:40]!r} is none of {', '.join(UNITS)}")
    counts = {name: _count(row.get(name, ""), f"{place}: {name}") for name in COUNTS}
    for name in NEEDED[op]:
        if counts[name] < 1:
            raise InputError(f"{place}: {name} must be >= 1 for {op}, got {counts[name]}")
    seconds = seconds_of(row["latency"], unit, f"{place}: latency")
    fixed = _fixed(row.get("fixed", ""), unit, f"{place}: fixed")
    return Timing(op, seconds, row["source"].strip(), row["device"].strip(), **counts, fixed=fixed)


def _fixed(text: str, unit: str, place: str) -> float:
    return seconds_of(text, unit, place) if text.strip() and text.strip().strip("0.") else 0.0


def _count(text: str, place: str) -> int:
    if not text.strip():
        return 0
    try:
        value = int(text)
    except ValueError:
        raise InputError(f"{place} must be a whole number, got {text[:40]!r}") from None
    if not 0 <= value < 2**40:
        raise InputError(f"{place} must be between 0 and 2^40, got {value}")
    return value


def seconds_of(value: str | float, unit: str, place: str) -> float:
    """Convert one latency to seconds; InputError unless it is a positive finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{place} must be a number, got {str(value)[:40]!r}") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{place} must be positive and finite, got {number}")
    return number * UNITS[unit]
