"""servetwin capacity: the highest request rate within the SLO, or the fewest GPUs for a load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.flags import Chosen, takes_scenario
from simulator.errors import ConfigError


@takes_scenario
def capacity(
    chosen: Chosen,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=A,B,..: one capacity each; repeat for the product of several keys.", metavar="KEY=A,B"
        ),
    ] = None,
    attainment: Annotated[
        float | None,
        typer.Option(help="Share of the requests that must meet the SLO.", show_default="the scenario's"),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Search between these only.", metavar="LOW:HIGH", show_default="found by doubling"),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="How closely the rate is found, relative.", show_default="0.02")
    ] = None,
    max_gpus: Annotated[
        int | None,
        typer.Option(
            help="Find the fewest GPUs for the scenario's own load instead, at most N.",
            metavar="N",
            show_default="find the rate",
        ),
    ] = None,
    replications: Annotated[
        int | None, typer.Option(help="Replications at every rate, the same ones.", show_default="10")
    ] = None,
    model_draws: Annotated[
        int, typer.Option(help="Draws of the profile's errors, for a model interval of the rate.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder.", show_default="runs/capacity-NAME-DIGEST")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Find the highest request rate that meets the SLO, with its interval, the curve around it and its cost.

    Every rate serves the same requests, closer together. winner/ is the scenario at its capacity. With
    --max-gpus the load stays as it is, and the fewest replicas that serve it within the SLO are found.

    Examples:

        servetwin capacity chat-a100 --attainment 0.95

        servetwin capacity chat-a100 --slo ttft:1000 --set hardware.price_per_gpu_hour=2.5

        servetwin capacity chat-a100 --vary scheduler.max_num_batched_tokens=512,2048,8192 --rates 1:10

        servetwin capacity chat-a100 --rate 30 --max-gpus 16 --vary parallel.tensor_parallel_size=1,2
    """
    from simulator.experiments.capacity.ask import ask_capacity, json_text, save, text
    from simulator.experiments.compare import candidates_of
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.run_folder import writable_folder

    if out is not None:
        writable_folder(out)
    with ProgressBar(f"{chosen.scenario.name}, capacity", unit="runs") as bar:
        found = ask_capacity(
            chosen.scenario,
            candidates_of(vary or []) or None,
            attainment=attainment,
            rates=None if rates is None else parse_rates(rates),
            tolerance=tolerance,
            max_gpus=max_gpus,
            replications=replications,
            n_model_draws=model_draws,
            policies=chosen.policies,
            progress=None if quiet else bar,
        )
    written = save(found, out, report=not no_report)
    if as_json:
        sys.stdout.write(json_text(found))
    if not quiet:
        lines = [text(found), *(f"Wrote {path}" for path in written)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)


def parse_rates(words: str) -> tuple[float, float]:
    """Read LOW:HIGH; ConfigError if it is not that."""
    low, colon, high = words.partition(":")
    try:
        if colon:
            return float(low), float(high)
    except ValueError:
        pass
    raise ConfigError(f"--rates {words[:80]!r}: write LOW:HIGH in requests per second, such as 1:10")


def register(app: typer.Typer) -> None:
    app.command("capacity")(capacity)
