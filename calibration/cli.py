"""`servetwin calibrate`: from timings to a profile. Mounted by `simulator.cli` through an entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Turn kernel timings into a profile that the simulator reads.", no_args_is_help=True)

FIT_HELP = """Fit a profile: one file per GPU, a section per model.

TIMINGS are files, or folders whose .csv and .parquet files are read: servetwin's own timings (csv with a
unit column), AIConfigurator's tables (parquet), Vidur's mlp.csv. Other files are skipped and named.

    servetwin calibrate fit kernels/ -o a100.json

    servetwin calibrate fit timings.csv --hardware h200 --model llama-3.1-8b -o mine.json

    servetwin calibrate fit kernels/ --source gemm="sglang 0.5.10" -o other.json
"""


@app.callback()
def _commands() -> None:
    """Keep `fit` a sub-command while it is the only one."""


@app.command(help=FIT_HELP)
def fit(
    timings: Annotated[list[Path], typer.Argument(help="Files or folders.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="The profile to write.")] = Path("profile.json"),
    hardware: Annotated[str, typer.Option(help="The GPU that was measured.")] = "a100-80gb-sxm",
    model: Annotated[
        list[str] | None, typer.Option(help="Model to fit (repeat); default: four common.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="OPERATION=SOURCE (repeat): whose rows serve an operation.")
    ] = None,
) -> None:
    """Fit and write a profile; prints errors held out, rows rejected and files skipped."""
    from calibration.command import run_fit
    from simulator.errors import SimulatorError

    try:
        for line in run_fit(timings, out, hardware, model or [], source or []):
            typer.echo(line)
    except SimulatorError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
