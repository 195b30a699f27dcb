"""`servetwin gpu info`, `measure`, `check` and `evidence`: what is here, how fast, and is it right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpu_backend.measure.parts import Parts, Result

DEVICE = typer.Option(help="auto, cpu or cuda.")
ATTENTION = typer.Option(help="auto, sdpa, triton or varlen.")
THREADS = typer.Option(help="PyTorch's threads on the CPU.")
AS_JSON = typer.Option("--json", help="Print one JSON object on stdout.")
GIB = 2**30


def info(as_json: Annotated[bool, AS_JSON] = False) -> None:
    """Say which device PyTorch can use here, what runs on it, and what CUDA misses.

    Examples:

        servetwin gpu info

        servetwin gpu info --json
    """
    import json

    from gpu_backend.device import choose_device, free_bytes
    from gpu_backend.measure.clocks import Clocks
    from gpu_backend.measure.facts import facts

    device = choose_device()
    found = {**facts(device), "free_bytes": free_bytes(device), "clocks": Clocks(device).read()}
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    typer.echo(f"device      {found['device']}: {found['name']}, {free_bytes(device) / GIB:.1f} GiB free")
    typer.echo(f"libraries   torch {found['torch']} (CUDA {found['cuda']}), triton {found['triton']}")
    typer.echo(f"driver      {found['driver'] or 'no NVIDIA driver'}")
    backends = found["attention"]
    assert isinstance(backends, dict)
    for name, reason in backends.items():
        typer.echo(f"attention   {name}: {reason or 'runs'}")
    if found["cuda_misses"]:
        typer.echo(f"cuda        {found['cuda_misses']}")


def measure(
    model: Annotated[str, typer.Argument(help="Shipped name, or a config.json.", metavar="MODEL")],
    device: Annotated[str, DEVICE] = "auto",
    minutes: Annotated[float, typer.Option(help="The least valuable points are dropped beyond.")] = 10.0,
    attention: Annotated[str, ATTENTION] = "auto",
    threads: Annotated[int, THREADS] = 1,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file of timings.")] = Path("timings.csv"),
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Time this engine's kernels and steps with random weights; call again to go on where it stopped.

    Examples:

        servetwin gpu measure llama-3.1-8b --device cuda -o timings.csv

        servetwin gpu measure tiny-llama-28m --device cpu --minutes 2 -o cpu.csv
    """
    import json
    from dataclasses import asdict

    from gpu_backend.measure.measure import measure as run
    from simulator.experiments.progress import ProgressBar

    with ProgressBar(f"measuring {model}", "points") as bar:
        done = run(
            model,
            out,
            device=device,
            minutes=minutes,
            attention=attention,
            threads=threads,
            progress=None if quiet else bar,
        )
    if as_json:
        sys.stdout.write(json.dumps(asdict(done)) + "\n")
        return
    known = f", {done.num_known} were there" if done.num_known else ""
    typer.echo(f"{done.kernels} on {done.device}: {done.num_points} points measured{known}")
    drift = "" if done.drift is None else f", drift {done.drift:+.1%}"
    typer.echo(f"{done.seconds:.0f} s, {done.cpu_seconds:.0f} s of CPU{drift}")
    for note in done.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"Wrote {done.path}")


def check(
    minutes: Annotated[float, typer.Option(help="Later parts are shortened or skipped beyond.")] = 5.0,
    device: Annotated[str, DEVICE] = "auto",
    attention: Annotated[str, ATTENTION] = "auto",
    threads: Annotated[int, THREADS] = 1,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of check.json.")] = Path("runs/gpu-check"),
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Hold the kernels to the truth, the speed to the device's own peaks, the decisions to the simulator's.

    Each part is written to DIR/check.json when it ends. Exits with 1 if something is wrong; a speed goal that
    is missed is only reported.

    Example:

        servetwin gpu check --minutes 5 -o check
    """
    from gpu_backend.measure.check import check as run

    book = run(
        out,
        device=device,
        minutes=minutes,
        attention=attention,
        threads=threads,
        tell=None if as_json else _line,
    )
    _end(book, as_json)


def evidence(
    model: Annotated[
        str | None, typer.Argument(help="Shipped name, or a config.json.", metavar="[MODEL]")
    ] = None,
    minutes: Annotated[float, typer.Option(help="For all of it; later parts are shortened.")] = 9.0,
    device: Annotated[str, DEVICE] = "auto",
    attention: Annotated[str, ATTENTION] = "auto",
    threads: Annotated[int, THREADS] = 1,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of evidence.json.")] = Path(
        "runs/gpu-evidence"
    ),
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Check, measure and replay on this machine, in one file to keep or to send; call again to go on.

    MODEL is llama-3.1-8b where that fits on a GPU, else tiny-llama-28m; weights are random.

    Example:

        servetwin gpu evidence --minutes 9 -o evidence
    """
    from gpu_backend.measure.evidence import evidence as run
    from simulator.experiments.progress import ProgressBar

    with ProgressBar("measuring", "points") as bar:
        book = run(
            out,
            model,
            device=device,
            minutes=minutes,
            attention=attention,
            threads=threads,
            progress=bar,
            tell=None if as_json else _line,
        )
    _end(book, as_json)


def _line(name: str, result: Result) -> None:
    typer.echo(f"{name:<8} {result['status']:<9} {result['seconds']:>6.1f} s  {result['told']}")


def _end(book: Parts, as_json: bool) -> None:
    import json

    if as_json:
        sys.stdout.write(json.dumps(book.to_dict(), default=str) + "\n")
    else:
        typer.echo(f"Wrote {book.path}")
    if book.failed:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    for command in (info, measure, check, evidence):
        app.command(command.__name__)(command)
