"""A capacity in words: the answer, how sure it is, what is odd about it, and its tables."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.config.scenario import Scenario
from simulator.config.tenants import tenant_limits
from simulator.experiments.capacity.answer import ALL, NONE, Answer
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.point import LEVEL, Estimate, Point

Cells = tuple[list[str], list[list[str]]]
MOST_ODD = 4  # rates that a sentence lists


def slo_words(base: Scenario, target: float) -> str:
    """Name the SLO and the attainment."""
    names = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
    limits = [f"{names[k]} <= {1e3 * v:g} ms" for k, v in base.slo.seconds().items()]
    if any(tenant_limits(base).values()):
        limits.append("their tenant's limits")
    return f"{', '.join(limits) or 'their own SLO'} for {100 * target:g} % of the requests"


def headline(found: Found, answer: Answer) -> str:
    """Say in one sentence what a candidate's capacity is."""
    unit, slo = answer.loads.unit, slo_words(found.base, found.target)
    who = "" if len(found.answers) == 1 else f"{answer.name}: "
    if answer.outcome == NONE:
        return f"{who}No rate tested meets {slo}. {no_rate(answer)}"
    rate = f"{answer.rate:.4g} {unit}"
    if answer.outcome == ALL:
        return f"{who}At least {rate}, the highest rate tested: every rate tested meets {slo}."
    return f"{who}{rate} {sure(answer)}within {slo}."


def sure(answer: Answer) -> str:
    """Return the intervals of a capacity in brackets."""
    parts, interval, model = [], answer.interval, answer.model_interval
    if interval is not None and interval.low is not None:
        parts.append(f"{100 * LEVEL:g} % interval {interval.low:.4g} to {interval.high:.4g}")
    if model is not None:
        parts.append(f"by the model's own error {model.low:.4g} to {model.high:.4g}")
    return f"({'; '.join(parts)}) " if parts else ""


def no_rate(answer: Answer) -> str:
    """Say why no rate meets, from the lowest rate tested."""
    lowest = answer.points[0]
    why = f"At {lowest.rate:.4g} {answer.loads.unit} {answer.why(lowest)}"
    return f"{why}{least_words(lowest)}."


def least_words(point: Point) -> str:
    """Name the least latencies of a point: what no load is needed for."""
    least = [
        f"the least {name.upper()} is {found.value:,.0f} ms"
        for name in ("ttft", "tpot")
        if (found := point.mean(f"{name}_least")) is not None
    ]
    return f"; {' and '.join(least)}" if least else ""


def details(answer: Answer) -> list[str]:
    """Say what happens at the capacity and beyond it, a line each."""
    told, unit, at, edge = [], answer.loads.unit, answer.at, answer.edge
    if at is not None and at.goodput is not None:
        told.append(f"Goodput there: {at.goodput.value:.4g} requests/s within the SLO.")
    if edge is not None:
        told.append(f"Missed first at {edge.missed:.4g} {unit}: {answer.why(answer.tested[edge.missed])}.")
    if answer.knee is not None:
        told.append(f"Knee of goodput: {answer.knee:.4g} {unit} (Kneedle).")
    if at is not None and (price := answer.cost(at)) is not None:
        told.append(f"A million output tokens cost {price.value:.3g} at the capacity.")
    if answer.binding is not None:
        told.append(
            f"What binds beyond it, at {answer.pushed:.4g} {unit}: {answer.binding['name']} "
            f"({answer.binding['reason']})."
        )
    return [*told, *warnings(answer)]


def warnings(answer: Answer) -> list[str]:
    """Say where the curve is not what the answer suggests."""
    told, unit = [], answer.loads.unit
    if answer.missed_below:
        told.append(f"Not monotone: it misses at lower rates too, {_rates(answer.missed_below)} {unit}.")
    if answer.met_above:
        told.append(f"Not monotone: it meets again at higher rates, {_rates(answer.met_above)} {unit}.")
    late = None if answer.at is None else answer.at.late_attainment
    if late is not None and late.high is not None and late.high < answer.target:
        told.append(
            f"The second half of the requests attains only {100 * late.value:.2f} %: the runs are short for "
            "this rate; more requests give a lower one."
        )
    return told


def _rates(rates: Sequence[float]) -> str:
    shown = ", ".join(f"{rate:.4g}" for rate in rates[:MOST_ODD])
    return f"{shown} and {len(rates) - MOST_ODD} more" if len(rates) > MOST_ODD else shown


def candidate_cells(found: Found) -> Cells:
    """Return one row per candidate: its capacity, the difference to the first, the verdict."""
    unit = next(iter(found.answers.values())).loads.unit
    titles = ["candidate", unit, "interval", "model interval", "difference", "interval of it", "verdict"]
    rows = []
    for name, answer in found.answers.items():
        apart, model = found.difference(name), answer.model_interval
        rows.append(
            [
                name,
                "–" if answer.rate is None else f"{'>= ' * (answer.outcome == ALL)}{answer.rate:.4g}",
                _span(answer.interval),
                "–" if model is None else f"{model.low:.4g} to {model.high:.4g}",
                "–" if apart is None else f"{apart.value:+.3g}",
                _span(apart, "+.3g"),
                found.verdict(name),
            ]
        )
    if not found.num_draws:
        titles.pop(3)
        rows = [row[:3] + row[4:] for row in rows]
    return titles, rows


def _span(estimate: Estimate | None, form: str = ".4g") -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.low:{form}} to {estimate.high:{form}}"


def rate_cells(answer: Answer) -> Cells:
    """Return one row per rate tested."""
    titles = ["rate", "SLO", "within SLO", "interval", "goodput req/s", "queue growth"]
    titles += ["TTFT p50 ms", "TTFT p99 ms", "TPOT p99 ms"]
    return titles, [_row(answer, point) for point in answer.points]


def _row(answer: Answer, point: Point) -> list[str]:
    share, good = point.attainment, point.goodput
    span = "–" if share.low is None else f"{100 * share.low:.2f} to {100 * (share.high or 0):.2f}%"
    times = [point.mean(name) for name in ("ttft_p50", "ttft_p99", "tpot_p99")]
    return [
        f"{point.rate:.4g}",
        "met" if answer.met[point.rate] else "missed",
        f"{100 * share.value:.2f}%",
        span,
        "–" if good is None else f"{good.value:.4g}",
        f"{100 * point.growth:.1f}%",
        *("–" if t is None else f"{t.value:,.1f}" for t in times),
    ]


def text(found: Found) -> str:
    """Return the whole answer as text."""
    lines = []
    for answer in found.answers.values():
        lines += [headline(found, answer), *(f"  {line}" for line in details(answer))]
    if len(found.answers) > 1:
        lines += ["", *aligned(*candidate_cells(found)), outcome(found)]
    else:
        lines += ["", *aligned(*rate_cells(next(iter(found.answers.values()))))]
    return "\n".join([*lines, "", *(f"Note: {note}" for note in notes(found))])


def outcome(found: Found) -> str:
    """Say who has the highest capacity."""
    if found.winner is None:
        return "No candidate meets the SLO at any rate tested."
    best = found.answers[found.winner]
    equals = [n for n, a in found.answers.items() if a.rate == best.rate]
    tie = f"; just as high: {', '.join(equals[1:])}" if len(equals) > 1 else ""
    return f"Highest: {found.winner}, {best.rate:.4g} {best.loads.unit}{tie}"


def notes(found: Found) -> list[str]:
    """Say what the answer rests on."""
    told = [f"{found.replications.words(found.num_replications)}, the same at every rate"]
    if len(found.answers) > 1:
        told.append(f"differences are to {found.baseline}, replication by replication")
    return [*told, *found.notes]


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines, the first column left and the others right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    table = (titles, *rows)
    return ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]).rstrip() for r in table]
