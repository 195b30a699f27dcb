"""The result block of `vllm bench serve`, in its order and wording, to lay two outputs side by side."""

from __future__ import annotations

_HEAD = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)
_SECTIONS = (
    ("Time to First Token", "TTFT"),
    ("Time per Output Token (excl. 1st token)", "TPOT"),
    ("Inter-token Latency", "ITL"),
    ("End-to-end Latency", "E2EL"),
)
_DRAFTS = (
    ("Acceptance rate (%):", "acceptance_rate"),
    ("Acceptance length:", "acceptance_length"),
    ("Drafts:", "num_drafts"),
    ("Draft tokens:", "draft_tokens"),
    ("Accepted tokens:", "accepted_tokens"),
)
_WHOLE = {"completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens"}
_OPTIONAL = {"max_concurrency", "request_rate", "request_goodput"}


def result_block(summary: dict[str, object]) -> str:
    """Format a summary as vLLM prints it; a value that does not exist is shown as n/a."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    for label, key in _HEAD:
        if summary.get(key) is None and key in _OPTIONAL:
            continue
        lines.append(_line(label, summary.get(key), "" if key in _WHOLE else ".2f"))
    for title, name in _SECTIONS:
        lines.append(f"{title:-^50}")
        for label, key in (("Mean", "mean"), ("Median", "median"), ("P99", "p99")):
            lines.append(_line(f"{label} {name} (ms):", summary.get(f"{key}_{name.lower()}_ms")))
    if "spec_decode_num_drafts" in summary:
        lines.append(f"{'Speculative Decoding':-^50}")
        for label, key in _DRAFTS:
            number = summary[f"spec_decode_{key}"]
            lines.append(_line(label, number, "" if isinstance(number, int) else ".2f"))
    lines.append("=" * 50)
    return "\n".join(lines)


def _line(label: str, value: object, form: str = ".2f") -> str:
    text = format(value, form) if isinstance(value, int | float) else "n/a" if value is None else value
    return f"{label:<40} {text}"
