"""servetwin cache: which eviction keeps what a trace needs again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.flags import parse_pairs
from simulator.errors import ConfigError


def cache(
    trace: Annotated[Path, typer.Argument(help="Trace file with prefix ids (hash_ids).", metavar="TRACE")],
    eviction: Annotated[
        str | None,
        typer.Option(help="Names or file.py:name, split by commas; LRU and Belady come along. Default: all."),
    ] = None,
    capacity_blocks: Annotated[
        str | None,
        typer.Option(
            help="Sizes of the cache, split by commas.", show_default="a 64th to half of all distinct blocks"
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens a block.", show_default="the trace's own")
    ] = None,
    vllm_rules: Annotated[
        bool, typer.Option("--vllm-rules", help="Only full blocks hit, and never the whole prompt.")
    ] = False,
    format: Annotated[str, typer.Option(help="Trace format; found by itself where it can.")] = "auto",
    columns: Annotated[
        str | None, typer.Option(help="Name the fields: arrival=ts,prompt=in,output=out.")
    ] = None,
    time_unit: Annotated[str | None, typer.Option(help="Unit of the time stamps: s, ms, us, ns.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder.", show_default="runs/cache-TRACE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Replay a trace's prefixes against a cache, without timing: hit rates, and how far they are from Belady.

    Belady knows the future and bounds this replay alone: with timing, evictions change the order of accesses.

    Examples:

        servetwin cache conversation_trace.jsonl --capacity-blocks 1000,10000,50000

        servetwin cache conversation_trace.jsonl --eviction lfu,mine.py:my_eviction --vllm-rules
    """
    from simulator.experiments.cache_replay import replay_cache
    from simulator.experiments.cache_report import replay_folder, save_replay, table_text
    from simulator.experiments.progress import ProgressBar
    from simulator.kv.eviction import EVICTIONS
    from simulator.workload.traces import read_trace

    names = list(EVICTIONS) if eviction is None else _words(eviction, "--eviction")
    capacities = None if capacity_blocks is None else _numbers(capacity_blocks)
    fields = None if columns is None else parse_pairs(columns.split(","), "--columns")
    workload = read_trace(trace, format=format, columns=fields, time_unit=time_unit)
    with ProgressBar("cache", unit="replays") as bar:
        found = replay_cache(
            workload,
            names,
            capacities,
            block_size,
            vllm_rules=vllm_rules,
            progress=None if quiet else bar,
        )
    written = save_replay(found, out or replay_folder(found))
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
    if not quiet:
        lines = [table_text(found), *(f"Wrote {path}" for path in written)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)


def _words(given: str, flag: str) -> list[str]:
    words = [word.strip() for word in given.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"{flag} {given[:80]!r}: names nothing")
    return words


def _numbers(given: str) -> list[int]:
    numbers = []
    for word in _words(given, "--capacity-blocks"):
        if not word.isascii() or not word.isdigit() or len(word) > 15:
            raise ConfigError(f"--capacity-blocks {word[:40]!r}: must be a whole number of blocks >= 0")
        numbers.append(int(word))
    return numbers


def register(app: typer.Typer) -> None:
    app.command("cache")(cache)
