"""What bounds look like: tables as text and as a page, two figures, bounds.json and bounds.html."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import InputError
from simulator.experiments.bounds import REFERENCE, Found
from simulator.experiments.bounds_gap import limit_rows, rows, slowdown_rows, verdict
from simulator.experiments.bounds_plots import BOUNDS_PLOTS
from simulator.experiments.report_page import (
    Number,
    Section,
    banners_html,
    escape,
    figure_html,
    page_html,
    table_html,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Cells = tuple[list[str], list[list[str]]]

TITLES = {
    "makespan_s": "makespan (s)",
    "output_throughput": "output (tok/s)",
    "request_throughput": "requests/s",
    "mean_ttft_ms": "TTFT mean (ms)",
    "median_ttft_ms": "TTFT median (ms)",
    "p99_ttft_ms": "TTFT p99 (ms)",
    "mean_e2el_ms": "E2E mean (ms)",
    "median_e2el_ms": "E2E median (ms)",
    "p99_e2el_ms": "E2E p99 (ms)",
}
CAUTION = (
    "A bound holds for every policy under this scenario's limits and step times that preempts no request "
    f"more often than this run; no policy need reach it. {REFERENCE} is a reference and no bound: it does "
    "not preempt what runs."
)
ASSUMED = (
    "Data-sheet limits assume that attention reads each sequence's own context: a kernel that reads a shared "
    "prefix once for many sequences may be quicker."
)
HOW = {
    "makespan": "Dark is work that adds up, pale the rest of the time until all can be done. A long pale bar "
    "means that requests, not the GPU, were short. Requests/s: what the work allows if they never run out.",
    "slowdown": "A request at 1 took as long as it must; further left is better, and no policy gets below 1.",
}


def gap_cells(found: Found) -> Cells:
    """Return run against bound and reference."""
    headers = ["", "this run", "bound", "run / bound", REFERENCE, "change"]
    body = [
        [
            TITLES[str(row["metric"])],
            _shown(row["run"]),
            _shown(row["bound"]),
            _shown(row["ratio"], ",.3f"),
            _shown(row["reference"]),
            _shown(row["change"], "+.1%").replace("-0.0%", "+0.0%"),
        ]
        for row in rows(found)
    ]
    return headers, body


def limit_cells(found: Found) -> Cells:
    """Return the limits of the makespan."""
    headers = ["limit", "makespan >= (s)", "work (s)", "of this run", "requests/s <=", "by"]
    body = [
        [
            f"{row['limit']} (binds)" if row["is_binding"] else str(row["limit"]),
            _shown(row["makespan_s"]),
            _shown(row["work_s"]),
            _shown(row["share"], ".1%"),
            _shown(row["max_request_throughput"]),
            str(row["why"]),
        ]
        for row in limit_rows(found)
    ]
    return headers, body


def slowdown_cells(found: Found) -> Cells:
    """Return mean, median and p99 of latency over least latency."""
    names = {"run": "this run", "reference": REFERENCE}
    metrics = {"ttft": "TTFT / alone", "e2el": "E2E / alone"}
    body = [
        [
            f"{metrics[str(row['metric'])]}, {names[str(row['of'])]}",
            *(_shown(row[name], ",.2f") for name in ("mean", "median", "p99")),
        ]
        for row in slowdown_rows(found)
    ]
    return ["slowdown of a request", "mean", "median", "p99"], body


TABLES: dict[str, Callable[[Found], Cells]] = {
    "Run against bounds": gap_cells,
    "What bounds the makespan": limit_cells,
    "Slowdown": slowdown_cells,
}


def table_text(found: Found) -> str:
    """Return the tables as text, numbers set right, and what they say."""
    lines = [about(found)]
    for title, cells in TABLES.items():
        headers, body = cells(found)
        if body:
            lines += ["", title, *_aligned(headers, body)]
    own, least = found.own.run.own["num_steps"], found.num_steps
    if least:
        words = " and ".join(f"{n:,} by {name}" for name, n in least.items())
        lines += ["", f"Steps that sample a token: at least {words}; this run took {own:,} steps"]
    return "\n".join([*lines, "", *verdict(found), *(f"Note: {note}" for note in found.notes), CAUTION])


def about(found: Found) -> str:
    """Describe the run in one line."""
    run = found.own.run
    keys = run.scenario.scheduler
    return (
        f"{run.scenario.name}: {keys.batching}, {keys.order}; {found.own.num_completed:,} of "
        f"{len(run.requests):,} requests completed"
    )


def tables_html(found: Found) -> dict[str, str]:
    """Return the tables as HTML, by title."""
    made = {}
    for title, cells in TABLES.items():
        headers, body = cells(found)
        words = {0, len(headers) - 1} if cells is limit_cells else {0}
        made[title] = table_html(
            headers, [[c if i in words else Number(c) for i, c in enumerate(row)] for row in body]
        )
    return made


def bounds_html(found: Found) -> str:
    """Return the page. The same bounds give the same text."""
    run = found.own.run
    title = f"Bounds of {run.scenario.name}"
    first, *rest = verdict(found)
    lead = (
        f'<h1>{escape(title)}</h1><p class="verdict">{escape(first)}</p><p>{escape(" ".join(rest))}</p>'
        f'<p class="provenance">{escape(about(found))}. {escape(run.own["provenance"])}</p>'
    )
    notes = [("note", f"{note[:1].upper()}{note[1:]}.") for note in found.notes]
    tables = list(tables_html(found).items())
    drawn = [figure_html(draw(found), f"bounds-{name}", HOW[name]) for name, draw in BOUNDS_PLOTS.items()]
    bodies = [tables[0][1], drawn[0] + tables[1][1], drawn[1] + tables[2][1]]
    sections = [
        Section(name, title, body)
        for name, (title, _), body in zip(("gap", "makespan", "slowdown"), tables, bodies, strict=True)
    ]
    banners = banners_html([*notes, ("note", CAUTION), ("note", ASSUMED)])
    footer = f"servetwin {run.own['version']}, seed {run.scenario.seed}"
    return page_html(title, lead + banners, sections, footer)


def summary(found: Found) -> dict[str, object]:
    """Return everything as JSON values; times in a row's unit, slowdowns and ratios without one."""
    run = found.own.run
    return {
        "name": run.scenario.name,
        "version": run.own["version"],
        "seed": run.scenario.seed,
        "source": run.own["source"],
        "provenance": run.own["provenance"],
        "injected": len(run.requests),
        "completed": found.own.num_completed,
        "verdict": " ".join(verdict(found)),
        "rows": rows(found),
        "limits": limit_rows(found),
        "slowdowns": slowdown_rows(found),
        "least_steps": found.num_steps,
        "num_steps": run.own["num_steps"],
        "reference": REFERENCE,
        "reference_completed": found.reference.num_completed,
        "notes": [*found.notes, CAUTION, ASSUMED],
        "scenario": run.scenario.to_dict(),
    }


def summary_text(found: Found) -> str:
    """Return the summary as strict JSON, the same bytes for the same bounds."""
    text = json.dumps(summary(found), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace").decode()  # half a character may come from a file's name


def save_bounds(found: Found, folder: Path) -> list[Path]:
    """Write bounds.json and bounds.html and return their paths; InputError if they cannot be written."""
    contents = {"bounds.json": summary_text(found), "bounds.html": bounds_html(found)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return [folder / name for name in contents]


def _aligned(headers: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Set the first column and a last one of words left, numbers right."""
    table = [headers, *body]
    widths = [max(len(row[i]) for row in table) for i in range(len(headers))]
    words = headers[-1] == "by"
    lines = []
    for first, *rest in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        if words:
            cells[-1] = rest[-1]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return lines


def _shown(value: object, form: str = "") -> str:
    if not isinstance(value, int | float):
        return "–"
    return format(value, form or (",.0f" if abs(value) >= 1000 else ",.2f"))
