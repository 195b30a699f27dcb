"""The gap between a run and its bounds, in numbers and in one paragraph.

Percentiles are compared with the percentiles of the least latencies: where no request is quicker than its
least, no percentile is either.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.experiments.bounds import REFERENCE, Found, Served
from simulator.metrics.percentiles import percentiles
from simulator.metrics.tables import COMPLETED, Floats

METRICS = ("ttft", "e2el")
STATISTICS = ("mean", "median", "p99")
SAME = 0.01
"""Relative change of a mean that is not called a change."""


def rows(found: Found) -> list[dict[str, object]]:
    """Return one row per metric: of this run, its bound, their ratio, of the reference, and its change.

    A ratio is run / bound: at least 1 for times, at most 1 for rates. None where there is no number.
    """
    own, other, bound = values(found.own), values(found.reference), bounds(found)
    return [
        {
            "metric": name,
            "run": value,
            "bound": bound.get(name),
            "ratio": _ratio(value, bound.get(name)),
            "reference": other[name],
            "change": _change(value, other[name]),
        }
        for name, value in own.items()
    ]


def values(served: Served) -> dict[str, float | None]:
    """Return what a run came to; throughput over the makespan of all completed requests."""
    span = served.makespan if served.num_completed else None
    found = {"makespan_s": span} | _rates(served, span)
    for metric in METRICS:
        found |= _latencies(served, metric, 1e3 * getattr(served.measured, metric))
    return found


def bounds(found: Found) -> dict[str, float | None]:
    """Return what no policy can beat, under the keys of `values`; empty if nothing is bounded."""
    if found.binding is None or found.own.alone is None:
        return {}
    least = {"makespan_s": found.binding.seconds} | _rates(found.own, found.binding.seconds)
    for metric in METRICS:
        least |= _latencies(found.own, metric, 1e3 * found.own.least(metric))
        least[f"mean_{metric}_ms"] = 1e3 * max(least_means(found.own, metric))
    return least


def least_means(served: Served, metric: str) -> tuple[float, float]:
    """Return what bounds a mean latency, s: each request alone, and all on one GPU in the best order."""
    before = served.run.requests.pre_delay[served.measured.rows] if metric == "e2el" else np.zeros(1)
    return float(served.least(metric).mean()), served.least_mean[metric] + float(before.mean())


def slowdowns(served: Served, metric: str) -> Floats:
    """Return each measured request's "ttft" or "e2el" over its least."""
    if served.alone is None:
        return np.zeros(0)
    times: Floats = getattr(served.measured, metric) / served.least(metric)
    return times


def slowdown_rows(found: Found) -> list[dict[str, object]]:
    """Return mean, median and p99 slowdown by metric, of the run and of the reference."""
    method = found.own.run.scenario.run.percentile_method
    return [
        {"metric": metric, "of": name, **dict(zip(STATISTICS, statistics(each, method), strict=True))}
        for metric in METRICS
        for name, each in (
            ("run", slowdowns(found.own, metric)),
            ("reference", slowdowns(found.reference, metric)),
        )
    ]


def limit_rows(found: Found) -> list[dict[str, object]]:
    """Return one row per limit of the makespan; `share` is its work over the run's makespan.

    `max_request_throughput` is what this work allows where requests never run out.
    """
    span, completed = found.own.makespan, found.own.num_completed
    return [
        {
            "limit": limit.name,
            "why": limit.why,
            "makespan_s": limit.seconds,
            "work_s": limit.work,
            "share": _ratio(limit.work, span),
            "max_request_throughput": _ratio(completed, limit.work),
            "is_binding": limit is found.binding,
        }
        for limit in found.limits
    ]


def verdict(found: Found) -> list[str]:
    """Say in a few sentences how far the run is from its bounds and what they leave to be won."""
    if not found.own.num_completed:
        return ["No request completed, so there is nothing to bound."]
    if found.binding is None or found.own.alone is None:
        return ["Nothing could be bounded.", *_order_words(found)]
    return [*_throughput_words(found), *_latency_words(found), *_order_words(found)]


def _throughput_words(found: Found) -> Iterator[str]:
    own, bound = values(found.own)["output_throughput"], bounds(found)["output_throughput"]
    if own is None or bound is None or found.binding is None:
        return
    yield (
        f"Output throughput is {_percent(own / bound)} of its bound of {bound:,.0f} tok/s "
        f"(limit: {found.binding.name})."
    )


def _latency_words(found: Found) -> Iterator[str]:
    own = values(found.own)["mean_e2el_ms"]
    if own is None:
        return
    alone, shared = least_means(found.own, "e2el")
    why = "each request alone" if alone >= shared else "the GPU's work in the best order"
    won = max(0.0, 1 - 1e3 * max(alone, shared) / own)
    yield (
        f"Mean E2E latency is {own / 1e3:,.3g} s; no policy gets below {max(alone, shared):,.3g} s ({why}), "
        f"so at most {_percent(won)} can be won."
    )


def _order_words(found: Found) -> Iterator[str]:
    own, other = values(found.own)["mean_e2el_ms"], values(found.reference)["mean_e2el_ms"]
    if found.reference.run is found.own.run:
        yield f"This run is served in the order of the reference, {REFERENCE}."
    elif not _same_requests(found):
        yield f"Under {REFERENCE} other requests complete and count, so the means are not compared."
    elif own is not None and other is not None:
        change = round(other / own - 1, 3) + 0.0  # no "-0.0 %"
        who = f"{REFERENCE}, which knows the lengths of all answers,"
        if change < -SAME:
            yield f"{who} takes {_percent(-change)} off: an order that knew them can win so much, or more."
        elif change > SAME:
            yield f"{who} adds {_percent(change)}: this reference shows nothing to be won by order."
        else:
            yield f"{who} changes it by {100 * change:+.1f} %: as far as that shows, order matters little."


def _same_requests(found: Found) -> bool:
    counted = []
    for served in (found.own, found.reference):
        ids = served.run.requests.id
        counted.append(sorted(ids[row] for row in served.measured.rows.tolist()))
    return counted[0] == counted[1]


def statistics(sample: Floats, method: str) -> list[float | None]:
    """Return mean, median and p99; None for an empty sample."""
    mean = float(sample.mean()) if len(sample) else None
    return [mean, *percentiles(sample, [50, 99], method)]


def _latencies(served: Served, metric: str, ms: Floats) -> dict[str, float | None]:
    found = statistics(ms, served.run.scenario.run.percentile_method)
    return {f"{name}_{metric}_ms": value for name, value in zip(STATISTICS, found, strict=True)}


def _rates(served: Served, span: float | None) -> dict[str, float | None]:
    table = served.run.requests
    tokens = int(table.num_output[table.status == COMPLETED].sum())
    return {
        "output_throughput": _ratio(tokens, span),
        "request_throughput": _ratio(served.num_completed, span),
    }


def _ratio(value: float | None, of: float | None) -> float | None:
    return None if value is None or not of else value / of


def _change(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None or not value else other / value - 1


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
