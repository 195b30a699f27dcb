"""Read LLMServingSim's kernel tables (casys-kaist/LLMServingSim, MIT, CASYS Lab KAIST), parquet or csv.

Times are microseconds a layer by that project's convention, of vLLM 0.19 on one GPU, bf16. A file says by its
columns which table it is: attention (prefill and decode in one launch, truly mixed), dense (by tokens),
per_sequence (head and sampler), skew (decodes of unlike lengths). GPU and model are in its path alone. One
decoder layer runs two norms; embedding and final norm run once. Skew's times are of three launches, as
its rows of equal lengths show against the attention table. Left out: mixed rows of the skew table.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from calibration.aiconfigurator import parquet_columns
from calibration.timings import Timing, seconds_of
from simulator.errors import InputError
from simulator.specs.models import Model
from simulator.specs.shipped_models import MODELS

REPO = "casys-kaist/LLMServingSim"
COMMIT = "5daddb21a545658d5150b535712d0494584b5278"  # the snapshot that the adapter was written against
SNAPSHOT = "2026-11-29"
LICENCE = "MIT, (c) CASYS Lab KAIST"
SOURCE = "llmservingsim 5daddb2"
ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
LAYERS = ("layer", "tokens", "time_us")
SEQUENCES = ("layer", "sequences", "time_us")
SKEW = ("regime", "n", "kv_big", "kv_mean", "t_skew_us")
SKEW_LAUNCHES = 3
PARTS = 6  # of a path that may name GPU and model: RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1/dense.csv
DEVICES = {"rtx4090": "RTX4090", "rtxpro6000": "RTXPRO6000"}  # in a path, and as rows name them
IN_LAYER = {  # kernels of one decoder layer but attention, and how often each runs in it
    "layernorm": 2,
    **dict.fromkeys(("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj"), 1),
}
ONCE = ("embedding", "final_layernorm")

Columns = Mapping[str, list[object]]


def is_llmservingsim(names: Collection[str]) -> bool:
    """Say whether a file with these columns is one of the four tables."""
    return any(set(wanted) <= set(names) for wanted in (ATTENTION, LAYERS, SEQUENCES, SKEW))


def read_llmservingsim(path: Path) -> Iterator[Timing]:
    """Read one table, parquet or csv; InputError if it is none of the four."""
    columns = parquet_columns(path) if path.suffix == ".parquet" else _csv_columns(path)
    if not is_llmservingsim(columns):
        raise InputError(f"{path}: not a table of LLMServingSim: lacks its columns")
    return rows_of_tables(path, columns)


def _csv_columns(path: Path) -> dict[str, list[object]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            table = list(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return {name: [row[name] for row in table] for name in rows.fieldnames or ()}


def named_model(paths: Sequence[Path]) -> Model:
    """Return the model that a path to such tables names; InputError if none does."""
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            try:
                return _where(file)[1]
            except InputError:
                continue
    raise InputError("no path names the model that was measured: give --model")


def rows_of_tables(path: Path, columns: Columns) -> Iterator[Timing]:
    """Turn one table into timings; InputError names the file and what it lacks."""
    device, model = _where(path)
    names = set(columns)
    if set(ATTENTION) <= names:
        yield from _attention(path, columns, device, model)
    elif set(LAYERS) <= names:
        yield from _dense(path, columns, device)
    elif set(SEQUENCES) <= names:
        yield from _sequences(path, columns, device)
    else:
        yield from _skew(path, columns, device, model)


def _where(path: Path) -> tuple[str, Model]:
    """Find GPU and model in a path, as in profiler/perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1."""
    text = _compact("/".join(path.resolve().parts[-PARTS:]))
    device = next((name for key, name in DEVICES.items() if key in text), None)
    if device is None:
        raise InputError(f"{path}: its path names none of the GPUs {', '.join(DEVICES.values())}")
    found = [model for model in MODELS.values() if _compact(model.name) in text]
    if not found:
        raise InputError(f"{path}: its path names no model that servetwin knows")
    return device, max(found, key=lambda model: len(model.name))


def _compact(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _numbers(path: Path, columns: Columns, names: tuple[str, ...]) -> Iterator[tuple[int, list[int], float]]:
    """Yield row number, the whole numbers of `names` and the seconds of its last column."""
    *counted, time = names
    for i, values in enumerate(zip(*(columns[name] for name in names), strict=True)):
        place = f"{path}: row {i}"
        try:
            counts = [int(str(value)) for value in values[:-1]]
        except ValueError:
            raise InputError(f"{place}: {', '.join(counted)} must be whole numbers") from None
        if min(counts, default=0) < 0:
            raise InputError(f"{place}: {', '.join(counted)} must be >= 0")
        yield i, counts, seconds_of(str(values[-1]), "us", f"{place}: {time}")


def _attention(path: Path, columns: Columns, device: str, model: Model) -> Iterator[Timing]:
    heads = {"heads": model.num_heads, "kv_heads": model.num_kv_heads}
    for _, (chunk, prefix, decodes, kv), seconds in _numbers(path, columns, ATTENTION):
        if not chunk and decodes:
            yield Timing("decode_attention", seconds, SOURCE, device, batch=decodes, kv=kv, **heads)
        elif chunk and not decodes:
            sizes = {"batch": 1, "tokens": chunk, "kv": prefix}
            yield Timing("prefill_attention", seconds, SOURCE, device, **sizes, **heads)
        elif chunk:
            sizes = {"batch": decodes, "kv": kv, "tokens": chunk, "prefix": prefix, "chunks": 1}
            sizes["longest"] = max(kv, prefix + chunk)
            yield Timing("mixed_attention", seconds, SOURCE, device, **sizes, **heads)


def _by_layer(path: Path, columns: Columns, names: tuple[str, ...]) -> dict[str, dict[int, float]]:
    """Return seconds by layer and size."""
    rows = list(_numbers(path, columns, names[1:]))
    found: dict[str, dict[int, float]] = {}
    for i, (size,), seconds in rows:
        found.setdefault(str(columns["layer"][i]), {})[size] = seconds
    return found


def _dense(path: Path, columns: Columns, device: str) -> Iterator[Timing]:
    """Add up the kernels of a layer at each number of tokens that all were measured at."""
    layers = _by_layer(path, columns, LAYERS)
    missing = [name for name in (*IN_LAYER, *ONCE) if name not in layers]
    if missing:
        raise InputError(f"{path}: lacks the layers {', '.join(missing)}")
    common = set.intersection(*(set(layers[name]) for name in (*IN_LAYER, *ONCE)))
    for tokens in sorted(common):
        layer = sum(times * layers[name][tokens] for name, times in IN_LAYER.items())
        yield Timing("dense", layer, SOURCE, device, m=tokens)
        yield Timing("embedding", sum(layers[name][tokens] for name in ONCE), SOURCE, device, m=tokens)


def _sequences(path: Path, columns: Columns, device: str) -> Iterator[Timing]:
    layers = _by_layer(path, columns, SEQUENCES)
    for name, op in (("lm_head", "head"), ("sampler", "sampler")):
        for size, seconds in sorted(layers.get(name, {}).items()):
            yield Timing(op, seconds, SOURCE, device, batch=size)


def _skew(path: Path, columns: Columns, device: str, model: Model) -> Iterator[Timing]:
    heads = {"heads": model.num_heads, "kv_heads": model.num_kv_heads}
    pure = np.flatnonzero([regime == "pure" for regime in columns["regime"]]).tolist()
    rows = {name: [columns[name][i] for i in pure] for name in SKEW[1:]}
    for _, (decodes, longest, mean), seconds in _numbers(path, rows, SKEW[1:]):
        sizes = {"batch": decodes, "kv": mean, "longest": longest}
        yield Timing("skewed_attention", seconds / SKEW_LAUNCHES, SOURCE, device, **sizes, **heads)
