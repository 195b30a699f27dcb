"""One run's model intervals: into its summary, and out of a summary as text and as a part of the report.

summary["servetwin"]["model_interval"][metric] = {low, high, draws, level}; beside it "sampling_interval",
null until runs are replicated, and "model_draws": how many, of which errors, and in how many the SLO is met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from simulator.config.build import Machine, build_machine
from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.compare_draws import interval_text
from simulator.experiments.intervals import Interval
from simulator.experiments.metric_cells import COLUMNS, cell
from simulator.experiments.model_draws import ModelDraws, check_drawable, draw_models
from simulator.experiments.report_page import Number, escape, table_html
from simulator.experiments.report_summary import mapping, number, own
from simulator.latency.base import LatencyModel
from simulator.latency.uncertainty import error_terms

SHOWN = {**COLUMNS, "p99_e2el_ms": "E2EL p99 ms"}
"""Titles of the metrics that are printed; the summary has all."""


def drawable_machine(scenario: Scenario) -> Machine:
    """Return a scenario's machine; ConfigError if its latency model states no errors to draw."""
    machine = build_machine(scenario)
    check_drawable(machine)
    return machine


def add_model_interval(
    run: Run,
    k: int,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Serve a run's requests again under k draws of its model's errors; add intervals to its summary."""
    name = run.scenario.name
    draws = draw_models({name: run}, k, run.scenario.seed, workers=workers, progress=progress)
    run.own["model_interval"] = {metric: each.to_dict() for metric, each in draws.intervals(name).items()}
    run.own["sampling_interval"] = None  # one run is one sample
    run.own["model_draws"] = {**draws.to_dict(), "slo_met": _times_met(run, draws, name)}


def _times_met(run: Run, draws: ModelDraws, name: str) -> int | None:
    """Return in how many draws the SLO is met; None without an SLO, or if no request arrived."""
    if not (run.own["slo"] or run.own["slo_by_tenant"]) or run.own["attainment"] is None:
        return None
    return sum(values["attainment"] >= run.scenario.slo.attainment for values in draws.values[name])


def interval_rows(summary: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Return title, value and model interval of each metric of `SHOWN` as texts; empty without draws."""
    extra = own(summary)
    intervals = mapping(extra.get("model_interval"))
    rows = []
    for key, title in SHOWN.items():
        found = mapping(intervals.get(key))
        low, high = number(found, "low"), number(found, "high")
        if low is None or high is None:
            continue
        value = number(summary, key) if key in summary else number(extra, key)
        bounds = Interval(low, high, int(number(found, "draws") or 0), number(found, "level") or 0.0)
        rows.append((title, cell(key, value), interval_text(bounds, partial(cell, key))))
    return rows


def interval_heading(summary: Mapping[str, object]) -> str:
    """Say what the intervals are: their level, the number of draws, and the errors that were drawn."""
    extra = own(summary)
    draws = mapping(extra.get("model_draws"))
    levels = [number(mapping(each), "level") for each in mapping(extra.get("model_interval")).values()]
    sources = mapping(draws.get("errors")).values()  # one run has one
    errors = errors_text({term: float(str(e)) for each in sources for term, e in mapping(each).items()})
    level = 100 * max((each for each in levels if each is not None), default=0.0)
    return (
        f"Model interval, {level:.0f} %, from {draws.get('draws')} draws of the profile's errors ({errors})"
    )


def drawing_words(latency: LatencyModel) -> str:
    """Say in a line what model draws would draw, and what they cost; or that there is nothing to draw."""
    try:
        errors = errors_text(error_terms(latency))
    except ConfigError:
        return "Model draws: none, this latency model states no errors"
    return f"Model draws (--model-draws K): K more such runs, shared by the cores; errors {errors}"


def errors_text(terms: Mapping[str, float]) -> str:
    """Return relative standard errors by term as text.

    >>> errors_text({"dense": 0.1077, "host": 0.3})
    'dense 10.8 %, host 30 %'
    """
    return ", ".join(f"{term} {100 * error:.3g} %" for term, error in terms.items())


def interval_text_of(summary: Mapping[str, object]) -> str:
    """Return the intervals as lines of text, empty without draws."""
    rows = interval_rows(summary)
    if not rows:
        return ""
    lines = [f"  {title:<16}{value:>12}   model interval {bounds}" for title, value, bounds in rows]
    return "\n".join(
        [f"{interval_heading(summary)}:", *lines, "  Sampling interval: none, one run is one sample"]
    )


def interval_html(summary: Mapping[str, object]) -> str:
    """Return the intervals as a table of the report, empty without draws."""
    rows = [[title, Number(value), Number(bounds), None] for title, value, bounds in interval_rows(summary)]
    if not rows:
        return ""
    heads = ["metric", "this run", "model interval", "sampling interval"]
    what = (
        "How far the errors that the profile states of itself can move each number, for the same requests "
        "and policies. It holds no error of the model's form, of the workload, or of the policies' rules."
    )
    return table_html(heads, rows, f"{interval_heading(summary)}.") + f"<p>{escape(what)}</p>"
