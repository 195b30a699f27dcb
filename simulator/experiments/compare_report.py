"""What a comparison leaves on disk: compare.json, a page to look at, and the winner as a scenario."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from simulator.config.build import profile_path
from simulator.errors import InputError
from simulator.experiments.compare import OTHER_REQUESTS, Comparison
from simulator.experiments.compare_plots import COMPARE_PLOTS
from simulator.experiments.report_page import (
    Section,
    banners_html,
    escape,
    figure_html,
    page_html,
)
from simulator.experiments.run_folder import default_folder, refuse_run
from simulator.experiments.scenario_folder import write_scenario
from simulator.experiments.tournament import tables
from simulator.experiments.tournament.page import notes, table_of
from simulator.experiments.tournament.page import sections as tournament_sections

_HOW = {
    "latency": "Further left is faster; a curve that ends below 100 % lacks requests.",
    "queue": "The most that waited in each stretch of time.",
}

DRAWN = (
    "Model intervals hold what the profile says of its own error, drawn once for all candidates; change "
    "is taken within each draw. They hold nothing of chance: sampling intervals need replications."
)
DRAWN_TOO = (
    "Model intervals hold what the profile says of its own error, drawn once for all candidates on the "
    "requests of the plain run; sampling intervals hold the chance of other requests."
)


def comparison_folder(found: Comparison) -> Path:
    """Return runs/compare-<name>-<digest> for these candidates."""
    scenarios = [run.scenario for run in found.runs.values()]
    digest = hashlib.sha256("".join(each.digest() for each in scenarios).encode()).hexdigest()[:8]
    first = default_folder(scenarios[0])
    return first.with_name(f"compare-{first.name.rpartition('-')[0]}-{digest}")


def comparison_html(found: Comparison, title: str) -> str:
    """Return the page: the winner, the table, the figures. The same comparison gives the same text."""
    standing = found.tournament
    change, best = ("", found.outcome()) if standing else found.outcome().split(". ", 1)
    lead = f'<h1>{escape(title)}: {len(found.runs)} candidates</h1><p class="verdict">{escape(best)}</p>'
    once = ["Every candidate served the same requests, once. A small difference may be chance."]
    told = once if standing is None else notes(standing)
    drawn = [] if found.drawn is None else [*found.drawn.words(), DRAWN if standing is None else DRAWN_TOO]
    lead += "".join(f'<p class="reason">{escape(line)}</p>' for line in drawn)
    banners = [("note", line) for line in told] if found.same_requests else [("warning", OTHER_REQUESTS)]
    alone = f"{change.capitalize()}." if standing is None else "The plain run of each, nothing left out."
    sections = [
        *([] if standing is None else tournament_sections(standing)),
        Section("table", "Side by side", table_of(*found.cells(), alone)),
        *(
            Section(name, name.capitalize(), figure_html(draw(found.runs), f"compare-{name}", _HOW[name]))
            for name, draw in COMPARE_PLOTS.items()
        ),
    ]
    first = next(iter(found.runs.values()))
    footer = f"servetwin {first.own['version']}, seed {first.scenario.seed}"
    return page_html(title, lead + banners_html(banners), sections, footer)


def comparison_text(found: Comparison) -> str:
    """Return a comparison as strict JSON, the same bytes for the same comparison."""
    return json.dumps(found.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def save_comparison(found: Comparison, folder: Path, title: str, *, report: bool = True) -> list[Path]:
    """Write compare.json, report.html and winner/ and return their paths; InputError if it cannot be."""
    refuse_run(folder)
    best = found.runs[found.winner]
    for file in best.policies.files:
        file.must_be_writable()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        summary = folder / "compare.json"
        summary.write_text(comparison_text(found), encoding="utf-8", newline="\n")
        written = [summary]
        if found.tournament is not None:
            table = folder / "compare.tex"
            table.write_text(tables.latex(found.tournament), encoding="utf-8", newline="\n")
            written.append(table)
        if report:
            page = folder / "report.html"
            page.write_text(comparison_html(found, title), encoding="utf-8", newline="\n")
            written.append(page)
        (folder / "winner").mkdir(exist_ok=True)
        profile = profile_path(best.scenario, best.machine)
        written.append(
            write_scenario(best.scenario, folder / "winner", files=best.policies.files, profile=profile)
        )
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return written
