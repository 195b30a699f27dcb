"""What a comparison of two runs leaves on disk: diff.json and a page to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import InputError
from simulator.experiments.diff_plots import error_parts, step_scatter
from simulator.experiments.diff_text import STEP_TITLES, decision_lines, metric_rows, step_rows
from simulator.experiments.report_page import (
    Number,
    Section,
    banners_html,
    escape,
    figure_html,
    page_html,
    pre_html,
    table_html,
)

if TYPE_CHECKING:
    from simulator.experiments.diff_result import Diff

PARTS = (
    "From zero, what deciding otherwise at the measured times adds, then what other step times add; together "
    "they are the error (diamond). An error inside the grey band is no larger than the machine's own noise."
)
SCATTER = (
    "Each point is a step of the measured run, priced by the model; above the line it is priced too high."
)


def body_html(found: Diff) -> str:
    """Return notes, tables and decisions as markup, without figures: what a notebook shows."""
    return banners_html(_banners(found)) + _metrics_html(found) + _steps_html(found) + _decisions_html(found)


def diff_html(found: Diff, title: str) -> str:
    """Return the page. The same comparison gives the same text."""
    lead = f'<h1>{escape(title)}</h1><p class="verdict">{escape(_lead(found))}</p>'
    sections = []
    if found.resimulated is not None:
        parts = figure_html(error_parts(found.metrics), "diff-parts", PARTS)
        sections.append(Section("parts", "Timing and decisions", parts))
    if found.times is not None:
        scatter = figure_html(step_scatter(found.times), "diff-steps", SCATTER)
        sections.append(Section("steps", "Step times", scatter + _steps_html(found)))
    sections.append(Section("decisions", "Decisions", _decisions_html(found)))
    sections.append(Section("metrics", "Metrics", _metrics_html(found)))
    return page_html(title, lead + banners_html(_banners(found)), sections)


def save_diff(found: Diff, folder: Path, title: str = "Two runs compared") -> list[Path]:
    """Write diff.json and diff.html and return their paths; InputError if it cannot be."""
    written = [folder / "diff.json", folder / "diff.html"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written[0].write_text(diff_json(found) + "\n", encoding="utf-8", newline="\n")
        written[1].write_text(diff_html(found, title), encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return written


def diff_json(found: Diff, **more: object) -> str:
    """Return a comparison as strict JSON, the same bytes for the same comparison."""
    return json.dumps(found.to_dict() | more, indent=1, allow_nan=False)


def _lead(found: Diff) -> str:
    known = {change.name: change for change in found.metrics}
    told = []
    for name, words in (("median_ttft_ms", "median TTFT"), ("median_e2el_ms", "median end-to-end latency")):
        change = known.get(name)
        if change is not None and change.percent is not None:
            noise = "" if change.noise is None else f" (noise {change.noise:.1f}%)"
            told.append(f"{words} {change.percent:+.1f}%{noise}")
    return f"{found.names[1]} against {found.names[0]}: {', '.join(told) or 'nothing in common'}."


def _banners(found: Diff) -> list[tuple[str, str]]:
    grave = ("machine not quiet", "the profile was measured on other kernels", "the error is not split")
    return [("warning" if note.startswith(grave) else "note", note) for note in found.notes]


def _metrics_html(found: Diff) -> str:
    titles, rows = metric_rows(found)
    return table_html(titles, [[name, *map(Number, cells)] for name, *cells in rows])


def _steps_html(found: Diff) -> str:
    if not found.steps:
        return ""
    rows = [[kind, *map(Number, cells)] for kind, *cells in step_rows(found)]
    return table_html(STEP_TITLES, rows, "Medians; bias is that of the sum.")


def _decisions_html(found: Diff) -> str:
    return pre_html("\n".join(decision_lines(found)))
