"""servetwin trace info, trace convert: look at a trace, cut it, write it for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.flags import parse_pairs
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

File = Annotated[Path, typer.Argument(help="Trace file; .gz and .xz are read as they are.", metavar="FILE")]
Format = Annotated[str, typer.Option(help="Format; found by the header or keys where it can.")]
Columns = Annotated[str | None, typer.Option(help="Name a csv's columns: arrival=ts,prompt=in,output=out.")]
TimeUnit = Annotated[str | None, typer.Option(help="Unit of the time stamps: s, ms, us, ns. Never guessed.")]
Start = Annotated[float, typer.Option(min=0, help="Leave out what arrives before this many seconds.")]
End = Annotated[float | None, typer.Option(help="Leave out what arrives from this many seconds on.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Keep at most this many requests.")]
RateScale = Annotated[float, typer.Option(help="Multiply the rate by compressing time.")]
SpreadMs = Annotated[float, typer.Option(help="Spread arrivals of coarse stamps over this many ms.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

app = typer.Typer(help="Look at traces and convert them.", no_args_is_help=True)


@app.command()
def info(
    file: File,
    format: Format = "auto",
    columns: Columns = None,
    time_unit: TimeUnit = None,
    start: Start = 0.0,
    end: End = None,
    limit: Limit = None,
    rate_scale: RateScale = 1.0,
    spread_ms: SpreadMs = 0.0,
    as_json: Json = False,
) -> None:
    """Describe a trace: requests, span, rates, burstiness, lengths, prefix reuse.

    Example:

        servetwin trace info AzureLLMInferenceTrace_conv.csv
    """
    from simulator.workload.info import describe

    workload = _read(file, format, columns, time_unit, start, end, limit, rate_scale, spread_ms)
    print(json.dumps(workload.info(), indent=1) if as_json else describe(workload))


@app.command()
def convert(
    file: File,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File to write; its ending chooses .jsonl or .csv.")
    ],
    format: Format = "auto",
    columns: Columns = None,
    time_unit: TimeUnit = None,
    start: Start = 0.0,
    end: End = None,
    limit: Limit = None,
    rate_scale: RateScale = 1.0,
    spread_ms: SpreadMs = 0.0,
) -> None:
    """Write a trace as Mooncake jsonl (for AIPerf, GuideLLM, vLLM's timed_trace) or as csv.

    Example:

        servetwin trace convert conv.csv --end 600 -o conv.jsonl
    """
    from simulator.workload.traces import write_trace

    endings = {".jsonl": "mooncake", ".csv": "csv"}
    if out.suffix not in endings:
        raise ConfigError(f"-o {out}: the name must end in .jsonl or .csv")
    if out.exists() and out.samefile(file):
        raise ConfigError(f"-o {out}: is the trace itself; name another file")
    workload = _read(file, format, columns, time_unit, start, end, limit, rate_scale, spread_ms)
    try:
        write_trace(workload, out, endings[out.suffix])
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    print(f"Wrote {len(workload):,} requests to {out}")


def _read(
    file: Path,
    format: str,
    columns: str | None,
    time_unit: str | None,
    start: float,
    end: float | None,
    limit: int | None,
    rate_scale: float,
    spread_ms: float,
) -> Workload:
    import numpy as np

    from simulator.workload.traces import read_trace

    names = None if columns is None else parse_pairs(columns.split(","), "--columns")
    if end is not None and not end > start:
        raise ConfigError(f"--end {end:g}: must be later than --start {start:g}")
    duration = None if end is None else end - start
    workload = read_trace(
        file, format=format, columns=names, time_unit=time_unit, start_s=start, duration_s=duration
    )
    if start or end is not None or limit is not None:
        workload = workload.window(start, duration, limit)
    if rate_scale != 1.0:
        workload = workload.scaled(rate_scale)
    return workload.spread(spread_ms, np.random.default_rng(0)) if spread_ms else workload


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="trace")
