"""A run in numbers, with the keys and definitions of `vllm bench serve` (0.33).

TPOT = (E2E - TTFT) / (output tokens - 1) over requests with more than one; ITL pools every gap of every
completed request; throughput is over the makespan, first arrival to last completion; goodput counts requests
that meet every SLO. Times in seconds, `_ms` in reports. An empty sample is None, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.percentiles import weighted_percentiles
from simulator.metrics.tables import COMPLETED, STATUS, Floats, Ints, RequestTable, StepTable
from simulator.metrics.warmup import WarmUp, num_warmup

SLOS = ("ttft", "tpot", "e2el")
Slo = Mapping[str, float | Floats]
"""Limits in seconds by metric: one for all requests, or one per row of the request table (inf: none)."""
Bools = NDArray[np.bool_]


class Latencies(NamedTuple):
    """Latencies in seconds of the completed requests that count, one entry per request."""

    rows: Ints  # their rows in the request table, in order of completion
    ttft: Floats
    e2el: Floats
    tpot: Floats  # NaN where a request has one output token
    window: tuple[float, float]  # makespan that throughput refers to


def latencies(requests: RequestTable, warmup: WarmUp = "none") -> Latencies:
    """Compute per-request latencies after dropping the warm-up, the first completions by `warmup`."""
    done = np.flatnonzero(requests.status == COMPLETED)
    done = done[np.argsort(requests.finish[done], kind="stable")]
    dropped = num_warmup(warmup, (requests.first_token - requests.arrival)[done])
    start = float(requests.arrival.min()) if len(requests) else 0.0
    if dropped:
        start = float(requests.finish[done[dropped - 1]])
    kept = done[dropped:]
    end = float(requests.finish[kept[-1]]) if len(kept) else start
    ttft = requests.first_token[kept] - requests.arrival[kept]
    e2el = requests.finish[kept] - requests.arrival[kept] + requests.pre_delay[kept]
    gaps = requests.num_output[kept] - 1
    decoding = requests.finish[kept] - requests.first_token[kept]
    tpot = np.where(gaps > 0, decoding / np.maximum(gaps, 1), np.nan)
    return Latencies(kept, ttft, e2el, tpot, (start, end))


def meets_slo(measured: Latencies, slo: Slo) -> Bools:
    """Say which requests meet every SLO (met when equal); TPOT counts as 0 with one token."""
    good = np.ones(len(measured.rows), dtype=np.bool_)
    for name, limit in slo.items():
        limits = np.asarray(limit, np.float64)
        if name not in SLOS or not (limits >= 0).all():
            raise ValueError(f"an SLO is one of {', '.join(SLOS)} and >= 0 s, got {name}: {limit}")
        value: Floats = getattr(measured, name)
        good &= np.nan_to_num(value, nan=0.0) <= (limits[measured.rows] if limits.ndim else limits)
    return good


def summarize(
    requests: RequestTable,
    steps: StepTable,
    gaps: tuple[Floats, Ints],
    *,
    slo: Slo | None = None,
    warmup: WarmUp = "none",
    ranks: list[float] | None = None,
    method: str = "linear",
) -> dict[str, object]:
    """Return the summary with vLLM's keys. `gaps` are the ITLs."""
    ranks = ranks or [99]
    measured = latencies(requests, warmup)
    kept = measured.rows
    start, end = measured.window
    duration = end - start
    per_second = 1.0 / duration if duration > 0 else 0.0
    inputs, outputs = int(requests.num_prompt[kept].sum()), int(requests.num_output[kept].sum())
    summary: dict[str, object] = {
        "duration": duration,
        "completed": len(kept),
        "failed": int((requests.status != COMPLETED).sum()),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(kept) * per_second,
        "request_goodput": int(meets_slo(measured, slo).sum()) * per_second if slo else None,
        "output_throughput": outputs * per_second,
        "total_token_throughput": (inputs + outputs) * per_second,
        "max_output_tokens_per_s": _peak_tokens(steps),
        "max_concurrent_requests": _peak_requests(requests, kept),
        "rtfx": 0.0,
    }
    tpot = measured.tpot[~np.isnan(measured.tpot)]
    for name, values in (("ttft", measured.ttft), ("tpot", tpot), ("e2el", measured.e2el)):
        summary |= _moments(name, values, np.ones(len(values), dtype=np.int64), ranks, method)
    summary |= _moments("itl", *gaps, ranks, method)
    return summary


def counts(requests: RequestTable) -> dict[str, int]:
    """Return how many requests were injected and what became of them; the parts add up."""
    found = {name: int((requests.status == i).sum()) for i, name in enumerate(STATUS)}
    injected = len(requests)
    assert injected == sum(found.values()), f"{injected} requests injected, {found}"
    return {"injected": injected, **found}


def _moments(name: str, values: Floats, weights: Ints, ranks: list[float], method: str) -> dict[str, object]:
    n = int(weights.sum())
    if n == 0:
        keys = ["mean", "median", "std", *(f"p{rank:g}" for rank in ranks)]
        return {f"{key}_{name}_ms": None for key in keys}
    mean = float((values * weights).sum() / n)
    std = float(np.sqrt((weights * (values - mean) ** 2).sum() / n))
    median, *points = weighted_percentiles(values, weights, [50, *ranks], method)
    found = {"mean": mean, "median": median, "std": std}
    found |= {f"p{rank:g}": value for rank, value in zip(ranks, points, strict=True)}
    return {f"{key}_{name}_ms": 1e3 * value for key, value in found.items() if value is not None}


def _peak_tokens(steps: StepTable) -> float:
    """Most output tokens in one whole second of the run's clock."""
    if not len(steps):
        return 0.0
    _, second = np.unique(steps.end.astype(np.int64), return_inverse=True)
    return float(np.bincount(second, weights=steps.output_tokens).max())


def _peak_requests(requests: RequestTable, kept: Ints) -> int:
    """Most requests that were in the system during one and the same second."""
    if not len(kept):
        return 0
    first = requests.arrival[kept].astype(np.int64)
    last = requests.finish[kept].astype(np.int64)
    _, second = np.unique(np.concatenate([first, last + 1]), return_inverse=True)
    change = np.bincount(second, weights=np.repeat([1, -1], len(kept)))
    return int(np.cumsum(change).max())
