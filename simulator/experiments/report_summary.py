"""What a summary says, as the parts of a report: warnings, key figures, percentiles.

A summary has the keys of `vllm bench serve` and, under "servetwin", the product's own. A missing key leaves
its place empty, so that the results of other tools can be shown too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from simulator.experiments.figure_style import slo_ms
from simulator.experiments.report_page import Card, Number, table_html

Slo = Mapping[str, float | None]
LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E latency"}


def own(summary: Mapping[str, object]) -> Mapping[str, object]:
    """Return what the product adds to vLLM's keys; empty for another tool's result."""
    return mapping(summary.get("servetwin"))


def mapping(value: object) -> Mapping[str, object]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number(values: Mapping[str, object], key: str) -> float | None:
    """Return a finite number under that key, else None."""
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def warnings(summary: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return what a reader must know before believing the numbers, as (kind, message)."""
    extra = own(summary)
    found: list[str] = []
    if "estimated" in str(extra.get("provenance", "")).lower():
        found.append("Step times are estimated from data sheets; nothing was measured on this GPU.")
    share = number(extra, "extrapolated_share") or 0.0
    if share > 0:
        found.append(f"Extrapolated: {share:.1%} of the steps lie outside the measured range.")
    for what in ("rejected", "aborted", "unfinished"):
        n = number(extra, what) or 0.0
        reasons = mapping(extra.get(f"{what}_by_reason")).items()
        why = "; ".join(f"{_count(times)} × {reason}" for reason, times in reasons if times and reason)
        if n > 0:
            detail = f" ({why})" if why else ""
            found.append(f"{n:,.0f} of {_count(extra.get('injected', '?'))} requests {what}{detail}.")
    oversized = number(extra, "oversized_prompts") or 0.0
    if oversized > 0:
        found.append(f"{oversized:,.0f} prompts exceed the token budget of a step; each was computed alone.")
    skipped = mapping(extra.get("skipped")).items()
    found += [f"{_count(n)} rows of the trace were left out: {reason}." for reason, n in skipped if n]
    notes = extra.get("notes")
    told = [str(note) for note in (notes if isinstance(notes, list | tuple) else [])]
    told = [note[:1].upper() + note[1:] + ("" if note.endswith(".") else ".") for note in told]
    return [("warning", message) for message in found] + [("note", message) for message in told]


def key_figures(summary: Mapping[str, object], slo: Slo | None = None) -> list[Card]:
    """Return the cards at the top of a report: outcome, latency, memory."""
    return [
        *_outcome(summary),
        *(_latency(summary, metric, slo_ms(slo, metric)) for metric in LABELS),
        *_memory(summary),
    ]


def _outcome(summary: Mapping[str, object]) -> list[Card]:
    extra = own(summary)
    injected = _count(extra.get("injected", summary.get("num_prompts", "?")))
    target = number(extra, "attainment_target")
    attained = number(extra, "attainment")
    met = None if attained is None or target is None else attained >= target
    goodput = number(summary, "request_goodput")
    scored = number(extra, "accuracy") is not None
    good = f"goodput {goodput:,.2f} req/s" if goodput is not None else ""
    total = f"with prompts {_show(summary, 'total_token_throughput', ',.0f')} tok/s"
    return [
        Card("Completed", _show(summary, "completed", ",.0f"), "requests", f"of {injected} injected"),
        Card("SLO attainment", _show(extra, "attainment", ".1%"), "", _target(attained, target), met),
        Card("Request throughput", _show(summary, "request_throughput", ",.2f"), "req/s", good),
        Card("Output throughput", _show(summary, "output_throughput", ",.0f"), "tok/s", total),
        *([Card("Accuracy", _show(extra, "accuracy", "g"), "", "your own score, not simulated")] * scored),
    ]


def _latency(summary: Mapping[str, object], metric: str, limit: float | None) -> Card:
    p99 = number(summary, f"p99_{metric}_ms") or 0.0
    note = f"median {_show(summary, f'median_{metric}_ms', ',.1f')} ms"
    note += f", SLO {limit:g} ms" if limit is not None else ""
    shown = _show(summary, f"p99_{metric}_ms", ",.0f" if p99 >= 1000 else ",.1f")
    return Card(f"{LABELS[metric]}, P99", shown, "ms", note)


def _memory(summary: Mapping[str, object]) -> list[Card]:
    extra = own(summary)
    blocks = _count(extra.get("num_gpu_blocks", "?"))
    mean = f"mean {_show(extra, 'kv_usage_mean', '.1%')} of {blocks} blocks"
    lost = "lost their blocks, ran again"
    return [
        Card("KV cache, peak", _show(extra, "kv_usage_peak", ".1%"), note=mean),
        Card("Preemptions", _show(extra, "num_preemptions", ",.0f"), note=lost),
        Card("Prefix cache hit rate", _show(extra, "prefix_hit_rate", ".1%"), note="of prompt tokens"),
        Card("Duration", _show(summary, "duration", ",.1f"), "s", "first arrival to last token"),
    ]


def percentiles_html(summary: Mapping[str, object]) -> str:
    """Draw the table of mean, deviation and every percentile that the summary has, in ms."""
    pattern = re.compile(r"p([\d.]+)_(?:ttft|tpot|itl|e2el)_ms")
    levels = sorted({m[1] for key in summary if (m := pattern.fullmatch(key))}, key=float)
    columns = ["mean", "std", *([] if "50" in levels else ["median"]), *(f"p{level}" for level in levels)]
    rows = [
        [label, *(number(summary, f"{column}_{metric}_ms") for column in columns)]
        for metric, label in LABELS.items()
    ]
    return table_html(["latency (ms)", *(column.capitalize() for column in columns)], rows)


def bottleneck_html(summary: Mapping[str, object]) -> str:
    """Draw the runs behind a bottleneck: what twice as much of one thing would bring. Empty without them."""
    rows = mapping(own(summary).get("bottleneck")).get("rows")
    forms = {
        "what": ("with twice the", "s"),
        "attainment": ("within SLO", ".1%"),
        "attainment_gain": ("change", "+.1%"),
        "output_throughput": ("output (tok/s)", ",.0f"),
        "throughput_gain": ("change", "+.1%"),
    }
    table = [
        [
            str(row.get(key, "–")) if form == "s" else Number(_show(row, key, form))
            for key, (_, form) in forms.items()
        ]
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, Mapping)
    ]
    return table_html([head for head, _ in forms.values()], table) if table else ""


def _target(attained: float | None, target: float | None) -> str:
    if attained is None:
        return "no SLO set"
    return f"target {target * 100:g}%" if target is not None else ""


def _show(values: Mapping[str, object], key: str, form: str) -> str:
    value = number(values, key)
    return "–" if value is None else format(value, form)


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
