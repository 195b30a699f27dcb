"""A run's metrics as a table shows them: which columns, which way is better, how a number reads."""

from __future__ import annotations

from simulator.config.run import Run

COLUMNS: dict[str, str] = {
    "attainment": "within SLO",
    "request_goodput": "goodput req/s",
    "median_ttft_ms": "TTFT p50 ms",
    "p99_ttft_ms": "TTFT p99 ms",
    "mean_tpot_ms": "TPOT mean ms",
    "p99_itl_ms": "ITL p99 ms",
    "output_throughput": "output tok/s",
    "num_preemptions": "preempted",
    "kv_usage_peak": "KV peak",
}
ACCURACY = "accuracy"
"""A column of its own where somebody gave a score: the user's number, not a result."""


def metric_of(run: Run, name: str) -> float | None:
    """Return a number of the summary, vLLM's keys first, then ours; None if it does not exist."""
    value = run.summary.get(name, run.own.get(name))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def lower_is_better(metric: str) -> bool:
    """Say whether less of a metric is better: latencies, preemptions, failures."""
    good = ("throughput", "goodput", "attainment", "completed", "hit", "output_tokens", "jain", ACCURACY)
    return not any(word in metric for word in good)


def cell(key: str, value: float | str | None) -> str:
    """Return a value of `COLUMNS` as text."""
    if not isinstance(value, float):
        return "n/a"
    if key in ("attainment", "kv_usage_peak"):
        return f"{100 * value:.1f}%"
    if key.startswith("jain"):
        return f"{value:.3f}"
    if key == ACCURACY:
        return f"{value:g}"
    whole = value >= 1000 or (value.is_integer() and not key.endswith("_ms"))
    return f"{value:,.0f}" if whole else f"{value:,.2f}"


def change(metric: str, base: float | None, value: float | None) -> str:
    """Say how far a value is from the baseline's: points of attainment, percent of anything else."""
    if metric == "attainment" and base is not None and value is not None:
        return f"{100 * (value - base):+.1f} pt"
    if base is None or value is None or not base:
        return "" if base == value else "n/a"
    return f"{100 * (value / base - 1):+.1f}%"
