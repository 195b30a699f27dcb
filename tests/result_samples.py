"""Results as four benchmark tools write them, of three requests whose numbers one can check by hand.

Request 0 is sent at 0 s: 100 prompt tokens, 3 output tokens, TTFT 0.2 s, gaps 0.1, 0.3 s, so TPOT 0.2 s and
E2E 0.6 s. Request 1 is sent at 1 s: 50 prompt tokens, 1 output token, TTFT and E2E 0.4 s, no TPOT. Request 2
is sent at 2 s and fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EPOCH = 1_759_813_207.5  # s


def vllm(**changes: Any) -> dict[str, Any]:
    """A result of `vllm bench serve --save-result --save-detailed`, TTFT alone among the latencies."""
    return {
        "date": "20261101-101500",
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": "meta-llama/Llama-3.1-8B",
        "tokenizer_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": 3,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.5,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 150,
        "total_output_tokens": 4,
        "request_throughput": 0.8,
        "request_goodput": None,
        "output_throughput": 1.6,
        "total_token_throughput": 61.6,
        "max_output_tokens_per_s": 3.0,
        "max_concurrent_requests": 1,
        "rtfx": 0.0,
        "mean_ttft_ms": 300.0,
        "median_ttft_ms": 300.0,
        "std_ttft_ms": 100.0,
        "p99_ttft_ms": 398.0,
        "input_lens": [100, 50, 70],
        "output_lens": [3, 1, 0],
        "ttfts": [0.2, 0.4, 0.0],
        "itls": [[0.1, 0.3], [], []],
        "start_times": [500.0, 501.0, 502.0],
        "generated_texts": ["a b c", "d", ""],
        "errors": ["", "", "Traceback\n  File x\nConnectionError: <b>gone</b>"],
    } | changes


def without_rows(result: dict[str, Any]) -> dict[str, Any]:
    """The same without --save-detailed."""
    return {key: value for key, value in result.items() if not isinstance(value, list)}


def sglang(**changes: Any) -> dict[str, Any]:
    """A line of `python -m sglang.bench_serving --output-details`."""
    return {
        "tag": "first",
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 8,
        "duration": 2.5,
        "completed": 2,
        "total_input_tokens": 150,
        "total_output_tokens": 4,
        "total_output_tokens_retokenized": 4,
        "request_throughput": 0.8,
        "input_throughput": 60.0,
        "output_throughput": 1.6,
        "total_throughput": 61.6,
        "mean_e2e_latency_ms": 500.0,
        "median_e2e_latency_ms": 500.0,
        "std_e2e_latency_ms": 100.0,
        "p99_e2e_latency_ms": 598.0,
        "mean_ttft_ms": 300.0,
        "median_ttft_ms": 300.0,
        "p99_ttft_ms": 398.0,
        "mean_tpot_ms": 200.0,
        "mean_itl_ms": 200.0,
        "max_itl_ms": 300.0,
        "concurrency": 0.4,
        "accept_length": None,
        "input_lens": [100, 50, 70],
        "output_lens": [3, 1, 0],
        "ttfts": [0.2, 0.4, 0.0],
        "itls": [[0.1, 0.3], [], []],
        "errors": ["", "", "timeout"],
    } | changes


def _summary(mean: float, n: int, **given: float) -> dict[str, Any]:
    percentiles = {f"p{rank}": mean for rank in ("001", "01", "05", "10", "25", "50", "75", "90", "95", "99")}
    found = {"mean": mean, "median": mean, "mode": mean, "variance": 0.0, "std_dev": 0.0, "count": n}
    return {
        "successful": found | {"total_sum": mean * n, "percentiles": percentiles} | given,
        "errored": None,
    }


def guidellm(listed: int = 2, **changes: Any) -> dict[str, Any]:
    """A GuideLLM report of one benchmark that lists so many of its two completed requests."""
    rows = [
        _guidellm_row("g0", 0.0, 0.6, 200.0, 200.0, 100, 3),
        _guidellm_row("g1", 1.0, 0.4, 400.0, None, 50, 1),
    ]
    metrics = {
        "request_totals": {"successful": 2, "incomplete": 1, "errored": 1, "total": 4},
        "requests_per_second": _summary(0.8, 2),
        "request_concurrency": _summary(0.4, 2),
        "request_latency": _summary(0.5, 2),
        "prompt_token_count": _summary(75.0, 2),
        "output_token_count": _summary(2.0, 2),
        "time_to_first_token_ms": _summary(300.0, 2),
        "time_per_output_token_ms": _summary(250.0, 4),
        "inter_token_latency_ms": _summary(200.0, 2),
        "output_tokens_per_second": _summary(1.6, 4),
        "tokens_per_second": _summary(61.6, 154),
    }
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"strategy": {"type_": "constant", "rate": 1.0}, "backend": {"model": "Qwen/Qwen3-8B"}},
        "scheduler_metrics": {},
        "metrics": metrics,
        "requests": {
            "successful": rows[:listed],
            "incomplete": [],
            "errored": [_guidellm_row("g2", 2.0, None, None, None, 70, None)],
            "total": None,
        },
        "duration": 2.5,
    } | changes
    return {"metadata": {"version": 1}, "args": {}, "benchmarks": [benchmark]}


def _guidellm_row(
    name: str, start: float, e2e: float | None, ttft: float | None, itl: float | None, *tokens: int | None
) -> dict[str, Any]:
    return {
        "type_": "generative_request_stats",
        "request_id": name,
        "output": "text",
        "request_start_time": EPOCH + start,
        "request_latency": e2e,
        "prompt_tokens": tokens[0],
        "output_tokens": tokens[1],
        "time_to_first_token_ms": ttft,
        "inter_token_latency_ms": itl,
    }


def aiperf(**changes: Any) -> dict[str, Any]:
    """AIPerf's profile_export_aiperf.json."""

    def metric(unit: str, avg: float, **more: float) -> dict[str, Any]:
        return {"unit": unit, "avg": avg} | more

    return {
        "schema_version": "1.0",
        "aiperf_version": "0.13.0",
        "request_throughput": metric("requests/sec", 0.8),
        "request_latency": metric("ms", 500.0, p50=500.0, p90=580.0, p99=598.0, std=100.0),
        "request_count": metric("requests", 2),
        "time_to_first_token": metric("ms", 300.0, p50=300.0, p99=398.0, std=100.0),
        "inter_token_latency": metric("ms", 200.0, p50=200.0, p99=200.0, std=0.0),
        "output_token_throughput": metric("tokens/sec", 1.6),
        "total_token_throughput": metric("tokens/sec", 61.6),
        "goodput": metric("requests/sec", 0.4),
        "total_isl": metric("tokens", 150),
        "total_osl": metric("tokens", 4),
        "error_request_count": metric("requests", 1),
        "benchmark_duration": metric("sec", 2.5),
        "input_config": {
            "endpoint": {"model_names": ["Qwen/Qwen3-8B"], "type": "chat"},
            "loadgen": {"request_rate": 1.0, "concurrency": None},
        },
        "was_cancelled": False,
        "error_summary": [],
        "start_time": "2026-11-01T10:15:00",
    } | changes


def aiperf_rows() -> list[dict[str, Any]]:
    """AIPerf's profile_export.jsonl: a warm-up request, then the three."""
    first = int(EPOCH * 1e9)
    rows = [
        _aiperf_row("a0", first, 100, 3, 200.0, 600.0, [100.0, 300.0]),
        _aiperf_row("a1", first + 10**9, 50, 1, 400.0, 400.0, []),
    ]
    failed = _aiperf_row("a2", first + 2 * 10**9, 0, 0, 0.0, 0.0, [])
    failed["metrics"] = {"error_isl": {"value": 70, "unit": "tokens"}}
    failed["error"] = {"code": 500, "type": "InternalServerError", "message": "x"}
    warmup = _aiperf_row("w", first - 10**9, 9, 9, 9.0, 9.0, [])
    warmup["metadata"]["benchmark_phase"] = "warmup"
    return [warmup, *rows, failed]


def _aiperf_row(
    name: str, start: int, prompt: int, output: int, ttft: float, e2e: float, gaps: list[float]
) -> dict[str, Any]:
    metadata = {"session_num": 0, "x_request_id": name, "request_start_ns": start, "was_cancelled": False}
    return {
        "metadata": metadata | {"benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
            "time_to_first_token": {"value": ttft, "unit": "ms"},
            "request_latency": {"value": e2e, "unit": "ms"},
            "inter_chunk_latency": {"value": gaps, "unit": "ms"},
        },
        "error": None,
    }


def write(path: Path, *objects: object) -> Path:
    """Write one object as it is, several one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, objects)) + "\n", encoding="utf-8")
    return path
