"""The page of a sweep: what is best, metrics over what was varied, the trade-off, all points, what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.experiments.metric_cells import COLUMNS, cell
from simulator.experiments.report_page import (
    Number,
    Section,
    banners_html,
    details_html,
    escape,
    figure_html,
    page_html,
    pre_html,
    table_html,
)
from simulator.experiments.sweep.plots import SWEEP_PLOTS, fitting
from simulator.experiments.sweep.table import Row

if TYPE_CHECKING:
    from simulator.experiments.sweep.result import SweepResult

_MOST_ROWS = 500
_HOW = {
    "line": "One point a value; the menu chooses the metric. Bars are 95 % intervals over replications.",
    "heatmap": "The menu chooses the metric; the colour scale does not say which way is better.",
    "scatter": "A dot per point, against each key that was varied; the menu chooses the metric. A line is "
    "the mean of all points that share a value.",
    "pareto": "Up and to the right is better. On the line is what nothing beats in both respects.",
}


def sweep_html(result: SweepResult) -> str:
    """Return the page; the same result gives the same text."""
    plan = result.sweep.plan
    first, *rest = result.outcome() or ["No point has a result."]
    lead = f'<h1>{escape(plan.name)}: {escape(result.size())}</h1><p class="verdict">{escape(first)}</p>'
    lead += "".join(f'<p class="provenance">{escape(line)}</p>' for line in rest if " failed (" not in line)
    notes = [("note", note) for note in [*result.sweep.notes, *_about(result)]]
    if result.failed:
        text = f"{len(result.failed)} of {len(result.rows)} points have a run that failed; see below"
        notes.insert(0, ("warning", text))
    sections = []
    if result.rows and result.metrics:
        kind = fitting(result.rows)
        figure = SWEEP_PLOTS[kind](result.rows, result.metrics)
        sections.append(Section("axes", "Over what was varied", figure_html(figure, "axes", _HOW[kind])))
        trade = SWEEP_PLOTS["pareto"](result.rows, result.metrics)
        sections.append(
            Section(
                "pareto",
                "Tokens per user against tokens per GPU",
                figure_html(trade, "pareto", _HOW["pareto"]),
            )
        )
        sections.append(Section("points", "Every point", table_of(result, _MOST_ROWS)))
    if result.failed:
        sections.append(Section("failed", "What failed", _failures(result)))
    footer = f"{result.sweep.identity['version of servetwin']}, base {plan.base.name}, seed {plan.base.seed}"
    return page_html(plan.name, lead + banners_html(notes), sections, f"servetwin {footer}")


def _about(result: SweepResult) -> list[str]:
    plan = result.sweep.plan
    if plan.replications == 1:
        return ["Every point is one run on the same requests. A small difference may be chance."]
    return [
        f"Means of {plan.replications} replications, the same for all points that agree about the workload; "
        "intervals are Student's, 95 %."
    ]


def table_of(result: SweepResult, most: int) -> str:
    """Draw the table, at most so many rows of it."""
    rows = result.rows[:most]
    keys = list(rows[0].point.keys) if rows else []
    titles = [
        "point",
        *(key.rpartition(".")[2] for key in keys),
        *(COLUMNS.get(m, m) for m in result.metrics),
    ]
    caption = f"The first {most} of {len(result.rows)} points" if len(result.rows) > most else ""
    return table_html(titles, [_cells(row, result.metrics) for row in rows], caption)


def _cells(row: Row, metrics: tuple[str, ...]) -> list[object]:
    return [
        str(row.point.number),
        *(value if isinstance(value, str) else Number(value) for value in row.point.keys.values()),
        *(Number(cell(metric, row.value(metric))) for metric in metrics),
    ]


def _failures(result: SweepResult) -> str:
    parts = []
    for key, outcome in result.outcomes():
        if outcome.error is not None:
            point = result.sweep.points[key[0]]
            words = f"point {key[0]}, replication {key[1]} ({point.label()}): {outcome.error}"
            parts.append(details_html(words, pre_html("\n".join(outcome.calls))))
    return "".join(parts)
