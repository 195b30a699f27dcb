"""Building blocks of a self-contained HTML page: cards, tables, banners, figures, and the page around them.

Nothing is loaded from anywhere: styles, scripts and plotly.js are inline, and the page forbids itself the
network. All text given is escaped here, once; a name ending in `_html` is markup already. The same input
gives the same bytes: no dates, no random ids.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


WIDE = 9
"""A table of so many columns is set closer."""


class Card(NamedTuple):
    """One key figure. `good` marks a limit that is met or missed; None has no limit."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    good: bool | None = None


class Number(str):
    """A number that is text already, such as "+3.1%": a table sets it right."""


class Section(NamedTuple):
    """A titled part of the page; `name` is its anchor and its entry in the navigation."""

    name: str
    title: str
    body_html: str


def escape(value: object) -> str:
    """Return text that is safe in HTML and in attribute values."""
    return html.escape(str(value), quote=True)


def cards_html(cards: Iterable[Card]) -> str:
    """Lay key figures out in a grid."""
    marks = {True: ' <b class="mark good">meets</b>', False: ' <b class="mark bad">misses</b>', None: ""}
    return f'<div class="cards">{"".join(_card(card, marks[card.good]) for card in cards)}</div>'


def _card(card: Card, mark: str) -> str:
    unit = f" <small>{escape(card.unit)}</small>" if card.unit else ""
    return (
        f'<div class="card"><div class="label">{escape(card.label)}</div>'
        f'<div class="value">{escape(card.value)}{unit}</div>'
        f'<div class="note">{escape(card.note)}{mark}</div></div>'
    )


def table_html(headers: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Draw a table; numbers are set right, the first column and texts left."""
    rows = [list(row) for row in rows]
    texts = {i for row in rows for i, value in enumerate(row) if _is_text(value)}
    kinds = ["" if i in texts else ' class="num"' for i in range(len(headers))]
    names = [escape(name).replace("_", "_<wbr>") for name in headers]  # a long key may break there
    head = "".join(f'<th scope="col"{k}>{name}</th>' for k, name in zip(kinds, names, strict=True))
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    wide = ' class="wide"' if len(headers) >= WIDE else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    table = f"<table{wide}>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _cell(value: object) -> str:
    if value is None:
        return '<td class="num">–</td>'
    if _is_text(value):
        return f"<td>{escape(value)}</td>"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if isinstance(value, float) else value
    return f'<td class="num">{escape(shown)}</td>'


def _is_text(value: object) -> bool:
    return isinstance(value, bool | str) and not isinstance(value, Number)


def banners_html(messages: Iterable[tuple[str, str]]) -> str:
    """Draw (kind, message) lines; kind is "warning" or "note"."""
    lines = "".join(f'<li class="{escape(kind)}">{escape(message)}</li>' for kind, message in messages)
    return f'<ul class="banners">{lines}</ul>' if lines else ""


def definitions_html(terms: Mapping[str, str]) -> str:
    """Draw a list of terms and what they mean."""
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in terms.items())}</dl>"


def pre_html(content: str) -> str:
    """Draw preformatted text."""
    return f"<pre>{escape(content)}</pre>"


def details_html(summary: str, body_html: str) -> str:
    """Hide something long behind one line."""
    return f"<details><summary>{escape(summary)}</summary>{body_html}</details>"


def figure_html(fig: Figure, name: str, how_to_read: str = "") -> str:
    """Embed a figure under the id `figure-<name>`; the page's script draws it."""
    data = fig.to_json(engine="json")
    for sign in "<>&":  # only strings of JSON hold these, and there an escape means the same
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    height = int(fig.layout.height or 400)
    caption = f"<figcaption>{escape(how_to_read)}</figcaption>" if how_to_read else ""
    name = escape(name)
    return (
        f'<figure><div id="figure-{name}" class="plot" style="height:{height}px"></div>{caption}</figure>'
        f'<script type="application/json" class="plot-data" data-for="figure-{name}">{data}</script>'
    )


def page_html(title: str, lead_html: str, sections: Sequence[Section], footer: str = "") -> str:
    """Put sections together into one HTML document with plotly.js inline, once."""
    from plotly.offline import get_plotlyjs

    folder = files("simulator.experiments")
    style = (folder / "report.css").read_text(encoding="utf-8")
    script = (folder / "report.js").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{escape(s.name)}">{escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{escape(s.name)}"><h2>{escape(s.title)}</h2>{s.body_html}</section>' for s in sections
    )
    allowed = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{style}</style></head>\n<body><main>"
        f"<header>{lead_html}</header><nav>{links}</nav>\n{body}\n<footer>{escape(footer)}</footer></main>\n"
        f"<script>{get_plotlyjs()}</script>\n<script>{script}</script></body></html>\n"
    )
