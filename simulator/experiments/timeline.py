"""The run as a Chrome trace, for ui.perfetto.dev, speedscope or chrome://tracing.

Format: "Trace Event Format" (Chrome project, 2016), JSON, gzipped. Each engine is one track of nested "X"
slices: a step, and inside it what its forward pass computed. Prefill and decode rows share that pass, so
both slices last as long as the step. Counters ("C") are written when they change. Requests overlap, so
each is a nest of async spans ("b", "e") under one id: the request, and its waiting, prefill and decode.
Left out: waiting again after a preemption, which lies inside the decode span.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simulator.experiments.plots import span
from simulator.metrics.tables import STATUS, Floats, Ints, RequestTable, StepTable, of_replica

Event = dict[str, object]
REQUESTS, ENGINE = 1, 2  # process ids, groups of tracks; replica i has ENGINE + i


def write_timeline(
    path: str | Path, requests: RequestTable, steps: StepTable, *, num_blocks: int = 0
) -> None:
    """Write the trace as gzipped JSON; the same tables give the same bytes."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as out:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for i, event in enumerate(trace_events(requests, steps, num_blocks=num_blocks)):
            out.write((",\n" if i else "").encode() + encode(event).encode())
        out.write(b"\n]}\n")


def trace_events(requests: RequestTable, steps: StepTable, *, num_blocks: int = 0) -> Iterator[Event]:
    """Yield the events: names of tracks, then steps, counters and requests. Times in microseconds."""
    n = steps.num_replicas
    engines = {ENGINE + i: f"replica {i}" if n > 1 else "engine" for i in range(n)}
    for place, (pid, name) in enumerate((engines | {REQUESTS: "requests"}).items()):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": place}}
    for i, pid in enumerate(engines):
        own = steps if n == 1 else of_replica(steps, i)
        yield {"ph": "M", "pid": pid, "tid": 1, "name": "thread_name", "args": {"name": "steps"}}
        yield from _slices(own, pid)
        yield from _counters(own, num_blocks // n, pid)
    yield from _spans(requests, span(requests, steps))


def _slices(steps: StepTable, pid: int) -> Iterator[Event]:
    start, end = _nanoseconds(steps.start).tolist(), _nanoseconds(steps.end).tolist()
    fields = ("num_tokens", "num_seqs", "num_sampled", "num_preempted", "evicted_blocks")
    columns = [getattr(steps, name).tolist() for name in fields]
    prefill, decodes, kv = steps.prefill_tokens.tolist(), steps.num_decodes.tolist(), steps.decode_kv.tolist()
    for i, row in enumerate(zip(*columns, strict=True)):
        place = {"ph": "X", "pid": pid, "tid": 1, "ts": start[i] / 1000, "dur": (end[i] - start[i]) / 1000}
        yield {**place, "name": "step", "args": {"step": i, **dict(zip(fields, row, strict=True))}}
        if prefill[i]:
            yield {**place, "name": "prefill", "args": {"tokens": prefill[i]}}
        if decodes[i]:
            yield {**place, "name": "decode", "args": {"sequences": decodes[i], "kv_tokens": kv[i]}}
        if steps.num_preempted[i]:
            mark = {"ph": "i", "s": "t", "pid": pid, "tid": 1, "ts": start[i] / 1000}
            yield {**mark, "name": "preemption", "args": {"sequences": int(steps.num_preempted[i])}}


def _counters(steps: StepTable, num_blocks: int, pid: int) -> Iterator[Event]:
    usage = np.round(steps.used_blocks / num_blocks, 6) if num_blocks else steps.used_blocks
    counters: dict[str, dict[str, Floats | Ints]] = {
        "vllm:num_requests_running": {"requests": steps.num_running},
        "vllm:num_requests_waiting": {"requests": steps.num_waiting},
        "vllm:kv_cache_usage_perc" if num_blocks else "kv_blocks": {"used": usage},
        "batch_tokens": {"decode": steps.num_decodes, "prefill": steps.prefill_tokens},
    }
    when = _nanoseconds(steps.start)
    for name, series in counters.items():
        values = np.stack([column.astype(np.float64) for column in series.values()], axis=1)
        changed = np.append(True, np.any(np.diff(values, axis=0) != 0, axis=1))[: len(steps)]
        for at, row in zip(when[changed].tolist(), values[changed].tolist(), strict=True):
            args = dict(zip(series, row, strict=True))
            yield {"ph": "C", "pid": pid, "name": name, "ts": at / 1000, "args": args}


def _spans(requests: RequestTable, end: float) -> Iterator[Event]:
    finish = np.where(np.isnan(requests.finish), end, requests.finish)
    scheduled = np.where(np.isnan(requests.scheduled), finish, requests.scheduled)
    first = np.where(np.isnan(requests.first_token), finish, requests.first_token)
    moments = zip(
        *(_nanoseconds(t).tolist() for t in (requests.arrival, scheduled, first, finish)), strict=True
    )
    for i, (arrived, began, answered, done) in enumerate(moments):
        phases = (("waiting", arrived, began), ("prefill", began, answered), ("decode", answered, done))
        place = {"cat": "request", "id": f"r{i}", "pid": REQUESTS, "tid": 1}
        about = {
            "status": STATUS[int(requests.status[i])],
            "reason": requests.reason[i],
            "prompt_tokens": int(requests.num_prompt[i]),
            "cached_tokens": int(requests.num_cached[i]),
            "output_tokens": int(requests.num_output[i]),
            "preemptions": int(requests.num_preemptions[i]),
        }
        yield {"ph": "b", **place, "ts": arrived / 1000, "name": requests.id[i], "args": about}
        for name, start, stop in phases:
            if stop > start:
                yield {"ph": "b", **place, "ts": start / 1000, "name": name}
                yield {"ph": "e", **place, "ts": stop / 1000, "name": name}
        yield {"ph": "e", **place, "ts": done / 1000, "name": requests.id[i]}


def _nanoseconds(seconds: Floats) -> Ints:
    """Round to whole nanoseconds, so that start + duration is exactly the next start."""
    return np.rint(seconds * 1e9).astype(np.int64)
