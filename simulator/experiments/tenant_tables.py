"""Tenants and classes of priority side by side, as text for a terminal and as HTML for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.experiments.report_page import Number, table_html
from simulator.experiments.report_summary import mapping, number, own

SHOWN = 20
"""Rows shown at most, those with the most requests; the summary has more."""
NAME_WIDTH = 24
GROUPS = {"tenants": "tenant", "classes": "priority"}
COLUMNS = {
    "injected": ("requests", ",.0f"),
    "completed": ("completed", ",.0f"),
    "output_tokens": ("output tok", ",.0f"),
    "mean_ttft_ms": ("TTFT mean ms", ",.1f"),
    "median_ttft_ms": ("TTFT p50 ms", ",.1f"),
    "p99_ttft_ms": ("TTFT p99 ms", ",.1f"),
    "p99_tpot_ms": ("TPOT p99 ms", ",.1f"),
    "mean_e2el_ms": ("E2E mean ms", ",.0f"),
    "attainment": ("within SLO", ".1%"),
    "request_goodput": ("goodput req/s", ",.2f"),
    "oldest_wait_s": ("oldest wait s", ",.2f"),
    "cost": ("cost", ",.4g"),
    "cost_share": ("of cost", ".1%"),
    "cost_per_million_output_tokens": ("cost / M output tok", ",.2f"),
}
COST_RULE = (
    "cost: what the GPUs cost, idle time included, by work: computed prompt tokens, output tokens and the "
    "context they read, at the prices of average steps"
)
PRICED = ("cost", "cost_share", "cost_per_million_output_tokens")
"""Columns that only a run with a price has."""
BRIEF = (
    "injected",
    "output_tokens",
    "median_ttft_ms",
    "p99_ttft_ms",
    "p99_tpot_ms",
    "attainment",
    "oldest_wait_s",
    *PRICED[1:],
)


def tenants_text(summary: Mapping[str, object]) -> str:
    """Return the tables of tenants and of classes, and how even it was; empty for a run with one of each."""
    parts: list[str] = []
    for what in GROUPS:
        titles, rows, more = _table(summary, what, BRIEF)
        if rows:
            widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
            parts += [
                "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                for row in (titles, *rows)
            ]
            parts += [more, ""] if more else [""]
    return "\n".join([*parts, *evenness(summary)]).rstrip()


def tenants_html(summary: Mapping[str, object]) -> str:
    """Draw the same as HTML, with every column."""
    found = ""
    for what in GROUPS:
        titles, rows, more = _table(summary, what, tuple(COLUMNS))
        if rows:
            found += table_html(titles, [[row[0], *map(Number, row[1:])] for row in rows], more)
    return found + "".join(f"<p>{line}</p>" for line in evenness(summary))


def evenness(summary: Mapping[str, object]) -> Iterator[str]:
    """Yield a line with Jain's index, where there are tenants to compare, and one on how costs are shared."""
    extra = own(summary)
    if mapping(extra.get("tenants")):
        service, latency = (_show(extra, f"jain_{what}", ".3f") for what in ("service", "latency"))
        yield f"Jain's index (1 = even): {service} of service per weight, {latency} of latency per token"
    if any(PRICED[0] in mapping(row) for what in GROUPS for row in mapping(extra.get(what)).values()):
        yield COST_RULE


def _table(
    summary: Mapping[str, object], what: str, columns: tuple[str, ...]
) -> tuple[list[str], list[list[str]], str]:
    """Return titles, rows, and a line on the rows that are left out."""
    extra = own(summary)
    groups = {name: mapping(row) for name, row in mapping(extra.get(what)).items()}
    has_price = any(PRICED[0] in row for row in groups.values())
    columns = tuple(key for key in columns if has_price or key not in PRICED)
    most = sorted(groups, key=lambda name: -(number(groups[name], "injected") or 0.0))[:SHOWN]
    rows = [
        [_name(name), *(_show(groups[name], key, COLUMNS[key][1]) for key in columns)]
        for name in groups
        if name in most
    ]
    total = max(len(groups), int(number(extra, "num_tenants") or 0) if what == "tenants" else 0)
    more = f"the {len(rows)} with the most requests of {total:,}" if len(rows) < total else ""
    return [GROUPS[what], *(COLUMNS[key][0] for key in columns)], rows, more


def _name(name: str) -> str:
    """Return a name that fits its column and does nothing to a terminal."""
    plain = name if name.isprintable() else ascii(name)[1:-1]
    return (plain if len(plain) <= NAME_WIDTH else plain[: NAME_WIDTH - 1] + "…") or "(none)"


def _show(values: Mapping[str, object], key: str, form: str) -> str:
    value = number(values, key)
    return "–" if value is None else format(value, form)
