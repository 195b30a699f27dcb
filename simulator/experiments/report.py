"""The report of one run: a single HTML file that opens anywhere, offline, and prints.

It says first what came out, then what not to believe, then shows the figures. Where numbers come from and
what a missing one does: `report_summary`. Markup: `report_page`. Sentences: `report_words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from simulator.experiments.fleet_plots import FLEET_PLOTS
from simulator.experiments.fleet_tables import fleet_html
from simulator.experiments.latency_plots import latencies
from simulator.experiments.model_interval import interval_html
from simulator.experiments.plots import PLOTS
from simulator.experiments.report_page import (
    Section,
    banners_html,
    cards_html,
    definitions_html,
    details_html,
    escape,
    figure_html,
    page_html,
    pre_html,
    table_html,
)
from simulator.experiments.report_summary import (
    Slo,
    bottleneck_html,
    key_figures,
    own,
    percentiles_html,
    warnings,
)
from simulator.experiments.report_words import FIGURES, FLEET_FIGURES, VOCABULARY
from simulator.experiments.tenant_tables import tenants_html
from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable, StepTable


def build_report(
    *,
    title: str,
    summary: Mapping[str, object],
    block: str,
    requests: RequestTable,
    steps: StepTable,
    num_blocks: int,
    slo: Slo | None = None,
    gaps: tuple[Floats, Ints] | None = None,
) -> str:
    """Return the report as one HTML document; the same arguments give the same text."""
    extra = own(summary)
    verdict, _, reason = str(extra.get("verdict") or "This run has no verdict.").partition(". ")
    lead = f'<h1>{escape(title)}</h1><p class="verdict">{escape(verdict + "." * bool(reason))}</p>'
    for kind, words in (("reason", reason), ("provenance", str(extra.get("provenance") or ""))):
        lead += f'<p class="{kind}">{escape(words)}</p>' if words else ""
    sections = [Section("overview", "Overview", _overview(summary, block, slo))]
    if intervals := interval_html(summary):
        sections.append(Section("model-interval", "Model interval", intervals))
    if tenants := tenants_html(summary):
        sections.append(Section("tenants", "Tenants and classes", tenants))
    if fleet := fleet_html(summary):
        drawn = (
            figure_html(plot(requests, steps), kind, FLEET_FIGURES[kind])
            for kind, plot in FLEET_PLOTS.items()
        )
        sections.append(Section("replicas", "Replicas", fleet + "".join(drawn)))
    for anchor, (heading, figures) in FIGURES.items():
        body = "".join(
            figure_html(PLOTS[kind](requests, steps, num_blocks=num_blocks, slo=slo, gaps=gaps), kind, how)
            for kind, how in figures.items()
        )
        after = percentiles_html(summary) if anchor == "latency" else ""
        sections.append(Section(anchor, heading, body + after))
    sections += [
        Section("slowest", "Slowest requests", slowest_html(requests)),
        Section("scenario", "Scenario", _scenario(extra)),
        Section("words", "Words", definitions_html(VOCABULARY)),
    ]
    footer = f"servetwin {extra.get('version', '')}, seed {extra.get('seed', '–')}"
    return page_html(title, lead + banners_html(warnings(summary)), sections, footer)


def write_report(
    path: str | Path,
    *,
    title: str,
    summary: Mapping[str, object],
    block: str,
    requests: RequestTable,
    steps: StepTable,
    num_blocks: int,
    slo: Slo | None = None,
    gaps: tuple[Floats, Ints] | None = None,
) -> None:
    """Write the report as UTF-8, whatever the machine's locale."""
    page = build_report(
        title=title,
        summary=summary,
        block=block,
        requests=requests,
        steps=steps,
        num_blocks=num_blocks,
        slo=slo,
        gaps=gaps,
    )
    Path(path).write_text(page, encoding="utf-8", errors="backslashreplace", newline="\n")


def slowest_html(requests: RequestTable, count: int = 10) -> str:
    """Draw the table of the requests with the longest end-to-end latency."""
    ms = {name: values * 1000 for name, values in latencies(requests).items()}
    order = np.argsort(-np.nan_to_num(ms["e2el"], nan=-1.0), kind="stable")[:count]
    rows = [
        [
            requests.id[i],
            float(requests.arrival[i]),
            *(int(column[i]) for column in (requests.num_prompt, requests.num_cached, requests.num_output)),
            *(float(ms[name][i]) for name in ("queue", "ttft", "tpot", "e2el")),
            int(requests.num_preemptions[i]),
        ]
        for i in order
        if requests.status[i] == COMPLETED
    ]
    names = ("arrival (s)", "prompt (tok)", "cached (tok)", "output (tok)")
    times = ("queue (ms)", "TTFT (ms)", "TPOT (ms)", "E2E (ms)")
    return (
        table_html(["request", *names, *times, "preempted"], rows) if rows else "<p>No request completed.</p>"
    )


def _overview(summary: Mapping[str, object], block: str, slo: Slo | None) -> str:
    runs = bottleneck_html(summary)
    why = f"<h3>What would help</h3>{runs}" if runs else ""
    result = details_html("Result as vllm bench serve prints it", pre_html(block)) if block else ""
    return cards_html(key_figures(summary, slo)) + why + result


def _scenario(extra: Mapping[str, object]) -> str:
    scenario = extra.get("scenario")
    if not scenario:
        return "<p>This run was recorded elsewhere and has no scenario.</p>"
    content = yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True)
    return details_html("Every key of this run, defaults resolved", pre_html(content))
