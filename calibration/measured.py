"""Read what a real server measured: who asked what and when, how long it took, how the server was set up.

Two kinds of folder are known by their files: `requests.jsonl` with `meta.json` (LLMServingSim runs of vLLM:
monotonic stamps of the server), and `per_request.csv` with `exp-config.json` (client send times, server
spans). A third kind is one file: the result of `vllm bench serve --save-detailed`. Which blocks prompts share
is in none of them: a trace of the same requests in the same order has it (`trace`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.experiments.server.read_vllm import read_rows
from simulator.experiments.server.result_file import iter_objects
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section, read_json
from simulator.metrics.tables import COMPLETED
from simulator.workload.traces import read_trace
from simulator.workload.workload import Ints, Workload

STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
CSV_COLUMNS = ("start_s", "prompt_tokens", "completion_tokens", "ttft_s", "e2e_s")
ENGINE = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")  # as vLLM's arguments name them


@dataclass(frozen=True)
class MeasuredRun:
    """A real run, one row a request in order of arrival; seconds and tokens, times from the first arrival.

    `tpot` is NaN for answers of one token, `queue` (until first scheduled) NaN where nobody noted it.
    `engine` holds what is known of the server: model, max_num_seqs, max_num_batched_tokens, max_model_len,
    num_gpu_blocks, block_size, gpu_memory_utilization, enable_prefix_caching, async_scheduling. `series` are
    columns by second: t, running, waiting, kv_cache_pct and the like; empty if there are none.
    """

    name: str
    source: str
    arrival: Floats
    num_prompt: Ints
    num_output: Ints
    ttft: Floats
    e2e: Floats
    queue: Floats
    engine: dict[str, object]
    series: dict[str, Floats] = field(default_factory=dict)
    workload: Workload | None = None  # with prefix blocks, where a trace gave them
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def tpot(self) -> Floats:
        """Mean time of a token after the first, NaN where there is none."""
        gaps = np.where(self.num_output > 1, self.num_output - 1, np.nan)
        return np.asarray((self.e2e - self.ttft) / gaps)

    def requests(self) -> Workload:
        """Return the requests as a workload: prefix blocks if known, else lengths only."""
        if self.workload is not None:
            return self.workload
        return Workload(self.arrival, self.num_prompt, self.num_output, self.num_output, source=self.source)


def read_measured(path: Path, trace: Path | None = None) -> MeasuredRun:
    """Read a folder or a bench result; `trace` has the prefix blocks of the same requests in their order."""
    if not path.is_dir():
        run = _bench_result(path)
    elif (path / "requests.jsonl").exists():
        run = _stamped_folder(path)
    elif (path / "per_request.csv").exists():
        run = _spans_folder(path)
    else:
        raise InputError(
            f"{path}: holds no measured run: neither requests.jsonl (with meta.json) nor per_request.csv"
        )
    _check(run)
    return run if trace is None else _with_blocks(run, trace)


def _check(run: MeasuredRun) -> None:
    if not len(run):
        raise InputError(f"{run.source}: holds no request")
    for name in ("arrival", "ttft", "e2e"):
        column: Floats = getattr(run, name)
        if not (np.isfinite(column) & (column >= 0)).all():
            at = int(np.argmin(np.isfinite(column) & (column >= 0)))
            raise InputError(f"{run.source}: request {at}: {name} must be finite and >= 0, got {column[at]}")
    for name in ("num_prompt", "num_output"):
        counts: Ints = getattr(run, name)
        if (counts < 1).any():
            raise InputError(f"{run.source}: request {int(np.argmin(counts))}: {name} must be >= 1")


def _sorted(run: MeasuredRun) -> MeasuredRun:
    """Put the rows in order of arrival, which runs from 0."""
    rows = np.argsort(run.arrival, kind="stable")
    columns = ("arrival", "num_prompt", "num_output", "ttft", "e2e", "queue")
    ordered = replace(run, **{name: getattr(run, name)[rows] for name in columns})
    return replace(ordered, arrival=ordered.arrival - ordered.arrival[0]) if len(run) else ordered


def _stamped_folder(folder: Path) -> MeasuredRun:
    """Read requests.jsonl and meta.json. TTFT and E2E count from `queued_ts`, as the server's own do."""
    path = folder / "requests.jsonl"
    rows = list(_json_lines(path))
    numbers = {name: np.array([row.number(name) for row in rows]) for name in ("arrival_time", *STAMPS)}
    queued = numbers["queued_ts"]
    return _sorted(
        MeasuredRun(
            name=folder.name,
            source=str(path),
            arrival=numbers["arrival_time"],
            num_prompt=_whole([row.integer("input_toks") for row in rows]),
            num_output=_whole([row.integer("output_toks") for row in rows]),
            ttft=numbers["first_token_ts"] - queued,
            e2e=numbers["last_token_ts"] - queued,
            queue=numbers["scheduled_ts"] - queued,
            engine=_engine_of_meta(folder / "meta.json"),
            series=_series(folder / "timeseries.csv"),
        )
    )


def _json_lines(path: Path) -> Iterator[Section]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield Section(json.loads(line), f"{path}:{number}")
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON: {str(error)[:80]}") from None


def _engine_of_meta(path: Path) -> dict[str, object]:
    meta = read_json(path, "the description of a run")
    given = meta.section("engine_kwargs").fields
    engine: dict[str, object] = {name: given.get(name) for name in ("model", *ENGINE)}
    cache = meta.fields.get("kv_cache")
    if isinstance(cache, dict):
        names = ("num_gpu_blocks", "block_size", "gpu_memory_utilization", "enable_prefix_caching")
        engine |= {name: cache[name] for name in names if name in cache}
    resolved = meta.fields.get("resolved_config")
    scheduler = resolved.get("scheduler_config") if isinstance(resolved, dict) else None
    if isinstance(scheduler, dict) and "async_scheduling" in scheduler:
        engine["async_scheduling"] = scheduler["async_scheduling"]
    for name in ("vllm_version", "dataset_path"):
        if name in meta.fields:
            engine[name] = meta.text(name)
    return engine


def _spans_folder(folder: Path) -> MeasuredRun:
    """Read per_request.csv and exp-config.json; the spans are the server's, `start_s` the client's."""
    path = folder / "per_request.csv"
    table = _csv_columns(path)
    for name in CSV_COLUMNS:
        if name not in table:
            raise InputError(f"{path}: lacks the column {name!r}")
    config = read_json(folder / "exp-config.json", "the description of a run").fields
    none = np.full(len(table["start_s"]), np.nan)
    return _sorted(
        MeasuredRun(
            name=folder.name,
            source=str(path),
            arrival=table["start_s"],
            num_prompt=_whole(table["prompt_tokens"]),
            num_output=_whole(table["completion_tokens"]),
            ttft=table["ttft_s"],
            e2e=table["e2e_s"],
            queue=table.get("queue_s", none),
            engine={name: config.get(name) for name in ("model", *ENGINE)},
        )
    )


def _bench_result(path: Path) -> MeasuredRun:
    """Read what `vllm bench serve --save-detailed` wrote: client-side times; failed requests are left out."""
    result = next(iter_objects(path))
    if "output_lens" not in result.fields or "start_times" not in result.fields:
        raise InputError(f"{path}: lacks output_lens or start_times: was --save-detailed given?")
    rows = read_rows(result)
    assert rows is not None, "it has output_lens"
    done = rows.take(np.flatnonzero(rows.status == COMPLETED))
    left_out = len(rows) - len(done)
    run = MeasuredRun(
        name=path.stem,
        source=str(path),
        arrival=done.arrival,
        num_prompt=done.num_prompt,
        num_output=done.num_output,
        ttft=done.ttft,
        e2e=done.e2e,
        queue=np.full(len(done), np.nan),
        engine={"model": result.fields.get("model_id")},
        notes=(f"{left_out} failed requests are left out",) if left_out else (),
    )
    return _sorted(run)


def _whole(values: object) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.float64).astype(np.int64)


def _series(path: Path) -> dict[str, Floats]:
    return _csv_columns(path) if path.exists() else {}


def _csv_columns(path: Path) -> dict[str, Floats]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    try:
        return {name: np.array([float(row[name]) for row in rows]) for name in (rows[0] if rows else ())}
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: not a table of numbers: {str(error)[:80]}") from None


def _with_blocks(run: MeasuredRun, trace: Path) -> MeasuredRun:
    """Take each request's prefix blocks from a trace that has the same prompts in the same order."""
    blocks = read_trace(trace)
    if len(blocks) != len(run) or (blocks.num_prompt != run.num_prompt).any():
        raise InputError(f"{trace}: not the trace of {run.source}: its prompts differ in number or length")
    workload = replace(blocks, arrival=run.arrival, num_output=run.num_output, max_tokens=run.num_output)
    return replace(run, workload=workload)
