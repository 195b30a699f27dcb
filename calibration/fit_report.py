"""fit.html: what a fit is made of, how wrong it is, and every held-out point, measured against predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibration.checks import Checked
from calibration.fit import ModelFit
from calibration.random_fifth import SEEDS, Pairs, Spread
from calibration.write import ACCURACY
from simulator.experiments.figure_style import (
    DECODE,
    FAINT,
    MEMORY,
    NEUTRAL,
    PREFILL,
    RUNNING,
    TROUBLE,
    new_figure,
)
from simulator.experiments.report_page import (
    Number,
    Section,
    banners_html,
    definitions_html,
    details_html,
    escape,
    figure_html,
    page_html,
    table_html,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLORS = {  # one meaning, one colour, as in every figure of servetwin
    "dense": NEUTRAL,
    "gemm of unseen shapes": MEMORY,
    "decode attention": DECODE,
    "prefill attention": PREFILL,
    "decode step": RUNNING,
}
MOST_POINTS = 400  # of a term in a figure; a GEMM grid holds thousands
BANDS = (0.0, 0.1, -0.1)  # relative errors at which a line is drawn
HOW = (
    "One point is one held-out measurement of the first seed. On the solid line the prediction is right, on "
    "the dotted ones 10 % off; a point above is predicted too slow."
)
CAUTION = f"Errors of the form: the truth comes from the same sources. {ACCURACY[0].upper()}{ACCURACY[1:]}."


def fit_html(fits: Sequence[ModelFit], checked: Checked, hardware: str, name: str) -> str:
    """Return the page. The same fit gives the same text."""
    from importlib.metadata import version

    title = f"Fit of {name}"
    models = ", ".join(fitted.model.name for fitted in fits)
    lead = (
        f'<h1>{escape(title)}</h1><p class="verdict">{escape(_verdict(fits))}</p>'
        f'<p class="provenance">{escape(hardware)}: {escape(models)}</p>'
    )
    sections = [
        Section("errors", "Held-out errors", _errors_html(fits)),
        *(
            Section(f"model-{i}", fitted.model.name, _model_html(fitted, f"points-{i}"))
            for i, fitted in enumerate(fits)
        ),
        Section("rows", "Rows used and left out", _rows_html(checked)),
    ]
    footer = f"servetwin {version('servetwin')}"
    return page_html(title, lead + banners_html([("note", CAUTION)]), sections, footer)


def _verdict(fits: Sequence[ModelFit]) -> str:
    steps = [f.fifths["decode step"].error for f in fits if "decode step" in f.fifths]
    if not steps:
        return "Too few measurements to hold any out."
    return (
        f"Decode steps of held-out kernels are {min(s.median for s in steps):.1%} to "
        f"{max(s.median for s in steps):.1%} off (worst draw {max(s.worst for s in steps):.1%})."
    )


def _errors_html(fits: Sequence[ModelFit]) -> str:
    terms = list(dict.fromkeys(term for fitted in fits for term in fitted.fifths))
    rows: list[list[object]] = [
        [
            fitted.model.name,
            *(_percent(fitted.fifths[term].error) if term in fitted.fifths else None for term in terms),
        ]
        for fitted in fits
    ]
    caption = f"A random fifth held out: mean error, median of {SEEDS} seeds (worst seed)"
    return table_html(["model", *terms], rows, caption=caption)


def _percent(error: Spread) -> Number:
    return Number(f"{error.median:.1%} ({error.worst:.1%})")


def _model_html(fitted: ModelFit, name: str) -> str:
    axes = [[e.term, e.axis, e.how, Number(f"{e.mean:.1%}"), Number(f"{e.worst:+.1%}")] for e in fitted.axes]
    headers = ["term", "axis", "left out", "mean error", "worst"]
    opinions = [
        [
            o.source,
            Number(f"{o.level:.1%}"),
            None if o.between_knots is None else Number(f"{o.between_knots:.1%}"),
        ]
        for o in fitted.opinions
    ]
    sources = definitions_html({f"source {i}": note for i, note in enumerate(fitted.notes, 1)})
    body = figure_html(points_figure(fitted), name, HOW)
    body += table_html(headers, axes, caption="What interpolation and extrapolation cost")
    if opinions:
        caption = "The same layer by other sources"
        body += table_html(["source", "mean difference", "between the knots"], opinions, caption=caption)
    return body + details_html("Which source served which operation", sources)


def points_figure(fitted: ModelFit) -> Figure:
    """Draw every held-out point of the first seed: predicted over measured, and the error below."""
    from plotly.graph_objects import Scatter

    fig = new_figure(rows=2, height=640, row_heights=[0.55, 0.45], vertical_spacing=0.06)
    shown = {name: _thinned(fifth.pairs) for name, fifth in fitted.fifths.items() if "below" not in name}
    both = np.concatenate([np.concatenate([p.measured, p.predicted]) for p in shown.values()]) * 1e6
    ends = np.array([both.min() / 1.3, both.max() * 1.3])
    silent = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    for band in BANDS:
        line = {"color": FAINT, "width": 1, "dash": "dot" if band else "solid"}
        fig.add_trace(Scatter(x=ends, y=ends * (1 + band), line=line, **silent), row=1, col=1)
        fig.add_trace(Scatter(x=ends, y=[100 * band] * 2, line=line, **silent), row=2, col=1)
    for name, pairs in shown.items():
        x, y, error = (
            pairs.measured * 1e6,
            pairs.predicted * 1e6,
            100 * (pairs.predicted / pairs.measured - 1),
        )
        look = {
            "mode": "markers",
            "name": name,
            "legendgroup": name,
            "marker": {"size": 6, "color": COLORS.get(name, TROUBLE), "opacity": 0.75},
        }
        hover = "measured %{x:,.1f} us, predicted %{y:,.1f} us"
        fig.add_trace(Scatter(x=x, y=y, hovertemplate=hover, **look), row=1, col=1)
        below = {**look, "showlegend": False, "hovertemplate": "measured %{x:,.1f} us, error %{y:+.1f} %"}
        fig.add_trace(Scatter(x=x, y=error, **below), row=2, col=1)
    scale = {"type": "log", "tickformat": ",~r", "dtick": 1}
    fig.update_layout(hovermode="closest")
    fig.update_xaxes(range=np.log10(ends).tolist(), **scale)
    fig.update_xaxes(title_text="measured (us, log scale)", row=2)
    fig.update_yaxes(title_text="predicted (us, log scale)", row=1, **scale)
    fig.update_yaxes(title_text="error (%)", row=2)
    return fig


def _thinned(pairs: Pairs) -> Pairs:
    rows = np.unique(np.linspace(0, len(pairs.measured) - 1, MOST_POINTS).astype(np.int64))
    return Pairs(*(part[rows] for part in pairs))


def _rows_html(checked: Checked) -> str:
    rows = [[r.reason, r.rows, r.example or "–"] for r in checked.rejected]
    about = f"<p>{checked.read:,} rows read, {len(checked.timings):,} configurations used.</p>"
    return about + (table_html(["reason", "rows left out", "first of them"], rows) if rows else "")
