"""What a capacity leaves on disk: capacity.json, report.html, and winner/, a scenario at its capacity."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from importlib.metadata import version
from pathlib import Path

from simulator.experiments.capacity.answer import Answer
from simulator.experiments.capacity.folder import Won, write_capacity
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.knee import METHOD
from simulator.experiments.capacity.plots import CAPACITY_PLOTS
from simulator.experiments.capacity.point import LEVEL, Estimate, Point
from simulator.experiments.capacity.words import (
    candidate_cells,
    details,
    headline,
    notes,
    outcome,
    rate_cells,
    slo_words,
    warnings,
)
from simulator.experiments.model_draws import source_name
from simulator.experiments.report_page import (
    Number,
    Section,
    banners_html,
    escape,
    figure_html,
    page_html,
    table_html,
)
from simulator.experiments.run_folder import default_folder

TITLES = {
    "goodput": "Attainment and goodput",
    "latency": "Latency over rate",
    "cost": "Cost over rate",
    "difference": "Differences",
}
HOW = {
    "goodput": "A dashed upright is a capacity, the dotted line the attainment that is asked for. Bands "
    "are 95 % intervals over replications. Goodput that falls while the rate rises is an overloaded server.",
    "latency": "Means over replications of each run's percentile, on a logarithmic axis; dotted: the limit.",
    "cost": "The price per hour of all GPUs over the output tokens of that hour.",
    "difference": "Paired replications: the same requests for both. An interval across 0 is a tie.",
}


def capacity_folder(found: Found) -> Path:
    """Return runs/capacity-<name>-<digest> for this search."""
    asked = repr((found.target, found.tolerance, found.range, found.num_replications, found.num_draws))
    scenarios = "".join(each.loads.base.digest() for each in found.answers.values())
    digest = hashlib.sha256((scenarios + asked).encode()).hexdigest()[:8]
    first = default_folder(found.base)
    return first.with_name(f"capacity-{first.name.rpartition('-')[0]}-{digest}")


def to_dict(found: Found) -> dict[str, object]:
    """Return everything as JSON values; rates in `rate_unit`, times in ms, shares as fractions."""
    first = next(iter(found.answers.values()))
    return {
        "name": found.base.name,
        "version": version("servetwin"),
        "seed": found.base.seed,
        "slo": found.base.slo.model_dump(),
        "attainment_target": found.target,
        "tolerance": found.tolerance,
        "rates": None if found.range is None else list(found.range),
        "rate_unit": first.loads.unit,
        "level": LEVEL,
        "knee_method": METHOD,
        "replications": found.num_replications,
        "replication_kind": found.replications.kind,
        "model_draws": found.num_draws,
        "baseline": found.baseline,
        "winner": found.winner,
        "winner_capacity": None if found.winner is None else found.answers[found.winner].rate,
        "candidates": [_candidate(found, name) for name in found.answers],
        "notes": notes(found),
        "scenario": found.base.to_dict(),
    }


def _candidate(found: Found, name: str) -> dict[str, object]:
    answer = found.answers[name]
    interval, model, apart = answer.interval, answer.model_interval, found.difference(name)
    moved, edge, at = found.model_difference(name), answer.edge, answer.at
    price = None if at is None else answer.cost(at)
    machine = found.machines[name]
    return {
        "candidate": name,
        "outcome": answer.outcome,
        "rate": answer.rate,
        "interval": None if interval is None else [interval.low, interval.high],
        "model_interval": None if model is None else model.to_dict(),
        "first_missed": None if edge is None else edge.missed,
        "difference": None if apart is None else apart.to_dict(),
        "model_difference": None if moved is None else moved.to_dict(),
        "verdict": found.verdict(name),
        "goodput": None if at is None else _estimate(at.goodput),
        "knee": answer.knee,
        "cost_per_million_output_tokens": _estimate(price),
        "binding": answer.binding,
        "binding_at": answer.pushed,
        "missed_below": answer.missed_below,
        "met_above": answer.met_above,
        "words": [headline(found, answer), *details(answer)],
        "provenance": machine.latency.provenance,
        "times_from": source_name(answer.loads.base, machine),
        "points": [_point(answer, point) for point in answer.points],
    }


def _point(answer: Answer, point: Point) -> dict[str, object]:
    names = [f"{m}_p{rank}" for m in ("ttft", "tpot") for rank in (50, 90, 99)]
    late = point.late_attainment
    return {
        "rate": point.rate,
        "meets": answer.met[point.rate],
        "attainment": point.attainment.to_dict(),
        "late_attainment": None if late is None else late.value,
        "goodput": _estimate(point.goodput),
        "queue_growth": point.growth,
        "cost_per_million_output_tokens": _estimate(answer.cost(point)),
        **{f"{name}_ms": _estimate(point.mean(name)) for name in names},
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else estimate.to_dict()


def capacity_text(found: Found) -> str:
    """Return a capacity as strict JSON, the same bytes for the same search."""
    text = json.dumps(to_dict(found), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace").decode()  # half a character may come from a name


def capacity_html(found: Found) -> str:
    """Return the page. The same search gives the same text."""
    title = f"Capacity of {found.base.name}"
    answers = list(found.answers.values())
    several = len(answers) > 1
    first, *rest = [headline(found, each) for each in answers]
    lead = f'<h1>{escape(title)}</h1><p class="verdict">{escape(outcome(found) if several else first)}</p>'
    told = [first, *rest] if several else details(answers[0])
    lead += "".join(f'<p class="reason">{escape(line)}</p>' for line in told)
    odd = [("warning", w) for each in answers for w in warnings(each)] if several else []
    lead += banners_html([*odd, *(("note", f"{note}.") for note in notes(found))])
    has_price = found.base.hardware.price_per_gpu_hour is not None
    shown = [k for k in CAPACITY_PLOTS if (k != "cost" or has_price) and (k != "difference" or several)]
    sections = [
        Section(name, TITLES[name], figure_html(CAPACITY_PLOTS[name](found), f"capacity-{name}", HOW[name]))
        for name in shown
    ]
    if several:
        sections.insert(0, Section("candidates", "Candidates", numbers_table(candidate_cells(found))))
    tables = "".join(numbers_table(rate_cells(each), each.name if several else "") for each in answers)
    sections.append(Section("rates", "Rates tested", tables))
    footer = (
        f"servetwin {version('servetwin')}, seed {found.base.seed}; {slo_words(found.base, found.target)}"
    )
    return page_html(title, lead, sections, footer)


def numbers_table(cells: tuple[list[str], list[list[str]]], caption: str = "") -> str:
    """Return a table as HTML whose columns are numbers, but for the first and verdicts."""
    titles, rows = cells
    words = {0} | {i for i, title in enumerate(titles) if title in ("SLO", "verdict")}
    body = [[c if i in words else Number(c) for i, c in enumerate(row)] for row in rows]
    return table_html(titles, body, caption)


def save_capacity(found: Found, folder: Path, *, report: bool = True) -> list[Path]:
    """Write capacity.json, report.html and winner/ and return their paths; InputError if it cannot be.

    `winner/` is the winning scenario at its capacity; there is none if no rate meets.
    """
    page = partial(capacity_html, found) if report else None
    winner = found.winner
    scenario = None if winner is None else found.answers[winner].scenario
    if winner is None or scenario is None:
        return write_capacity(folder, capacity_text(found), page)
    won = Won(scenario, found.policies[winner], found.machines[winner])
    return write_capacity(folder, capacity_text(found), page, won)
