"""The page of a validation: measured against simulated, by request and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibration.validate import LATENCIES, RANKS, Validation
from simulator.experiments.figure_style import (
    FAINT,
    LATENCY,
    MEMORY,
    NEUTRAL,
    RUNNING,
    WAITING,
    add_line,
    new_figure,
)
from simulator.experiments.report_page import (
    Card,
    Number,
    Section,
    banners_html,
    cards_html,
    definitions_html,
    escape,
    figure_html,
    page_html,
    table_html,
)
from simulator.latency.base import Floats
from simulator.workload.workload import Ints

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E latency", "queue": "queue time"}
NAMES = {"running": "running,", "waiting": "waiting,", "kv_cache_pct": "KV use,"}
UNITS = {"ttft": "s", "tpot": "ms", "e2el": "s"}
POINTS = "Each point is a request. On the dashed line the simulation took as long as the server did."
TIMES = "The server's own counts, once a second, and the simulation's, after every step."
ERRORS = "Above zero the simulation is slower than the server was."


def validation_html(found: list[Validation]) -> str:
    """Return the page of one validation, or of an unfitted and a fitted one. Same input, same text."""
    last = found[-1]
    title = f"{last.profile.name} against {last.measured.name}"
    lead = f'<h1>{escape(title)}</h1><p class="verdict">{escape(_verdict(found))}</p>'
    sections = [
        Section("errors", "Errors", figure_html(error_bars(found), "errors", ERRORS) + _table(found)),
        Section("requests", "By request", figure_html(request_scatter(last), "requests", POINTS)),
    ]
    if last.measured.series:
        sections.append(Section("time", "Over time", figure_html(over_time(last), "time", TIMES)))
    sections.append(Section("counts", "Counts", _counts(last)))
    sections.append(Section("basis", "What it rests on", definitions_html(_basis(last))))
    notes = banners_html(("note", note) for note in last.notes)
    return page_html(title, lead + cards_html(_cards(found)) + notes, sections)


def _verdict(found: list[Validation]) -> str:
    text = f"Largest error of fifteen latency figures: {found[0].worst:.1%}, nothing fitted on the run."
    if len(found) > 1:
        constant = 1e3 * found[-1].constant
        text += f" With {constant:.2f} ms a step, fitted on the mean TPOT alone: {found[-1].worst:.1%}."
    return text


def _cards(found: list[Validation]) -> list[Card]:
    last = found[-1]
    cards = [Card("worst of fifteen", f"{last.worst:.1%}", note=_label(last))]
    for name in LATENCIES:
        each = last.metrics[f"mean_{name}_ms"]
        note = f"{_seconds(each.simulated)} simulated, {_seconds(each.measured)} measured"
        cards.append(Card(f"mean {TITLES[name]}", f"{each.error or 0.0:+.1%}", note=note))
    return cards


def _seconds(ms: float | None) -> str:
    if ms is None:
        return "–"
    return f"{ms / 1e3:,.2f} s" if ms >= 1e3 else f"{ms:,.1f} ms"


def _label(each: Validation) -> str:
    return f"with {1e3 * each.constant:.2f} ms a step" if each.constant else "nothing fitted"


def error_bars(found: list[Validation]) -> Figure:
    """Draw the relative error of the fifteen figures, one group for each of TTFT, TPOT and E2E."""
    fig = new_figure(height=360)
    colors = (LATENCY,) if len(found) == 1 else (NEUTRAL, LATENCY)
    for each, color in zip(found, colors, strict=True):
        names = [(TITLES[name], rank, f"{rank}_{name}_ms") for name in LATENCIES for rank in ("mean", *RANKS)]
        fig.add_bar(
            x=[[group for group, _, _ in names], [rank for _, rank, _ in names]],
            y=[100 * (each.metrics[key].error or 0.0) for _, _, key in names],
            name=_label(each),
            marker={"color": color},
            hovertemplate="%{y:+.2f} %",
        )
    fig.update_yaxes(title_text="error of the simulation (%)", zeroline=True, zerolinecolor=FAINT)
    return fig


def request_scatter(found: Validation) -> Figure:
    """Draw simulated over measured TTFT, TPOT and E2E, a point for each request."""
    fig = new_figure(cols=3, height=400, subplot_titles=[TITLES[name] for name in LATENCIES])
    run, table = found.measured, found.run.requests
    gaps = np.where(table.num_output > 1, table.num_output - 1, np.nan)
    ours = {
        "ttft": table.first_token - table.arrival,
        "tpot": (table.finish - table.first_token) / gaps,
        "e2el": table.finish - table.arrival,
    }
    theirs = {"ttft": run.ttft, "tpot": run.tpot, "e2el": run.e2e}
    for col, name in enumerate(LATENCIES, 1):
        scale = 1e3 if UNITS[name] == "ms" else 1.0
        kept = np.flatnonzero(np.isfinite(theirs[name]) & np.isfinite(ours[name]))
        x, y = scale * theirs[name][kept], scale * ours[name][kept]
        ends = [0.0, 1.03 * float(max(x.max(initial=0.0), y.max(initial=0.0)))]
        line = {"color": FAINT, "width": 1, "dash": "dash"}
        fig.add_scatter(x=ends, y=ends, mode="lines", line=line, hoverinfo="skip", row=1, col=col)
        fig.add_scatter(
            x=x,
            y=y,
            mode="markers",
            marker={"color": LATENCY, "size": 5, "opacity": 0.6},
            customdata=kept + 1,
            hovertemplate="request %{customdata}: measured %{x:.3~f}, simulated %{y:.3~f}<extra></extra>",
            row=1,
            col=col,
        )
        fig.update_xaxes(title_text=f"measured ({UNITS[name]})", range=ends, row=1, col=col)
        fig.update_yaxes(title_text=f"simulated ({UNITS[name]})", range=ends, row=1, col=col)
    fig.update_layout(showlegend=False, hovermode="closest")
    return fig


def over_time(found: Validation) -> Figure:
    """Draw running and waiting requests and KV use of both runs."""
    series, steps = found.measured.series, found.run.steps
    kv_use: Floats = 100.0 * steps.used_blocks / found.run.machine.kv.num_gpu_blocks
    rows: list[tuple[str, str, str, Floats | Ints, str]] = [
        ("running", "running (requests)", RUNNING, steps.num_running, "%{y:,.0f} requests"),
        ("waiting", "waiting (requests)", WAITING, steps.num_waiting, "%{y:,.0f} requests"),
        (
            "kv_cache_pct",
            "KV use (%)",
            MEMORY,
            kv_use,
            "%{y:.1f} %",
        ),
    ]
    shown = [row for row in rows if row[0] in series and series[row[0]].any()]
    span = float(max(series["t"].max(), steps.end.max()))
    fig = new_figure(rows=max(len(shown), 1), height=60 + 190 * max(len(shown), 1), span=span)
    for i, (key, title, color, ours, value) in enumerate(shown, 1):
        add_line(
            fig, series["t"], series[key], name=f"{NAMES[key]} measured", color=NEUTRAL, value=value, row=i
        )
        add_line(fig, steps.end, ours, name=f"{NAMES[key]} simulated", color=color, value=value, row=i)
        fig.update_yaxes(title_text=title, rangemode="tozero", row=i)
    fig.update_layout(legend={"y": 1.02})
    return fig


def _table(found: list[Validation]) -> str:
    headers = ["figure", "measured (ms)", *(f"simulated (ms), {_label(each)}" for each in found)]
    headers += ["error", "error, fitted"][: len(found)]
    rows = []
    for name in (*LATENCIES, "queue"):
        for rank in ("mean", *RANKS):
            each = [one.metrics[f"{rank}_{name}_ms"] for one in found]
            errors = [Number("–") if e.error is None else Number(f"{e.error:+.2%}") for e in each]
            rows.append([f"{rank} {TITLES[name]}", each[0].measured, *(e.simulated for e in each), *errors])
    return table_html(headers, rows)


def _counts(found: Validation) -> str:
    rows = [
        [name.replace("_", " "), each.measured, each.simulated]
        for name, each in found.metrics.items()
        if not name.endswith("_ms")
    ]
    return table_html(["count", "measured", "simulated"], rows)


def _basis(found: Validation) -> dict[str, str]:
    scenario, kv = found.run.scenario, found.run.machine.kv
    return {
        "profile": found.profile.provenance,
        "requests": f"{len(found.measured)} of {found.measured.name}, at their real arrival times; "
        f"first {found.warmup} left out of the figures",
        "KV blocks": f"{kv.num_gpu_blocks:,} of {scenario.kv.block_size} tokens"
        + ("" if kv.is_override else ", derived"),
        "engine": f"max_num_seqs {scenario.scheduler.max_num_seqs}, max_num_batched_tokens "
        f"{scenario.scheduler.max_num_batched_tokens}, async scheduling "
        f"{'on' if scenario.scheduler.async_scheduling else 'off'}",
    }
