"""What a cache replay looks like: tables, hit rate against capacity, cache.json and cache.html."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import InputError
from simulator.experiments.cache_replay import BELADY, CacheReplay
from simulator.experiments.compare_plots import line_style
from simulator.experiments.figure_style import FAINT, INK, new_figure, text
from simulator.experiments.report_page import (
    Number,
    Section,
    banners_html,
    escape,
    figure_html,
    page_html,
    table_html,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TABLES = {
    "hit_rate": "Share of blocks that hit",
    "token_hit_rate": "Share of prompt tokens that hit",
    "gap_closed": "Share of the way from LRU to Belady",
}
CAUTION = (
    "Belady knows the future and bounds this replay alone. On a server an eviction also changes how long "
    "requests take, and so the order in which blocks are needed."
)


def about(found: CacheReplay) -> str:
    """Describe the trace and the rules in one line."""
    rules = "vLLM's rules" if found.vllm_rules else "every prefix id counts"
    unlimited = found.hit_rate(found.unlimited)
    return (
        f"{found.num_requests:,} requests, {found.num_blocks:,} blocks of {found.block_size} tokens, "
        f"{found.num_distinct:,} of them distinct; {rules}; a cache without limit hits {unlimited:.1%}"
    )


def cells(found: CacheReplay, key: str) -> tuple[list[str], list[list[str]]]:
    """Return one table: a row per eviction, a column per capacity in blocks, values of `TITLES` key."""
    value = {(row["eviction"], row["capacity_blocks"]): row[key] for row in found.rows()}
    rows = [
        [name, *(_percent(value[name, capacity]) for capacity in found.capacities)]
        for name in found.evictions
        if key != "gap_closed" or name not in ("lru", BELADY)
    ]
    return ["eviction", *(f"{capacity:,}" for capacity in found.capacities)], rows


def tables(found: CacheReplay) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield title, headers and rows of each table that has rows."""
    for key, title in TABLES.items():
        headers, rows = cells(found, key)
        if rows:
            yield title, headers, rows


def tables_html(found: CacheReplay) -> str:
    """Return the tables as HTML."""
    return "".join(
        table_html(
            headers, [[row[0], *map(Number, row[1:])] for row in rows], caption=f"{title}, by capacity"
        )
        for title, headers, rows in tables(found)
    )


def table_text(found: CacheReplay) -> str:
    """Return the tables as text, columns set right."""
    lines = [about(found)]
    for title, headers, rows in tables(found):
        widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
        lines += ["", f"{title}, by capacity in blocks"]
        for first, *rest in [headers, *rows]:
            right = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
            lines.append("  ".join([f"{first:<{widths[0]}}", *right]))
    return "\n".join([*lines, "", f"{found.verdict()}.", CAUTION])


def hit_rate_figure(found: CacheReplay) -> Figure:
    """Draw the hit rate of every eviction against the capacity."""
    from plotly.graph_objects import Scatter

    fig = new_figure(height=460)
    for i, name in enumerate(found.evictions):
        mine = [point for point in found.points if point.eviction == name]
        style = {"color": INK, "width": 2, "dash": "dash"} if name == BELADY else line_style(i)
        fig.add_trace(
            Scatter(
                x=[point.capacity for point in mine],
                y=[found.hit_rate(point) for point in mine],
                name="belady (bound)" if name == BELADY else text(name),
                mode="lines+markers",
                line=style,
                marker={"size": 6},
                hovertemplate="%{y:.2%}",
            )
        )
    label = {
        "annotation_text": "no limit",
        "annotation_font_color": FAINT,
        "annotation_position": "top left",
    }
    fig.add_hline(
        y=found.hit_rate(found.unlimited), line={"color": FAINT, "width": 1, "dash": "dot"}, **label
    )
    scale = {"type": "log", "title_text": "capacity (blocks, log scale)", "tickformat": ",d", "dtick": "D2"}
    fig.update_xaxes(**scale if min(found.capacities) > 0 else {"title_text": "capacity (blocks)"})
    fig.update_yaxes(title_text="share of blocks that hit", tickformat=".0%", rangemode="tozero")
    return fig


def cache_html(found: CacheReplay) -> str:
    """Return the page. The same replay gives the same text."""
    from importlib.metadata import version

    lead = (
        f"<h1>Cache replay of {escape(_name(found))}</h1>"
        f'<p class="verdict">{escape(found.verdict())}.</p><p class="provenance">{escape(about(found))}</p>'
    )
    how = "Higher is better. Only who knows the future reaches the dashed line."
    sections = [
        Section("curve", "Hit rate by capacity", figure_html(hit_rate_figure(found), "hit-rate", how)),
        Section("tables", "Numbers", tables_html(found)),
    ]
    footer = f"servetwin {version('servetwin')}"
    title = f"Cache replay of {_name(found)}"
    return page_html(title, lead + banners_html([("note", CAUTION)]), sections, footer)


def save_replay(found: CacheReplay, folder: Path) -> list[Path]:
    """Write cache.json and cache.html and return their paths; InputError if they cannot be written."""
    contents = {
        "cache.json": json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n",
        "cache.html": cache_html(found),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return [folder / name for name in contents]


def replay_folder(found: CacheReplay) -> Path:
    """Return runs/cache-<trace>, with only plain characters of the name."""
    plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in _name(found).partition(".")[0])
    return Path("runs") / f"cache-{plain[:60] or 'trace'}"


def _name(found: CacheReplay) -> str:
    return Path(found.trace).name or "trace"


def _percent(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float) else "–"
