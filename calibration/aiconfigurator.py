"""Read AIConfigurator's kernel tables (ai-dynamo/aiconfigurator, Apache-2.0, NVIDIA), kept as parquet.

Latency is in milliseconds by that project's convention: CUDA-graph replay, weights cold in L2, attention per
layer with bf16 KV and head_dim 128. A generation row reads `step + 1` tokens of KV. A file says by its
columns which of the three tables it is. Left out: fp8 and int8 rows, communication, sliding windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from calibration.timings import Timing, seconds_of
from simulator.errors import InputError

REPO = "ai-dynamo/aiconfigurator"
COMMIT = "095f58a51c4ca8e61b66ec108d86f223f8d559ce"  # the snapshot that the adapter was written against
SNAPSHOT = "2026-11-29"
LICENCE = "Apache-2.0, (c) NVIDIA"
COMMON = ("framework", "version", "device", "op_name", "latency")
GEMM = (*COMMON, "gemm_dtype", "m", "n", "k")
ATTENTION = (*COMMON, "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
EXTRA = ("attn_dtype", "kv_cache_dtype", "window_size")

Row = dict[str, object]


def read_aiconfigurator(path: Path) -> Iterator[Timing]:
    """Read one table; InputError if it is none, or if pyarrow is not installed."""
    columns = parquet_columns(path)
    needed = GEMM if "gemm_dtype" in columns else ATTENTION
    missing = [name for name in needed if name not in columns]
    if missing:
        raise InputError(f"{path}: not an AIConfigurator table: lacks {', '.join(missing)}")
    names = [name for name in (*needed, *EXTRA) if name in columns]
    for i, values in enumerate(zip(*(columns[name] for name in names), strict=True)):
        timing = _timing(dict(zip(names, values, strict=True)), f"{path}: row {i}")
        if timing is not None:
            yield timing


def parquet_columns(path: Path) -> dict[str, list[object]]:
    """Read a parquet file; InputError if it is none, or if pyarrow is not installed."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"{path}: reading parquet needs pyarrow: pip install 'servetwin[parquet]'") from None
    try:
        columns: dict[str, list[object]] = parquet.read_table(path).to_pydict()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a parquet file: {str(error)[:100]}") from None
    return columns


def _timing(row: Row, place: str) -> Timing | None:
    source = f"{row['framework']} {row['version']}".lower()
    device = str(row["device"])
    seconds = seconds_of(str(row["latency"]), "ms", f"{place}: latency")

    def count(name: str) -> int:
        value = row[name]
        if not isinstance(value, int) or value < 0:
            raise InputError(f"{place}: {name} must be a whole number >= 0, got {str(value)[:40]!r}")
        return value

    if "gemm_dtype" in row:
        if row["gemm_dtype"] != "bfloat16":
            return None
        return Timing("gemm", seconds, source, device, m=count("m"), n=count("n"), k=count("k"))
    windowed = isinstance(window := row.get("window_size"), int | float) and window > 0
    if row["kv_cache_dtype"] != "bfloat16" or row["head_dim"] != 128 or windowed:
        return None
    heads, kv_heads, batch = count("num_heads"), count("num_key_value_heads"), count("batch_size")
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    if row["op_name"] == "generation_attention":
        return Timing("decode_attention", seconds, source, device, kv=count("step") + 1, **shape)
    if row["op_name"] == "context_attention":
        chunk = {"tokens": count("isl"), "kv": count("step")}
        return Timing("prefill_attention", seconds, source, device, **shape, **chunk)
    return None
