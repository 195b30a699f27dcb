"""Write a finished run's time series as OpenMetrics text under vLLM's names, for Prometheus and Grafana.

Names are those of vLLM 0.33's /metrics. The text has a sample every second of the run, whose start is
the epoch: `promtool tsdb create-blocks-from openmetrics metrics.prom` makes blocks of it, and a dashboard
made for vLLM shows the run in January 1970. Left out: histograms' buckets (their _sum and _count are
there), what no step knows (prefix hits over time), and labels of engine and model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simulator.experiments.plots import span, with_idle
from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable, StepTable

MAX_SAMPLES = 20_000  # of each series; a run of longer is sampled less often
REASONS = ("stop", "length")


def write_metrics(path: Path, requests: RequestTable, steps: StepTable, *, num_blocks: int = 0) -> None:
    """Write the text; the same tables give the same bytes."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in metrics_lines(requests, steps, num_blocks=num_blocks))


def metrics_lines(requests: RequestTable, steps: StepTable, *, num_blocks: int = 0) -> Iterator[str]:
    """Yield the lines: gauges, counters, then sums and counts of latencies, each series in order of time."""
    end = span(requests, steps)
    period = max(1, int(np.ceil(end / MAX_SAMPLES)))
    times = np.arange(0, int(np.ceil(end)) + 1, period)
    for name, values in _gauges(requests, steps, times, num_blocks).items():
        yield f"# TYPE vllm:{name} gauge"
        yield from _samples(f"vllm:{name}", times, values)
    for name, values in _counters(requests, steps, times).items():
        yield f"# TYPE vllm:{name} counter"
        yield from _samples(f"vllm:{name}_total", times, values)
    yield "# TYPE vllm:request_success counter"
    for reason in REASONS:
        rows = np.array([each == reason for each in requests.reason], np.bool_)
        done = requests.finish[rows & (requests.status == COMPLETED)]
        counted = _until(times, done, np.ones(len(done)))
        yield from _samples(f'vllm:request_success_total{{finished_reason="{reason}"}}', times, counted)
    for name, moments, values in _latencies(requests):
        yield f"# TYPE vllm:{name} summary"
        yield from _samples(f"vllm:{name}_sum", times, _until(times, moments, values))
        yield from _samples(f"vllm:{name}_count", times, _until(times, moments, np.ones(len(values))))
    yield "# EOF"


def _gauges(requests: RequestTable, steps: StepTable, times: Ints, num_blocks: int) -> dict[str, Floats]:
    """Return the last value at or before each time, 0 before the first step."""
    if not len(steps):
        return {}
    moment, running, waiting, used = with_idle(requests, steps)
    at = np.searchsorted(moment, times, side="right") - 1
    columns: dict[str, Floats] = {
        "num_requests_running": running.astype(np.float64),
        "num_requests_waiting": waiting.astype(np.float64),
    }
    if num_blocks:
        columns["kv_cache_usage_perc"] = used / num_blocks
    return {name: np.where(at >= 0, values[np.maximum(at, 0)], 0.0) for name, values in columns.items()}


def _counters(requests: RequestTable, steps: StepTable, times: Ints) -> dict[str, Floats]:
    sent = ~np.isnan(requests.scheduled)
    return {
        "num_preemptions": _until(times, steps.start, steps.num_preempted),
        "prompt_tokens": _until(times, requests.scheduled[sent], requests.num_prompt[sent]),
        "prompt_tokens_cached": _until(times, requests.scheduled[sent], requests.num_cached[sent]),
        "generation_tokens": _until(times, steps.end, steps.output_tokens),
    }


def _latencies(requests: RequestTable) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield a latency's name, when each was known, and its seconds."""
    began, done = ~np.isnan(requests.first_token), requests.status == COMPLETED
    first, finish = requests.first_token, requests.finish
    yield "time_to_first_token_seconds", first[began], (first - requests.arrival)[began]
    yield "e2e_request_latency_seconds", finish[done], (finish - requests.arrival)[done]
    queued = ~np.isnan(requests.scheduled)
    waited = (requests.scheduled - requests.arrival)[queued]
    yield "request_queue_time_seconds", requests.scheduled[queued], waited


def _until(times: Ints, moments: Floats, values: Floats | Ints) -> Floats:
    """Return the sum of the values whose moment is at or before each time."""
    order = np.argsort(moments, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(values[order].astype(np.float64))])
    return np.asarray(total[np.searchsorted(moments[order], times, side="right")])


def _samples(name: str, times: Ints, values: Floats) -> Iterator[str]:
    for at, value in zip(times.tolist(), values.tolist(), strict=True):
        yield f"{name} {value:.10g} {at}"
