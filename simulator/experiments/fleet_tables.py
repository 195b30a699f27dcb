"""A fleet's replicas side by side, as text for a terminal and as HTML for the report."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.experiments.report_page import Number, escape, table_html
from simulator.experiments.report_summary import mapping, number, own

SHOWN = 20
"""Rows shown at most, the first ones; the summary has more."""
COLUMNS = {
    "replica": ("replica", ",.0f"),
    "requests": ("requests", ",.0f"),
    "prefill_tokens": ("prefill tok", ",.0f"),
    "output_tokens": ("output tok", ",.0f"),
    "busy_share": ("busy", ".1%"),
    "kv_usage_peak": ("KV peak", ".1%"),
    "prefix_hit_rate": ("prefix hits", ".1%"),
    "num_preemptions": ("preempted", ",.0f"),
    "started_s": ("from s", ",.1f"),
    "ended_s": ("until s", ",.1f"),
}


def fleet_lead(summary: Mapping[str, object]) -> str:
    """Say in a line how the replicas shared the work; empty for a run without a cluster."""
    extra = own(summary)
    count = number(extra, "num_replicas")
    if count is None:
        return ""
    hours = (number(extra, "gpu_seconds") or 0.0) / 3600
    uneven = number(extra, "imbalance")
    text = f"Cluster: {count:,.0f} replicas behind {extra.get('router')}, {hours:,.2f} GPU hours"
    if uneven is not None:
        text += f", the busiest {uneven:.2f} times the mean"
    moved = mapping(extra.get("transfers"))
    if times := number(moved, "num_transfers"):
        text += (
            f"; {times:,.0f} transfers of {number(moved, 'gb') or 0.0:,.2f} GB in all, each "
            f"{number(moved, 'mean_ms') or 0.0:,.1f} ms on average from decision to end"
        )
    for key, what in (("num_retried", "served again elsewhere"), ("num_held", "held at the router")):
        if times := number(extra, key):
            text += f"; {times:,.0f} {what}"
    return text


def fleet_text(summary: Mapping[str, object]) -> str:
    """Return the replicas as a table with its lead; empty for a run without a cluster."""
    titles, rows, more = _table(summary)
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in (titles, *rows)]
    return "\n".join([fleet_lead(summary), *lines, *([more] if more else [])])


def fleet_html(summary: Mapping[str, object]) -> str:
    """Draw the same as HTML."""
    titles, rows, more = _table(summary)
    if not rows:
        return ""
    table = table_html(titles, [[row[0], *map(Number, row[1:-2]), *row[-2:]] for row in rows], more)
    return f"<p>{escape(fleet_lead(summary))}</p>{table}"


def _table(summary: Mapping[str, object]) -> tuple[list[str], list[list[str]], str]:
    """Return titles, rows, and a line on the rows that are left out."""
    found = own(summary).get("replicas")
    replicas = [mapping(each) for each in found] if isinstance(found, list) else []
    rows = [
        [
            *(_show(each, key, form) for key, (_, form) in COLUMNS.items()),
            f"{number(each, 'gpus') or 0:.0f} x {each.get('hardware')}",
            " ".join(str(each[key]) for key in ("pool", "state") if key in each),
        ]
        for each in replicas[:SHOWN]
    ]
    more = f"the first {SHOWN} of {len(replicas):,} replicas" if len(replicas) > SHOWN else ""
    return [*(title for title, _ in COLUMNS.values()), "GPUs", "state"], rows, more


def _show(values: Mapping[str, object], key: str, form: str) -> str:
    value = number(values, key)
    return "–" if value is None else format(value, form)
