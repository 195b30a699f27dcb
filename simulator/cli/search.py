"""servetwin search: the best settings, or the front between several aims, without trying them all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def search(
    file: Annotated[Path, typer.Argument(help="What to vary, what for; see docs/search.md.", metavar="FILE")],
    trials: Annotated[
        int | None, typer.Option(help="Points to try.", show_default="the file's, else 100")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="METRIC:min or METRIC:max; repeat for a Pareto front.", metavar="METRIC:min|max"),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(help="attainment>=0.99, p99_ttft_ms<=500; repeatable.", metavar="METRIC<=|>=NUMBER"),
    ] = None,
    backend: Annotated[str, typer.Option(help="Where runs go: loky (this machine), dask or ray.")] = "loky",
    address: Annotated[
        str | None, typer.Option(help="Scheduler of a Dask or Ray cluster; else one is started here.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; changes nothing in the result.", show_default="all cores")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder.", show_default="runs/search-NAME-DIGEST")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget trials that the folder has.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Load policy code that the file names.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no outcome.")] = False,
) -> None:
    """Search for the best settings by Optuna; several objectives give a Pareto front, its knee is winner/.

    A killed search goes on where it was; so does one with more trials. Needs servetwin[sweep].

    Examples:

        servetwin search search.yaml --trials 200

        servetwin search search.yaml --objective output_throughput:max --constraint "p99_ttft_ms<=500"

        servetwin search search.yaml --objective p99_ttft_ms:min --objective output_throughput:max
    """
    from simulator.config.build import Policies
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.search.api import search_in_folder
    from simulator.experiments.search.search_file import load_search
    from simulator.experiments.search.search_folder import search_folder

    wanted = load_search(file, trials=trials, objectives=objective, constraints=constraint)
    folder = out or search_folder(wanted)
    with ProgressBar("search", unit="trials") as bar:
        found, written = search_in_folder(
            wanted,
            folder,
            Policies(trust=trust),
            backend=backend,
            address=address,
            workers=workers,
            fresh=fresh,
            progress=None if quiet else bar.noted,
        )
    if as_json:
        print(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    if not quiet:
        lines = [*found.outcome(), *(f"Wrote {path}" for path in written)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)


def register(app: typer.Typer) -> None:
    app.command("search")(search)
