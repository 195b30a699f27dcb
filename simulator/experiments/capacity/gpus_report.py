"""What a search for the fewest GPUs leaves on disk: capacity.json, report.html, and winner/."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from importlib.metadata import version
from pathlib import Path

from simulator.experiments.capacity.folder import Won, write_capacity
from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_plots import GPUS_PLOTS
from simulator.experiments.capacity.gpus_tables import candidate_cells, fleet_cells
from simulator.experiments.capacity.gpus_words import (
    details,
    headline,
    notes,
    outcome,
    warnings,
)
from simulator.experiments.capacity.point import LEVEL, TOLERANCE, Estimate, Point
from simulator.experiments.capacity.report import numbers_table
from simulator.experiments.capacity.words import slo_words
from simulator.experiments.model_draws import source_name
from simulator.experiments.report_page import Section, banners_html, escape, figure_html, page_html
from simulator.experiments.run_folder import default_folder

QUESTION = "fewest_gpus"
"""What capacity.json says under `question`, which a search for a rate does not have."""
TITLES = {
    "goodput": "Attainment and goodput",
    "latency": "Latency over GPUs",
    "cost": "Cost over GPUs",
    "model": "The latency model's own error",
}
HOW = {
    "goodput": "A dashed upright is an answer, the dotted line the attainment that is asked for. Bands are "
    "95 % intervals over replications, which serve the same requests with any number of GPUs.",
    "latency": "Means over replications of each run's percentile, on a logarithmic axis; dotted: the limit.",
    "cost": "The price per hour of all GPUs over the output tokens of that hour.",
    "model": "The search again under draws of the profile's stated errors.",
}


def gpus_folder(found: Fewest) -> Path:
    """Return runs/capacity-<name>-<digest> for this search."""
    asked = repr((QUESTION, found.max_gpus, found.target, found.num_replications, found.num_draws))
    scenarios = "".join(each.loads.base.digest() for each in found.answers.values())
    digest = hashlib.sha256((scenarios + asked).encode()).hexdigest()[:8]
    first = default_folder(found.base)
    return first.with_name(f"capacity-{first.name.rpartition('-')[0]}-{digest}")


def to_dict(found: Fewest) -> dict[str, object]:
    """Return everything as JSON values; times in ms, shares as fractions, prices as the scenario's."""
    winner = None if found.winner is None else found.answers[found.winner]
    return {
        "question": QUESTION,
        "name": found.base.name,
        "version": version("servetwin"),
        "seed": found.base.seed,
        "slo": found.base.slo.model_dump(),
        "attainment_target": found.target,
        "max_gpus": found.max_gpus,
        "tolerance": TOLERANCE,
        "level": LEVEL,
        "replications": found.num_replications,
        "replication_kind": found.replications.kind,
        "model_draws": found.num_draws,
        "rule": found.rule,
        "why_rule": found.why_rule,
        "winner": found.winner,
        "winner_gpus": None if winner is None else winner.gpus,
        "tied": found.best[1:],
        "candidates": [_candidate(found, name) for name in found.answers],
        "notes": notes(found),
        "scenario": found.base.to_dict(),
    }


def _candidate(found: Fewest, name: str) -> dict[str, object]:
    answer, machine = found.answers[name], found.machines[name]
    n, at, below, model = answer.replicas, answer.at, answer.below, answer.model_interval
    return {
        "candidate": name,
        "outcome": answer.outcome,
        "gpus": answer.gpus,
        "replicas": n,
        "gpus_per_replica": answer.gpus_each,
        "most_replicas": answer.most,
        "attainment": None if at is None else at.attainment.to_dict(),
        "attainment_of_one_less": None if below is None else below.attainment.to_dict(),
        "surely_replicas": answer.surely,
        "missed_by_chance": answer.missed_by_chance,
        "model_interval": None if model is None else model.to_dict(),
        "model_replicas": {str(count): num for count, num in answer.counts.items()},
        "enough_in": answer.enough,
        "price_per_hour": answer.price,
        "cost_per_million_output_tokens": None if n is None else _estimate(answer.cost(n)),
        "met_below": answer.met_below,
        "missed_above": answer.missed_above,
        "words": [headline(found, answer), *details(answer)],
        "provenance": machine.latency.provenance,
        "times_from": source_name(answer.loads.base, machine),
        "points": [_point(answer, count, point) for count, point in answer.points.items()],
    }


def _point(answer: FleetAnswer, n: int, point: Point) -> dict[str, object]:
    names = [f"{m}_p{rank}" for m in ("ttft", "tpot") for rank in (50, 90, 99)]
    late = point.late_attainment
    return {
        "replicas": n,
        "gpus": n * answer.gpus_each,
        "meets": answer.met[n],
        "attainment": point.attainment.to_dict(),
        "late_attainment": None if late is None else late.value,
        "goodput": _estimate(point.goodput),
        "queue_growth": point.growth,
        "cost_per_million_output_tokens": _estimate(answer.cost(n)),
        **{f"{name}_ms": _estimate(point.mean(name)) for name in names},
    }


def _estimate(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else estimate.to_dict()


def gpus_text(found: Fewest) -> str:
    """Return the answer as strict JSON, the same bytes for the same search."""
    text = json.dumps(to_dict(found), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace").decode()  # half a character may come from a name


def gpus_html(found: Fewest) -> str:
    """Return the page. The same search gives the same text."""
    title = f"Fewest GPUs for {found.base.name}"
    answers = list(found.answers.values())
    several = len(answers) > 1
    first, *rest = [headline(found, each) for each in answers]
    lead = f'<h1>{escape(title)}</h1><p class="verdict">{escape(outcome(found) if several else first)}</p>'
    told = [f"Why so: {found.why_rule}."] if several and found.winner else []
    told += [first, *rest] if several else details(answers[0])
    lead += "".join(f'<p class="reason">{escape(line)}</p>' for line in told)
    odd = [("warning", f"{each.name}: {w}") for each in answers for w in warnings(each)] if several else []
    lead += banners_html([*odd, *(("note", f"{note}.") for note in notes(found))])
    priced = any(each.price is not None for each in answers)
    is_shown = {"cost": priced, "model": found.num_draws > 0}
    sections = [
        Section(name, TITLES[name], figure_html(GPUS_PLOTS[name](found), f"gpus-{name}", HOW[name]))
        for name in GPUS_PLOTS
        if is_shown.get(name, True)
    ]
    if several:
        sections.insert(0, Section("candidates", "Candidates", _candidates_html(found)))
    tables = "".join(numbers_table(fleet_cells(each), each.name if several else "") for each in answers)
    sections.append(Section("replicas", "Numbers of replicas tested", tables))
    footer = f"servetwin {version('servetwin')}, seed {found.base.seed}; "
    return page_html(title, lead, sections, footer + slo_words(found.base, found.target))


def _candidates_html(found: Fewest) -> str:
    """Return the table of candidates, and how sure each is."""
    told = [f"{each.name}: {' '.join(details(each))}" for each in found.answers.values() if each.replicas]
    lines = "".join(f"<p>{escape(line)}</p>" for line in told)
    return numbers_table(candidate_cells(found)) + lines


def save_gpus(found: Fewest, folder: Path, *, report: bool = True) -> list[Path]:
    """Write capacity.json, report.html and winner/ and return their paths; InputError if it cannot be.

    `winner/` is the winning scenario with its replicas; there is none if nobody meets.
    """
    page = partial(gpus_html, found) if report else None
    winner = found.winner
    scenario = None if winner is None else found.answers[winner].scenario
    if winner is None or scenario is None:
        return write_capacity(folder, gpus_text(found), page)
    won = Won(scenario, found.policies[winner], found.machines[winner])
    return write_capacity(folder, gpus_text(found), page, won)
