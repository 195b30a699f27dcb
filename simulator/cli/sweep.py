"""servetwin sweep: many settings of a scenario, run anywhere, resumed after anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.errors import Interrupted

if TYPE_CHECKING:
    from simulator.experiments.sweep.journal import Shard
    from simulator.experiments.sweep.points import Sweep
    from simulator.experiments.sweep.run import Where

SHOWN = 5
"""Points that --dry-run shows."""


def sweep(
    file: Annotated[Path, typer.Argument(help="Sweep file: base, vary, design, ..", metavar="SWEEP.YAML")],
    backend: Annotated[str, typer.Option(help="Where runs are made: loky (here), dask or ray.")] = "loky",
    address: Annotated[
        str | None,
        typer.Option(help="Dask scheduler or Ray cluster.", show_default="a cluster of this machine"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.", show_default="one a core")] = None,
    shard: Annotated[
        str | None, typer.Option(help="Run only part i of n; joined by a call without it.", metavar="I/N")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how many points there are and how long they will take."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away what is finished; without it, a sweep goes on.")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Load policy code that the files name.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder.", show_default="runs/sweep-NAME-DIGEST")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Run every point of a sweep; a sweep that was interrupted goes on where it stopped.

    A line of points.jsonl for each finished run; then results.csv and report.html. A point that fails is
    written down with its error, the rest goes on, and the command exits with 1.

    Examples:

        servetwin sweep sweep.yaml --dry-run

        servetwin sweep sweep.yaml -o runs/batch-sizes --workers 2

        servetwin sweep sweep.yaml --backend dask --address tcp://10.0.0.1:8786

        servetwin sweep sweep.yaml --shard 1/4 -o runs/mine
    """
    from simulator.config.build import Policies
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.sweep.journal import HOW_ON, parse_shard
    from simulator.experiments.sweep.plan import read_plan
    from simulator.experiments.sweep.points import build_sweep
    from simulator.experiments.sweep.result import SweepResult, result_text, sweep_folder
    from simulator.experiments.sweep.run import Where, run_sweep

    where, part = Where(backend, address, workers), parse_shard(shard) if shard else None
    where.check()
    built = build_sweep(read_plan(file), Policies(trust=trust))
    if not quiet:
        for note in built.notes:
            _tell(f"Note: {note}")
    if dry_run:
        _dry_run(built, where, part, as_json)
        return
    folder = out or sweep_folder(built)
    try:
        with ProgressBar(built.plan.name, unit="runs") as bar:
            found = run_sweep(
                built,
                folder,
                where=where,
                shard=part,
                fresh=fresh,
                progress=None if quiet else bar,
                tell=None if quiet else _tell,
            )
    except (Interrupted, KeyboardInterrupt):
        _tell(f"servetwin: what is finished is in {folder}; {HOW_ON}")
        raise
    result = SweepResult(built, found)
    if part is None:
        written = [folder / "points.jsonl", *result.write(folder)]
        lines = [result.text(), *(f"Wrote {path}" for path in written)]
    else:
        lines = [
            f"Wrote {folder / part.file}: {len(found):,} of {built.num_runs:,} runs. With the files of all "
            f"{part.num} shards in one folder, `servetwin sweep {file} -o FOLDER` joins them"
        ]
    if as_json:
        sys.stdout.write(result_text(result.to_dict()))
    if not quiet:
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    if result.failed:
        raise typer.Exit(1)


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _dry_run(built: Sweep, where: Where, part: Shard | None, as_json: bool) -> None:
    from simulator.experiments.sweep.result import result_text
    from simulator.experiments.sweep.run import forecast

    cost = forecast(built, where, part)
    if as_json:
        sys.stdout.write(
            result_text(
                {
                    "points": len(built.points),
                    "replications": built.plan.replications,
                    "runs": cost.num_runs,
                    "first": [point.keys for point in built.points[:SHOWN]],
                    "timed_s": cost.timed,
                    "workers": cost.workers,
                    "estimated_s": cost.seconds,
                    "notes": built.notes,
                }
            )
        )
        return
    more = f"\n  .. and {len(built.points) - SHOWN:,} more" if len(built.points) > SHOWN else ""
    print(f"{built.plan.name}: {len(built.points):,} points, {cost.num_runs:,} runs")
    print("\n".join(f"  {point.number}  {point.label()}" for point in built.points[:SHOWN]) + more)
    print(f"about {cost.words()}")


def register(app: typer.Typer) -> None:
    app.command("sweep")(sweep)
