"""Bundled figures derived from public traces: rate profiles and length tables, each with its source."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

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


class WorkloadTable(TypedDict):
    """A file in `tables/`, written by `scripts/fit_workload_tables.py`."""

    name: str
    source: str
    licence: str
    attribution: str
    arrivals: ArrivalTable
    lengths: LengthTable


def table_names() -> list[str]:
    """List the bundled tables."""
    return sorted(path.stem for path in TABLES.glob("*.json"))


def load_table(name: str, where: str) -> WorkloadTable:
    """Load a bundled table; `where` is the scenario key to blame for an unknown name."""
    if name not in table_names():
        raise ConfigError(f"{where}: no bundled table {name!r}{suggest(name, table_names())}")
    return _load(name)


@cache
def _load(name: str) -> WorkloadTable:
    return cast(WorkloadTable, json.loads((TABLES / f"{name}.json").read_text(encoding="utf-8")))
