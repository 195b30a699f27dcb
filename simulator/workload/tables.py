"""Bundled figures derived from public traces: rate profiles and length tables, each with its source."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from simulator.errors import ConfigError, suggest

TABLES = Path(__file__).parent / "tables"


class ArrivalTable(TypedDict):
    """Arrivals per bin, and the relative rate and mean dwell of the states within a bin."""

    span_s: float
    bin_s: float
    counts: list[int]
    levels: list[float]
    dwell_s: list[float]


class LengthTable(TypedDict):
    """Prompt classes in order of length: how long they are, their outputs, and their shares over time.

    `prompt[c]` are quantiles of class c at the probabilities `p`, `output[c]` those of its output;
    `shares[b][c]` counts class c in bin b of `bin_s` seconds.
    """

    span_s: float
    bin_s: float
    p: list[float]
    prompt: list[list[int]]
    output: list[list[int]]
    shares: list[list[int]]


class SessionTable(TypedDict):
    """Sessions whose prompts and outputs fit `context` tokens.

    Per class, quantiles at the probabilities `p` of the turns, the first prompt and how much the context
    grows: as a power `bend` of the share of what the turns add, faster at first. Quantiles over all turns,
    at `p_all`: outputs, further tokens that a turn adds, think and server times. A turn rewrites its
    history with `rewrite_probability` and keeps a share of its prefix then (`kept`).
    """

    context: int
    p: list[float]
    turns: list[list[float]]
    first: list[list[float]]
    growth: list[list[float]]
    bend: float
    p_all: list[float]
    output: list[float]
    step: list[float]
    think_s: list[float]
    api_s: list[float]
    rewrite_probability: float
    kept: list[float]


class WorkloadTable(TypedDict):
    """A file in `tables/`, written by a script of `scripts/`: of arrivals and lengths, or of sessions."""

    name: str
    source: str
    licence: str
    attribution: str
    arrivals: NotRequired[ArrivalTable]
    lengths: NotRequired[LengthTable]
    sessions: NotRequired[SessionTable]


def table_names(section: str = "lengths") -> list[str]:
    """List the bundled tables that have a section: arrivals, lengths or sessions."""
    return sorted(path.stem for path in TABLES.glob("*.json") if section in _load(path.stem))


def load_table(name: str, where: str, section: str) -> WorkloadTable:
    """Load a bundled table that has a section; `where` is the scenario key to blame for an unknown name."""
    names = table_names(section)
    if name not in names:
        raise ConfigError(f"{where}: no bundled table {name!r} of {section}{suggest(name, names)}")
    return _load(name)


@cache
def _load(name: str) -> WorkloadTable:
    return cast(WorkloadTable, json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8")))
