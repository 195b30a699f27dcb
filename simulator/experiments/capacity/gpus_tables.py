"""The fewest GPUs in tables: candidates, and numbers of replicas."""

from __future__ import annotations

import math

from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.point import Estimate, Point
from simulator.experiments.capacity.words import Cells


def most_words(answer: FleetAnswer, n: int) -> str:
    """Name a number of replicas that a draw asks for."""
    return f"{n}" if n <= answer.most else f"more than {answer.most}"


def candidate_cells(found: Fewest) -> Cells:
    """Return one row per candidate: its fewest GPUs, how sure, the price."""
    titles = ["candidate", "GPUs", "replicas", "within SLO", "interval", "one less"]
    titles += ["by model error", "enough in", "price/hour", "price/M tokens"]
    rows = [_candidate_row(answer) for answer in found.answers.values()]
    kept = [i for i, _ in enumerate(titles) if i < 6 or any(row[i] != "–" for row in rows)]
    return [titles[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _candidate_row(answer: FleetAnswer) -> list[str]:
    n, at = answer.replicas, answer.at
    if n is None or at is None:
        return [answer.name, f"> {answer.most * answer.gpus_each:,}", f"> {answer.most:,}", *["–"] * 7]
    span, cost = answer.model_interval, answer.cost(n)
    ends = "–" if span is None else f"{math.floor(span.low)} to {most_words(answer, math.ceil(span.high))}"
    return [
        answer.name,
        f"{answer.gpus:,}",
        f"{n:,}",
        f"{100 * at.attainment.value:.2f}%",
        _span(at.attainment),
        "–" if answer.below is None else f"{100 * answer.below.attainment.value:.2f}%",
        ends,
        "–" if answer.enough is None else f"{100 * answer.enough:.0f}%",
        "–" if answer.price is None else f"{answer.price:,.4g}",
        "–" if cost is None else f"{cost.value:.3g}",
    ]


def _span(share: Estimate) -> str:
    if share.low is None or share.high is None:
        return "–"
    return f"{100 * share.low:.2f} to {100 * share.high:.2f}%"


def fleet_cells(answer: FleetAnswer) -> Cells:
    """Return one row per number of replicas tested."""
    titles = ["replicas", "GPUs", "SLO", "within SLO", "interval", "goodput req/s", "queue growth"]
    titles += ["TTFT p50 ms", "TTFT p99 ms", "TPOT p99 ms", "price/M tokens"]
    rows = [_row(answer, n, point) for n, point in answer.points.items()]
    if all(row[-1] == "–" for row in rows):
        return titles[:-1], [row[:-1] for row in rows]
    return titles, rows


def _row(answer: FleetAnswer, n: int, point: Point) -> list[str]:
    good, cost = point.goodput, answer.cost(n)
    times = [point.mean(name) for name in ("ttft_p50", "ttft_p99", "tpot_p99")]
    return [
        f"{n:,}",
        f"{n * answer.gpus_each:,}",
        "met" if answer.met[n] else "missed",
        f"{100 * point.attainment.value:.2f}%",
        _span(point.attainment),
        "–" if good is None else f"{good.value:.4g}",
        f"{100 * point.growth:.1f}%",
        *("–" if t is None else f"{t.value:,.1f}" for t in times),
        "–" if cost is None else f"{cost.value:.3g}",
    ]
