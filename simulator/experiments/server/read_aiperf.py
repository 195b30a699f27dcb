"""Read AIPerf (0.13): profile_export_aiperf.json with aggregates, profile_export.jsonl with requests.

AIPerf's `inter_token_latency` is a request's mean, which vLLM calls TPOT; vLLM's ITL, one number a gap, is
AIPerf's `inter_chunk_latency`. Every metric carries its unit, which is read, not assumed. Requests of the
warm-up phase are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simulator.errors import InputError
from simulator.experiments.server.measured_rows import MeasuredRows, Told
from simulator.experiments.server.result_file import checked, inner, number, text
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section
from simulator.metrics.tables import ABORTED, COMPLETED

TOOL = "aiperf"
LATENCIES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2el",
}
COUNTS = {
    "request_count": "completed",
    "error_request_count": "failed",
    "total_isl": "total_input_tokens",
    "total_osl": "total_output_tokens",
}
RATES = {
    "request_throughput": "request_throughput",
    "goodput": "request_goodput",
    "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
}
STATISTICS = {"avg": "mean", "std": "std", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}  # one unit in ms
MAX_STAMP = 1e20  # ns since 1970


def read_aiperf(result: Section) -> Told:
    """Read the aggregates of one benchmark."""
    config = inner(result, "input_config")
    load = inner(config, "loadgen")
    stated: dict[str, object] = {
        "backend": TOOL,
        "endpoint_type": text(inner(config, "endpoint"), "type") or TOOL,
        "model_id": _model(inner(config, "endpoint")),
        "date": text(result, "start_time"),
        "request_rate": number(load, "request_rate"),
        "max_concurrency": number(load, "concurrency"),
    }
    for theirs, ours in COUNTS.items():
        value = number(inner(result, theirs), "avg")
        stated[ours] = None if value is None else round(value)
    stated |= {ours: number(inner(result, theirs), "avg") for theirs, ours in RATES.items()}
    duration = inner(result, "benchmark_duration")
    seconds = number(duration, "avg")
    stated["duration"] = None if seconds is None else seconds * _ms(duration) / 1e3
    for theirs, ours in LATENCIES.items():
        summary = inner(result, theirs)
        for statistic, name in STATISTICS.items():
            if (value := number(summary, statistic)) is not None:
                stated[f"{name}_{ours}_ms"] = value * _ms(summary)
        stated[f"median_{ours}_ms"] = stated.get(f"p50_{ours}_ms")
    notes = () if result.fields.get("was_cancelled") is not True else ("the benchmark was cancelled",)
    return Told(TOOL, result.place, TOOL, stated, notes=notes)


def _model(endpoint: Section) -> str | None:
    names = endpoint.fields.get("model_names")
    return names[0][:200] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _ms(metric: Section) -> float:
    """Return how many ms a metric's unit has; InputError for a unit of something else."""
    unit = text(metric, "unit")
    if unit not in MS:
        raise InputError(f"{metric.place}: unit must be one of {', '.join(MS)}, got {unit!r:.40}")
    return MS[unit]


def read_aiperf_rows(lines: Iterable[Section], file: str) -> Told:
    """Read the requests of one benchmark, one a line."""
    found, warmup = _Columns(), 0
    for line in lines:
        metadata = line.section("metadata")
        if metadata.fields.get("benchmark_phase", "profiling") != "profiling":
            warmup += 1
            continue
        found.add(line, metadata)
    if not found.start:
        raise InputError(f"{file}: holds no request of the profiling phase")
    notes = (f"{warmup} requests of the warm-up phase are left out",) if warmup else ()
    stated: dict[str, object] = {"backend": TOOL, "endpoint_type": TOOL}
    return Told(TOOL, file, TOOL, stated, found.rows(), notes=notes)


class _Columns:
    """The lines read so far, as columns."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.start: list[int] = []  # ns since 1970: too large for a float's digits
        self.numbers: list[tuple[float, float, float, float]] = []  # prompt, output, ttft and e2e in s
        self.reason: list[str] = []
        self.gaps: list[Floats] = []
        self.has_gaps = True

    def add(self, line: Section, metadata: Section) -> None:
        metrics, error = inner(line, "metrics"), line.fields.get("error")
        stamp = metadata.number("request_start_ns", high=MAX_STAMP)
        exact = metadata.fields["request_start_ns"]
        self.start.append(exact if isinstance(exact, int) else int(stamp))
        self.ids.append(text(metadata, "x_request_id") or str(len(self.ids)))
        failed = error is not None or metadata.fields.get("was_cancelled") is True
        why = (text(Section(error, line.place), "type") if isinstance(error, dict) else None) or "error"
        prompt, output = (
            _value(metrics, name) for name in ("input_sequence_length", "output_sequence_length")
        )
        ttft, e2e = (_seconds(metrics, name) for name in ("time_to_first_token", "request_latency"))
        if not failed and (prompt is None or output is None or e2e is None):
            raise InputError(f"{line.place}: a completed request without its lengths or request_latency")
        self.reason.append(why if failed else "")
        missing = float("nan")
        error_length = _value(metrics, "error_isl")
        length = prompt if prompt is not None else error_length if error_length is not None else 0.0
        times = (missing if ttft is None else ttft, missing if e2e is None or failed else e2e)
        self.numbers.append((length, 0.0 if output is None else output, *times))
        if not failed:
            self._add_gaps(inner(metrics, "inter_chunk_latency"), output or 0.0)

    def _add_gaps(self, metric: Section, output: float) -> None:
        values = metric.fields.get("value")
        if isinstance(values, list):
            self.gaps.append(checked(values, metric.place) * _ms(metric) / 1e3)
        elif output > 1:
            self.has_gaps = False

    def rows(self) -> MeasuredRows:
        numbers = np.array(self.numbers)
        first = min(self.start)
        return MeasuredRows(
            ids=self.ids,
            arrival=np.array([(stamp - first) / 1e9 for stamp in self.start]),
            num_prompt=numbers[:, 0].astype(np.int64),
            num_output=numbers[:, 1].astype(np.int64),
            ttft=numbers[:, 2],
            e2e=numbers[:, 3],
            status=np.array([ABORTED if why else COMPLETED for why in self.reason], np.int64),
            reason=self.reason,
            gaps=np.concatenate([np.zeros(0), *self.gaps]) if self.has_gaps else None,
        ).in_order()


def _value(metrics: Section, name: str) -> float | None:
    return number(inner(metrics, name), "value")


def _seconds(metrics: Section, name: str) -> float | None:
    metric = inner(metrics, name)
    value = number(metric, "value")
    return None if value is None else value * _ms(metric) / 1e3
