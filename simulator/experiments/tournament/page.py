"""A tournament's part of the report: verdicts, table, figures."""

from __future__ import annotations

from simulator.experiments.report_page import Number, Section, escape, figure_html, table_html
from simulator.experiments.tournament.figures import HOW, TOURNAMENT_PLOTS
from simulator.experiments.tournament.paired import TIE
from simulator.experiments.tournament.standing import Standing
from simulator.experiments.tournament.tables import cells, mean_cells
from simulator.experiments.tournament.words import lead, verdict_lines

VERDICTS = "Verdicts"
_TEXTS = ("candidate", "verdict")


def table_of(titles: list[str], rows: list[list[str]], caption: str = "") -> str:
    """Draw a table of cells, numbers right."""
    typed = [
        [value if title in _TEXTS or i == 0 else Number(value) for i, (title, value) in enumerate(pairs)]
        for pairs in (list(zip(titles, row, strict=True)) for row in rows)
    ]
    return table_html(titles, typed, caption)


def sections(standing: Standing) -> list[Section]:
    """Return the sections on verdicts, differences and means."""
    told = "".join(f'<p class="reason">{escape(line)}</p>' for line in verdict_lines(standing))
    figures = {
        name: figure_html(draw(standing), f"tournament-{name}", HOW[name])
        for name, draw in TOURNAMENT_PLOTS.items()
    }
    how = " ".join(lead(standing))
    return [
        Section("verdicts", VERDICTS, told + figures["difference"] + table_of(*cells(standing), how)),
        Section("means", "Means", figures["means"] + table_of(*mean_cells(standing))),
    ]


def notes(standing: Standing) -> list[str]:
    """Say what holds for the page as a whole."""
    told = ["Every candidate served the same replications; the figures below the verdicts show one run each."]
    if TIE in standing.verdicts.values():
        told.append("A tie says that any difference is small, not that there is none.")
    return told
