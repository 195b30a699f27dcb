"""Read `vllm bench serve --save-result` and SGLang's bench_serving, whose arrays per request are the same.

vLLM 0.33: the keys are ours, `--save-detailed` adds input_lens, output_lens, ttfts, itls, start_times and
more, in seconds. SGLang 0.5.23 says e2e_latency for e2el and total_throughput for total_token_throughput, and
appends one object a line to its file; when requests were sent is in few of them.
"""

from __future__ import annotations

import re
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.experiments.server.measured_rows import MeasuredRows, Told
from simulator.experiments.server.result_file import (
    NUMBERS,
    checked,
    column,
    count,
    inner,
    number,
    text,
    whole,
)
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section
from simulator.metrics.tables import ABORTED, COMPLETED, Ints

COUNTS = (
    "num_prompts",
    "max_concurrency",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
)
NUMBERS_STATED = (
    "burstiness",
    "duration",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
)
TEXTS = ("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id")
LATENCY = re.compile(r"(mean|median|std|p\d{1,2}(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
DRAFTS = ("acceptance_rate", "acceptance_length", "num_drafts", "draft_tokens", "accepted_tokens")
REASON_LENGTH = 120


def read_vllm(result: Section) -> Told:
    """Read one result of `vllm bench serve`."""
    stated: dict[str, object] = {name: text(result, name) for name in TEXTS}
    stated |= _stated(result)
    drafts = {f"spec_decode_{name}": number(result, f"spec_decode_{name}") for name in DRAFTS}
    if all(value is not None for value in drafts.values()):
        whole = ("num_drafts", "draft_tokens", "accepted_tokens")
        stated |= drafts | {f"spec_decode_{name}": count(result, f"spec_decode_{name}") for name in whole}
    rows = read_rows(result)
    return Told("vllm bench serve", result.place, "vllm", stated, rows)


def read_sglang(result: Section) -> Told:
    """Read one result of `python -m sglang.bench_serving`."""
    stated = _stated(result)
    if (total := number(result, "total_throughput")) is not None:
        stated["total_token_throughput"] = total
    backend = text(result, "backend") or "sglang"
    model = text(inner(result, "server_info"), "model_path")
    stated |= {"backend": backend, "endpoint_type": backend, "label": text(result, "tag"), "model_id": model}
    rows = read_rows(result)
    notes: tuple[str, ...] = ()
    if rows is not None and not rows.has_times:
        notes = ("when each request was sent is not in the file: no requests.csv",)
    return Told("sglang.bench_serving", result.place, backend, stated, rows, notes=notes)


def _stated(result: Section) -> dict[str, object]:
    found: dict[str, object] = {name: count(result, name) for name in COUNTS}
    found |= {name: number(result, name) for name in NUMBERS_STATED}
    for key in result.fields:
        if (match := LATENCY.fullmatch(key)) is not None:
            found[f"{match[1]}_{match[2].replace('e2e_latency', 'e2el')}_ms"] = number(result, key)
    rate = result.fields.get("request_rate")
    found["request_rate"] = "inf" if rate in ("inf", float("inf")) else None
    if not isinstance(rate, str) and rate != float("inf"):
        found["request_rate"] = number(result, "request_rate")
    if found["completed"] == 0:  # both tools then write zeros, which nobody measured
        found |= {key: None for key in found if key.endswith("_ms")}
    return found


def read_rows(result: Section) -> MeasuredRows | None:
    """Read the arrays per request, None where the file has only aggregates."""
    output = column(result, "output_lens")
    if output is None:
        return None
    n = len(output)
    ttft, start = column(result, "ttfts", n), column(result, "start_times", n)
    prompt = column(result, "input_lens", n)
    sums, gaps = _gaps(result, n, output > 0)
    latency = column(result, "latencies", n)
    if latency is None and ttft is not None and sums is not None:
        latency = ttft + sums
    if prompt is None or ttft is None or latency is None:
        raise InputError(f"{result.place}: output_lens without input_lens, ttfts and itls: was it cut?")
    errors = result.fields.get("errors")
    texts = errors if isinstance(errors, list) and len(errors) == n else [""] * n
    status, reason = _fates(output, texts)
    return MeasuredRows(
        ids=list(map(str, range(n))),
        arrival=np.full(n, np.nan) if start is None else start,
        num_prompt=whole(prompt, f"{result.place}: input_lens"),
        num_output=whole(output, f"{result.place}: output_lens"),
        ttft=np.where(status == COMPLETED, ttft, np.nan),
        e2e=np.where(status == COMPLETED, latency, np.nan),
        status=status,
        reason=reason,
        gaps=gaps,
    ).in_order()


def _gaps(result: Section, n: int, done: NDArray[np.bool_]) -> tuple[Floats | None, Floats | None]:
    """Return each request's sum of gaps, and those of completed ones pooled."""
    lists = result.fields.get("itls")
    if lists is None:
        return None, None
    place = f"{result.place}: itls"
    if not isinstance(lists, list) or len(lists) != n or not all(isinstance(each, list) for each in lists):
        raise InputError(f"{place} must be {n} lists, one a request")
    for i, each in enumerate(lists):
        if not set(map(type, each)) <= NUMBERS:
            checked(each, f"{place}[{i}]")
    pooled = checked(list(chain.from_iterable(lists)), place)
    sums = np.array([float(sum(each)) for each in lists])
    return sums, pooled[np.repeat(done, [len(each) for each in lists])]


def _fates(output: Floats, errors: list[object]) -> tuple[Ints, list[str]]:
    """Say of each request whether it completed, and why not: the last line of its error."""
    status = np.full(len(output), COMPLETED, np.int64)
    reasons = []
    for i, (tokens, error) in enumerate(zip(output.tolist(), errors, strict=True)):
        told = (
            error.strip().splitlines()[-1][:REASON_LENGTH] if isinstance(error, str) and error.strip() else ""
        )
        if tokens and not told:
            reasons.append("")
            continue
        status[i] = ABORTED
        reasons.append(told or "no output")
    return status, reasons
