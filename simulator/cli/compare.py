"""servetwin diff: two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simulator.errors import ConfigError


def diff(
    a: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN_A")],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="RUN_B")],
    limit: Annotated[
        list[str] | None,
        typer.Option(help="METRIC:PERCENT; exit 1 if it changed by more. Repeatable.", metavar="METRIC:PCT"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two runs: every metric, and the first decision in which they part.

    Decisions are compared where both runs were made with --log decisions.

    Example:

        servetwin diff runs/a runs/b --limit p99_ttft_ms:5
    """
    from simulator.experiments.diff import diff as compare
    from simulator.experiments.run_folder import load_run

    limits = _limits(limit or [])
    found = compare(load_run(a), load_run(b))
    over = found.over(limits)
    print(json.dumps(found.to_dict() | {"over_limit": over}, indent=1) if as_json else found.text())
    for line in over:
        typer.echo(line, err=True)
    if over:
        raise typer.Exit(1)


def _limits(items: list[str]) -> dict[str, float]:
    limits = {}
    for item in items:
        name, colon, percent = item.partition(":")
        try:
            limits[name] = float(percent)
        except ValueError:
            raise ConfigError(f"--limit {item[:80]!r}: write METRIC:PERCENT, such as p99_ttft_ms:5") from None
        if not colon or not limits[name] >= 0:
            raise ConfigError(f"--limit {item[:80]!r}: the percentage must be >= 0")
    return limits


def register(app: typer.Typer) -> None:
    app.command("diff")(diff)
