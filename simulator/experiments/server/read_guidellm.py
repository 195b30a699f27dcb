"""Read GuideLLM's benchmarks.json (0.8.1): one result a benchmark, of which a sweep has several.

Its words are not vLLM's. `inter_token_latency_ms` is one mean a request, weighted by tokens when it is
summed up: its mean is vLLM's mean ITL, its percentiles are nobody else's. `time_per_output_token_ms` counts
the first token's wait in and has no counterpart. `request_latency` is in seconds. vLLM's TPOT comes from the
requests, if the file lists all that it counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.errors import InputError
from simulator.experiments.server.measured_rows import MeasuredRows, Told
from simulator.experiments.server.result_file import count, inner, number, text
from simulator.latency.checked_json import Section
from simulator.metrics.tables import ABORTED, COMPLETED, UNFINISHED

FATES = {"successful": COMPLETED, "incomplete": UNFINISHED, "errored": ABORTED}
LEFT_OUT = (
    "time_per_output_token_ms counts the wait for the first token in: it is not vLLM's TPOT and left out"
)
PARTLY = "the file lists some of its requests only: what needs all of them is null"


def read_guidellm(report: Section) -> Iterator[Told]:
    """Yield each benchmark of a report."""
    benchmarks = report.fields["benchmarks"]
    assert isinstance(benchmarks, list), "recognised by it"
    for i, each in enumerate(benchmarks):
        yield _benchmark(report, Section(each, f"{report.place}: benchmarks[{i}]"))


def _benchmark(report: Section, given: Section) -> Told:
    metrics = inner(given, "metrics")
    totals = inner(metrics, "request_totals")
    stated: dict[str, object] = {
        "backend": "guidellm",
        "endpoint_type": "guidellm",
        "model_id": _model(report, given),
        "label": text(inner(given, "config", "strategy"), "type_"),
        "request_rate": number(inner(given, "config", "strategy"), "rate"),
        "num_prompts": count(totals, "total"),
        "completed": count(totals, "successful"),
        "failed": count(totals, "errored"),
        "duration": number(given, "duration"),
        "total_input_tokens": _total(metrics, "prompt_token_count"),
        "total_output_tokens": _total(metrics, "output_token_count"),
        "request_throughput": _mean(metrics, "requests_per_second"),
        "output_throughput": _mean(metrics, "output_tokens_per_second"),
        "total_token_throughput": _mean(metrics, "tokens_per_second"),
        "mean_itl_ms": _mean(metrics, "inter_token_latency_ms"),
    }
    stated |= _latency(metrics, "time_to_first_token_ms", "ttft", 1.0)
    stated |= _latency(metrics, "request_latency", "e2el", 1e3)
    if not stated["completed"]:
        stated |= {key: None for key in stated if key.endswith("_ms")}
    rows, notes = _rows(given), [LEFT_OUT]
    done = 0 if rows is None else int((rows.status == COMPLETED).sum())
    is_complete = rows is not None and stated["completed"] in (None, done)
    if rows is not None and not is_complete:
        notes.append(PARTLY)
    if cut := count(totals, "incomplete"):
        notes.append(f"{cut} requests were cut off when the benchmark ended; they are not among the failed")
    return Told("guidellm", given.place, "guidellm", stated, rows, is_complete, tuple(notes))


def _model(report: Section, given: Section) -> str | None:
    places = (inner(report, "args"), inner(given, "config", "backend"), inner(report, "args", "backend"))
    return next((name for place in places if (name := text(place, "model")) is not None), None)


def _summary(metrics: Section, name: str) -> Section:
    return inner(metrics, name, "successful")


def _mean(metrics: Section, name: str) -> float | None:
    return number(_summary(metrics, name), "mean")


def _total(metrics: Section, name: str) -> int | None:
    total = number(_summary(metrics, name), "total_sum")
    return None if total is None else round(total)


def _latency(metrics: Section, theirs: str, ours: str, factor: float) -> dict[str, object]:
    found: dict[str, object] = {}
    summary = _summary(metrics, theirs)
    values = {"mean": number(summary, "mean"), "median": number(summary, "median")}
    values["std"] = number(summary, "std_dev")
    values |= {rank: number(inner(summary, "percentiles"), rank) for rank in ("p50", "p90", "p95", "p99")}
    for name, value in values.items():
        found[f"{name}_{ours}_ms"] = None if value is None else factor * value
    return found


def _rows(given: Section) -> MeasuredRows | None:
    lists = inner(given, "requests")
    listed: list[tuple[Section, int]] = []
    for name, kind in FATES.items():
        each = lists.fields.get(name)
        if each is not None and not isinstance(each, list):
            raise InputError(f"{lists.place}: {name} must be a list, got {type(each).__name__}")
        listed += [(Section(r, f"{lists.place}: {name}[{i}]"), kind) for i, r in enumerate(each or ())]
    if not listed:
        return None

    def numbers(key: str, factor: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        values = [number(row, key) for row, _ in listed]
        return np.array([np.nan if value is None else factor * value for value in values])

    start = numbers("request_start_time")
    status = np.array([fate for _, fate in listed], np.int64)
    prompt, output = numbers("prompt_tokens"), numbers("output_tokens")
    if np.isnan(prompt).any() or np.isnan(output[status == COMPLETED]).any():
        return None  # tokens were not counted
    return MeasuredRows(
        ids=[text(row, "request_id") or str(i) for i, (row, _) in enumerate(listed)],
        arrival=start,
        num_prompt=prompt.astype(np.int64),
        num_output=np.nan_to_num(output).astype(np.int64),
        ttft=numbers("time_to_first_token_ms", 1e-3),
        e2e=np.where(status == COMPLETED, numbers("request_latency"), np.nan),
        status=status,
        reason=["" if fate == COMPLETED else name for name, fate in _names(listed)],
    ).in_order()


def _names(listed: list[tuple[Section, int]]) -> Iterator[tuple[str, int]]:
    words = {status: name for name, status in FATES.items()}
    return ((words[status], status) for _, status in listed)
