"""Say which tool wrote a result, by the keys it has, and read it; nothing is guessed from a file's name.

The one exception is AIPerf, which writes aggregates and requests into two files of fixed names in one folder:
both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from simulator.errors import ConfigError, InputError, suggest
from simulator.experiments.server.measured_rows import Told
from simulator.experiments.server.read_aiperf import read_aiperf, read_aiperf_rows
from simulator.experiments.server.read_guidellm import read_guidellm
from simulator.experiments.server.read_vllm import read_sglang, read_vllm
from simulator.experiments.server.result_file import iter_objects
from simulator.latency.checked_json import Section

AGGREGATES, REQUESTS = "profile_export_aiperf.json", "profile_export.jsonl"
OWN = "servetwin"


def _is_guidellm(result: Section) -> bool:
    benchmarks = result.fields.get("benchmarks")
    return isinstance(benchmarks, list) and all(isinstance(e, dict) and "metrics" in e for e in benchmarks)


def _is_aiperf(result: Section) -> bool:
    latency = result.fields.get("request_latency")
    return "aiperf_version" in result.fields or (isinstance(latency, dict) and "unit" in latency)


def _is_aiperf_row(result: Section) -> bool:
    metadata = result.fields.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata


SHAPES: dict[str, Callable[[Section], bool]] = {
    OWN: lambda result: isinstance(result.fields.get("servetwin"), dict),
    "guidellm": _is_guidellm,
    "aiperf": lambda result: _is_aiperf(result) or _is_aiperf_row(result),
    "sglang": lambda result: "mean_e2e_latency_ms" in result.fields or "total_throughput" in result.fields,
    "vllm": lambda result: bool({"total_token_throughput", "output_lens"} & result.fields.keys()),
}
"""Sources in the order in which they are tried; SGLang's arrays are named as vLLM's."""


def source_of(result: Section, wanted: str = "auto") -> str:
    """Return the source that an object comes from, or the wanted one; InputError if it has no known shape."""
    if wanted != "auto":
        if wanted not in SHAPES:
            raise ConfigError(f"--source {wanted[:40]!r}: unknown{suggest(wanted, ['auto', *SHAPES])}")
        if wanted in (OWN, "guidellm") and not SHAPES[wanted](result):
            raise InputError(f"{result.place}: not a result of {wanted}")
        return wanted
    for name, fits in SHAPES.items():
        if fits(result):
            return name
    keys = ", ".join(list(result.fields)[:5])[:120]
    raise InputError(
        f"{result.place}: the result of no known tool ({', '.join(SHAPES)}); its first keys: {keys or 'none'}"
    )


def open_result(path: Path, source: str = "auto") -> tuple[str, Iterator[Section]]:
    """Return the source of a file and its objects; InputError if it is no tool's result."""
    objects = iter_objects(path)
    first = next(objects, None)
    if first is None:
        raise InputError(f"{path}: empty")
    return source_of(first, source), chain([first], objects)


def read_results(path: Path, source: str = "auto") -> Iterator[Told]:
    """Yield every result that a foreign file holds, in its order; our own are not read here."""
    yield from read_objects(path, *open_result(path, source))


def read_objects(path: Path, name: str, objects: Iterator[Section]) -> Iterator[Told]:
    """Yield the results behind the objects of a source."""
    if name == "aiperf":
        first = next(objects)
        yield _aiperf(path, first, chain([first], objects))
        return
    for each in objects:
        if name == "guidellm":
            yield from read_guidellm(each)
        else:
            yield read_sglang(each) if name == "sglang" else read_vllm(each)


def _aiperf(path: Path, first: Section, everything: Iterator[Section]) -> Told:
    """Read one of AIPerf's two files, and the other where it lies beside it."""
    if _is_aiperf_row(first):
        told = read_aiperf_rows(everything, str(path))
        beside = path.with_name(AGGREGATES)
        if path.name != REQUESTS or not beside.is_file():
            return told
        whole = read_aiperf(next(iter_objects(beside)))
    else:
        whole, beside = read_aiperf(first), path.with_name(REQUESTS)
        if path.name != AGGREGATES or not beside.is_file():
            return whole
        told = read_aiperf_rows(iter_objects(beside), str(beside))
    notes = (*whole.notes, *told.notes, f"{AGGREGATES} and {REQUESTS} are read together")
    return Told(whole.tool, str(path), whole.backend, whole.stated, told.rows, notes=notes)
