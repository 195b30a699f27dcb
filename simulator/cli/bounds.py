"""servetwin bounds: how far a policy is from the best possible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.flags import Chosen, takes_scenario


@takes_scenario
def bounds(
    chosen: Chosen,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder.", show_default="runs/NAME-DIGEST")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no tables.")] = False,
) -> None:
    """Run a scenario and say how far its policy is from the best possible: throughput, TTFT, E2E.

    Bounds come from the GPU's data sheet, the step times and each request alone; the order srpt_oracle, which
    knows the lengths of all answers, is run as a reference.

    Examples:

        servetwin bounds chat-a100

        servetwin bounds code-a100 --set scheduler.order=sjf_prompt --seed 1
    """
    from simulator.config.run import run_scenario
    from simulator.experiments.bounds import find_bounds
    from simulator.experiments.bounds_report import save_bounds, summary_text, table_text
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.run_folder import default_folder

    scenario = chosen.scenario
    with ProgressBar(scenario.name) as bar:
        made = run_scenario(scenario, policies=chosen.policies, progress=None if quiet else bar)
    with ProgressBar(f"{scenario.name}, reference") as bar:
        found = find_bounds(made, progress=None if quiet else bar)
    written = save_bounds(found, out or default_folder(scenario))
    if as_json:
        sys.stdout.write(summary_text(found))
    if not quiet:
        lines = [table_text(found), *(f"Wrote {path}" for path in written)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)


def register(app: typer.Typer) -> None:
    app.command("bounds")(bounds)
