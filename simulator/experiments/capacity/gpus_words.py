"""The fewest GPUs in words: the answer, how sure it is, what it costs, what is odd about it; its tables."""

from __future__ import annotations

import math

from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.capacity.gpus_found import BY_PRICE, Fewest
from simulator.experiments.capacity.gpus_tables import candidate_cells, fleet_cells, most_words
from simulator.experiments.capacity.point import LEVEL, Estimate
from simulator.experiments.capacity.words import aligned, least_words, slo_words
from simulator.experiments.model_draws import source_name

MOST_ODD = 4  # numbers that a sentence lists


def gpus_words(answer: FleetAnswer, replicas: int) -> str:
    """Name a number of replicas by its GPUs."""
    gpus = count_words(replicas * answer.gpus_each, "GPU")
    if answer.gpus_each == 1:
        return gpus
    return f"{gpus} ({count_words(replicas, 'replica')} of {answer.gpus_each})"


def count_words(n: int, what: str) -> str:
    """Say how many.

    >>> count_words(1, "GPU"), count_words(4, "GPU")
    ('1 GPU', '4 GPUs')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def headline(found: Fewest, answer: FleetAnswer) -> str:
    """Say in one sentence how many GPUs a candidate needs."""
    who = "" if len(found.answers) == 1 else f"{answer.name}: "
    slo = slo_words(found.base, found.target)
    if answer.at is None or answer.replicas is None:
        best = max(answer.points.values(), key=lambda each: (each.attainment.value, each.rate))
        most = gpus_words(answer, int(best.rate))
        return (
            f"{who}{found.max_gpus:,} GPUs are too few for {answer.loads.words(best)} within {slo}. "
            f"The best found, with {most}, is {share_words(best.attainment)}: "
            f"{answer.why(best)}{least_words(best)}."
        )
    gpus, load = gpus_words(answer, answer.replicas), answer.loads.words(answer.at)
    verb = "serves" if gpus == "1 GPU" else "serve"
    return f"{who}{gpus} {verb} {load} within {slo}: {share_words(answer.at.attainment)}."


def share_words(share: Estimate) -> str:
    """Return a share with its interval."""
    if share.low is None or share.high is None:
        return f"{100 * share.value:.2f} %"
    return (
        f"{100 * share.value:.2f} % ({100 * LEVEL:g} % interval {100 * share.low:.2f} to "
        f"{100 * share.high:.2f} %)"
    )


def details(answer: FleetAnswer) -> list[str]:
    """Say what one replica less gives, how sure the answer is and what it costs, a line each."""
    told, n = [], answer.replicas
    if n is None:
        return []
    if answer.below is not None:
        less = gpus_words(answer, n - 1)
        told.append(f"With {less}: {share_words(answer.below.attainment)}; {answer.why(answer.below)}.")
    told += [*_sure(answer, n), *_by_model(answer, n)]
    price, cost = answer.price, answer.cost(n)
    if price is not None:
        tokens = "" if cost is None else f", {cost.value:.3g} a million output tokens"
        told.append(f"Price: {price:.4g} an hour{tokens}.")
    return [*told, *warnings(answer)]


def _sure(answer: FleetAnswer, n: int) -> list[str]:
    """Say whether other requests might ask for more or fewer."""
    at = answer.at
    if at is None or at.attainment.low is None:
        return ["One replication tells nothing about how sure that is."]
    if answer.surely != n:
        more = "none tested" if answer.surely is None else gpus_words(answer, answer.surely)
        return [
            "Not sure: the interval reaches below what is asked for; "
            f"the fewest whose interval does not: {more}."
        ]
    if answer.missed_by_chance:
        return [
            "One replica less misses, but not by more than chance: its interval reaches what is asked for."
        ]
    less = ""
    if answer.below is not None and answer.below.attainment.high is not None:
        is_below = answer.below.attainment.high < answer.target
        less = (
            ", that of one replica less below it" if is_below else "; with one replica less the queue grows"
        )
    return [f"Sure as far as other requests go: the interval lies above what is asked for{less}."]


def _by_model(answer: FleetAnswer, n: int) -> list[str]:
    """Say what the latency model's own error leaves of it."""
    span, enough = answer.model_interval, answer.enough
    if span is None or enough is None:
        return []
    ends = dict.fromkeys([most_words(answer, math.floor(span.low)), most_words(answer, math.ceil(span.high))])
    return [
        f"By the model's own error: {' to '.join(ends)} replicas ({100 * span.level:g} % interval of "
        f"{span.draws} draws); {n} {'is' if n == 1 else 'are'} enough in {100 * enough:.0f} % of the draws."
    ]


def warnings(answer: FleetAnswer) -> list[str]:
    """Say where more replicas are not better, and where the runs flatter."""
    told = []
    for numbers, what in (
        (answer.met_below, "fewer replicas meet too"),
        (answer.missed_above, "more replicas miss"),
    ):
        if numbers:
            shown = ", ".join(map(str, numbers[:MOST_ODD])) + (", .." if len(numbers) > MOST_ODD else "")
            told.append(f"Not monotone: {what}, {shown}.")
    late = None if answer.at is None else answer.at.late_attainment
    if late is not None and late.high is not None and late.high < answer.target:
        told.append(
            f"The second half of the requests attains only {100 * late.value:.2f} %: the runs are short; "
            "more requests may ask for more GPUs."
        )
    return told


def outcome(found: Fewest) -> str:
    """Say who wins, and who is just as good."""
    if found.winner is None:
        return f"No candidate meets the SLO with {count_words(found.max_gpus, 'GPU')}."
    winner, *equals = found.best
    best = found.answers[winner]
    tie = f"; just as good: {', '.join(equals)}" if equals else ""
    price = f", {best.price:.4g} an hour" if found.rule == BY_PRICE else ""
    rule = "Cheapest" if found.rule == BY_PRICE else "Fewest GPUs"
    return f"{rule}: {winner}, {gpus_words(best, best.replicas or 0)}{price}{tie}."


def text(found: Fewest) -> str:
    """Return the whole answer as text."""
    lines = []
    for answer in found.answers.values():
        lines += [headline(found, answer), *(f"  {line}" for line in details(answer))]
    if len(found.answers) > 1:
        lines += ["", *aligned(*candidate_cells(found)), outcome(found)]
        lines += [] if found.winner is None else [f"Why so: {found.why_rule}."]
    else:
        lines += ["", *aligned(*fleet_cells(next(iter(found.answers.values()))))]
    return "\n".join([*lines, "", *(f"Note: {note}" for note in notes(found))])


def notes(found: Fewest) -> list[str]:
    """Say what the answer rests on."""
    kept = found.replications.words(found.num_replications)
    told = [f"{kept}, the same for any number of replicas"]
    if not found.same_load:
        told.append("the candidates serve different loads: who needs the fewest GPUs is the load's doing")
    if found.one_price:
        told.append("candidates on different GPUs all have the same hardware.price_per_gpu_hour")
    sources = {n: source_name(each.loads.base, found.machines[n]) for n, each in found.answers.items()}
    if len(set(sources.values())) > 1:
        each = "; ".join(f"{name}: {source}" for name, source in sources.items())
        told.append(f"step times come from different sources, with errors of their own: {each}")
    return [*told, *found.notes]
