"""The formats of traces: what tells each from the others, and its reader."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simulator.errors import InputError
from simulator.workload.traces.chats import (
    SHAREGPT,
    read_bailian,
    read_llmservingsim_agents,
    read_sharegpt,
)
from simulator.workload.traces.csv_rows import (
    APEX,
    AZURE,
    BURSTGPT,
    BURSTGPT_3,
    LLMSERVINGSIM,
    OURS,
    SPLITWISE,
    VIDUR,
    Columns,
    read_csv,
)
from simulator.workload.traces.json_rows import iter_objects, read_jsonl, read_mooncake
from simulator.workload.traces.lines import first_line
from simulator.workload.traces.rows import Rows
from simulator.workload.traces.servegen import read_servegen
from simulator.workload.traces.servegen_files import CLIENTS
from simulator.workload.traces.weka import REQUESTS, read_agent_requests, read_weka
from simulator.workload.workload import Workload


class Options(NamedTuple):
    """What a user may say about a file beyond its format; None = as the format has it."""

    time_unit: str | None = None  # of numeric stamps
    hash_block_size: int | None = None  # prompt tokens that one prefix id covers
    start_s: float = 0.0  # the part to draw, where a file has parameters instead of requests
    duration_s: float | None = None
    seed: int = 0  # of that drawing


class Format(NamedTuple):
    """A format is known by keys that its first row has, and by keys of others that it has not.

    `kind` is csv or jsonl, None for either.
    """

    summary: str
    kind: str | None
    keys: frozenset[str]
    read: Callable[[Path, Options], Workload]
    without: frozenset[str] = frozenset()


def _columns(summary: str, columns: Columns, unit: str | None, optional: Columns | None = None) -> Format:
    """Return a format of named columns, in csv or as keys of jsonl."""

    def read(path: Path, options: Options) -> Workload:
        read_rows = read_csv if first_keys(path)[0] == "csv" else read_jsonl
        return read_rows(path, columns, options.time_unit or unit, optional).workload()

    return Format(summary, None, frozenset(columns.values()), read)


def _special(
    summary: str,
    kind: str,
    keys: str,
    read: Callable[[Path, Options], Rows],
    without: frozenset[str] = frozenset(),
) -> Format:
    """Return a format with a reader of its own; `keys` are separated by spaces."""
    return Format(
        summary, kind, frozenset(keys.split()), lambda path, options: read(path, options).workload(), without
    )


FORMATS: dict[str, Format] = {
    "azure": _columns("Azure LLM inference traces 2023-2025, csv with absolute times", AZURE, None),
    "burstgpt": _columns("BurstGPT 1-3, csv in whole seconds", BURSTGPT, "s", BURSTGPT_3),
    "vidur": _columns("vidur, csv in seconds; also what `trace convert` writes as csv", VIDUR, "s", OURS),
    "splitwise": _columns("splitwise-sim, csv in seconds", SPLITWISE, "s", {"id": "request_id"}),
    "apex": _columns("APEX+, csv or jsonl in ns", APEX, "ns"),
    "llmservingsim-agents": _special(
        "LLMServingSim's agents, jsonl in ns: sessions of sub-requests and tools",
        "jsonl",
        "arrival_time_ns sub_requests",
        lambda path, options: read_llmservingsim_agents(path),
    ),
    "llmservingsim": _columns("LLMServingSim, jsonl or csv in ns", LLMSERVINGSIM, "ns"),
    "bailian": _special(
        "Qwen-Bailian, jsonl in s with prefix ids of 16 tokens: chats that continue each other",
        "jsonl",
        "chat_id parent_chat_id timestamp input_length",
        lambda path, options: read_bailian(path, options.time_unit, options.hash_block_size),
    ),
    "mooncake": _special(
        "Mooncake, AIPerf and vLLM timed_trace, jsonl in ms with prefix ids of 512 tokens",
        "jsonl",
        "timestamp input_length",
        lambda path, options: read_mooncake(path, options.time_unit, options.hash_block_size),
        without=frozenset({"chat_id"}),  # seconds, 16 tokens
    ),
    "weka": _special(
        "kv-cache-tester (Weka), json or jsonl: sessions of agents with prefix ids of 64 tokens",
        "jsonl",
        "requests hash_id_scope",
        lambda path, options: read_weka(path, options.hash_block_size),
    ),
    "agent-requests": _special(
        "requests of agents derived from kv-cache-tester's sessions, csv in s",
        "csv",
        " ".join(REQUESTS.values()),
        lambda path, options: read_agent_requests(path),
    ),
    "sharegpt": _special(
        "token counts of ShareGPT's turns, csv without times",
        "csv",
        " ".join(SHAREGPT.values()),
        lambda path, options: read_sharegpt(path),
    ),
    "servegen": Format(
        "ServeGen's clients, csv: rates and laws of gaps, from which requests are drawn",
        "csv",
        frozenset(CLIENTS.values()),
        lambda path, options: read_servegen(path, options.start_s, options.duration_s, options.seed),
    ),
}


def first_keys(path: Path) -> tuple[str, frozenset[str]]:
    """Return csv or jsonl, and the columns or keys of the first row."""
    line = first_line(path)
    if not line:
        raise InputError(f"{path}: the file is empty")
    if line.startswith("{"):
        return "jsonl", frozenset(next(iter_objects(path), (0, {}))[1])
    try:
        return "csv", frozenset(name.strip() for name in next(csv.reader([line])))
    except csv.Error as error:
        raise InputError(f"{path}, line 1: neither csv nor jsonl: {error}") from error
