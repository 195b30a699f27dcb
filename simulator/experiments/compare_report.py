"""What a comparison leaves on disk: compare.json, a page to look at, and the winner as a scenario."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from simulator.errors import InputError
from simulator.experiments.compare import Comparison, metric_of
from simulator.experiments.compare_plots import COMPARE_PLOTS
from simulator.experiments.report_page import (
    Section,
    banners_html,
    escape,
    figure_html,
    page_html,
    table_html,
)
from simulator.experiments.run_folder import default_folder, write_scenario

_HOW = {
    "latency": "Further left is faster; a curve that ends below 100 % lacks requests.",
    "queue": "The most that waited in each stretch of time.",
}


def comparison_folder(found: Comparison) -> Path:
    """Return runs/compare-<name>-<digest> for these candidates."""
    scenarios = [run.scenario for run in found.runs.values()]
    digest = hashlib.sha256("".join(each.digest() for each in scenarios).encode()).hexdigest()[:8]
    first = default_folder(scenarios[0])
    return first.with_name(f"compare-{first.name.rpartition('-')[0]}-{digest}")


def comparison_html(found: Comparison, title: str) -> str:
    """Return the page: the winner, the table, the figures. The same comparison gives the same text."""
    best = metric_of(found.runs[found.winner], found.metric)
    shown = "n/a" if best is None else f"{best:,.4g}"
    lead = (
        f"<h1>{escape(title)}: {len(found.runs)} candidates</h1>"
        f'<p class="verdict">Best {escape(found.metric)}: {escape(found.winner)} ({shown})</p>'
    )
    note = "Every candidate served the same requests, once. A small difference may be chance."
    sections = [
        Section("table", "Side by side", table_html(*found.cells())),
        *(
            Section(name, name.capitalize(), figure_html(draw(found.runs), f"compare-{name}", _HOW[name]))
            for name, draw in COMPARE_PLOTS.items()
        ),
    ]
    first = next(iter(found.runs.values()))
    footer = f"servetwin {first.own['version']}, seed {first.scenario.seed}"
    return page_html(title, lead + banners_html([("note", note)]), sections, footer)


def save_comparison(found: Comparison, folder: Path, title: str, *, report: bool = True) -> list[Path]:
    """Write compare.json, report.html and winner/ and return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        summary = folder / "compare.json"
        text = json.dumps(found.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        summary.write_text(text + "\n", encoding="utf-8", newline="\n")
        written = [summary]
        if report:
            page = folder / "report.html"
            page.write_text(comparison_html(found, title), encoding="utf-8", newline="\n")
            written.append(page)
        best = found.runs[found.winner]
        (folder / "winner").mkdir(exist_ok=True)
        written.append(
            write_scenario(best.scenario, folder / "winner", files=best.policies.files, with_profile=True)
        )
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return written
