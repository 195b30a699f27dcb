"""The command `servetwin`; sub-commands of other packages join through entry points "servetwin.commands"."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points, version
from types import FrameType

import typer

from simulator.cli import (
    bounds,
    cache,
    capacity,
    compare,
    inspect,
    run,
    search,
    server,
    sizes,
    sweep,
    traces,
)
from simulator.errors import Interrupted, SimulatorError

app = typer.Typer(
    help="A digital twin of an LLM server: which policy should this workload run, on this GPU, for this SLO?",
    epilog="Start with: servetwin run chat-a100",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (run, compare, capacity, sweep, search, inspect, sizes, traces, cache, bounds, server)
for module in COMMANDS:
    module.register(app)


@app.callback(invoke_without_command=True)
def _top(
    show_version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if show_version:
        typer.echo(f"servetwin {version('servetwin')}")
        raise typer.Exit


def main() -> None:
    """Run the command line: 0 done, 1 a check failed, 2 bad input, 130 interrupted."""
    signal.signal(signal.SIGINT, _interrupted)
    for entry in entry_points(group="servetwin.commands"):
        app.add_typer(entry.load(), name=entry.name)
    try:
        app()
    except SimulatorError as error:
        print(f"servetwin: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as leaving:
        _flush(leaving)
        raise


def _one_line(error: SimulatorError) -> str:
    """Return an error's text without what a hostile file could put into it to fool a terminal."""
    words = " ".join(str(error).split())
    return "".join(c if c.isprintable() else "?" for c in words)


def _flush(leaving: SystemExit) -> None:
    """Leave quietly with 0 if the reader of our output has gone, as with `| head`; typer would say 1."""
    try:
        gone = isinstance(leaving.__context__, BrokenPipeError)
        sys.stdout.flush()
    except BrokenPipeError:
        gone = True
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


def _interrupted(signum: int, frame: FrameType | None) -> None:
    print("servetwin: interrupted", file=sys.stderr)
    raise Interrupted(130)
