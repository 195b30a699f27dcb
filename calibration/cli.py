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
    """Keep each a sub-command, however many there are."""


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
        typer.echo(f"servetwin: {error}", err=True)
        raise typer.Exit(2) from None


TUNE_HELP = """Tune a profile to a server of yours: host terms and one GPU scale, from one benchmark of it.

RESULT is what `vllm bench serve --save-result --save-detailed` wrote, or a folder of a measured run. The
first half of its requests is fitted on, the error on the second half printed before and after.

    servetwin calibrate tune a100-80gb-sxm --bench result.json --log server.log -o mine.json
"""


@app.command(help=TUNE_HELP)
def tune(
    profile: Annotated[str, typer.Argument(help="A shipped profile's name, or a path.", show_default=False)],
    bench: Annotated[Path, typer.Option(help="Result, or folder, of the measured run.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="The profile to write.")] = Path("profile.json"),
    log: Annotated[Path | None, typer.Option(help="The server's log: KV blocks and arguments.")] = None,
    model: Annotated[str | None, typer.Option(help="Model; default: the one that the result names.")] = None,
    hardware: Annotated[str | None, typer.Option(help="GPU; must be the profile's.")] = None,
    trace: Annotated[
        str | None, typer.Option(help="Trace of the same requests, for the prefixes they share.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any scenario key: scheduler.max_num_seqs=128.", metavar="KEY=VALUE"),
    ] = None,
    skip: Annotated[int, typer.Option(min=0, help="How many first requests are cold and do not count.")] = 1,
) -> None:
    """Tune and write a profile; prints terms and held-out errors."""
    from calibration.tune_command import run_tune
    from simulator.cli.flags import flag_changes
    from simulator.errors import SimulatorError

    absent = dict.fromkeys(("format", "time_unit", "profile", "seed", "columns", "num_requests", "slo"))
    flags = {"model": model, "hardware": hardware, "trace": None, "set_": set_, **absent}
    try:
        changes = flag_changes(flags, has_trace=False)
        blocks = None if trace is None else Path(trace)
        for line in run_tune(profile, bench, out, changes, log=log, trace=blocks, skip=skip):
            typer.echo(line)
    except SimulatorError as error:
        typer.echo(f"servetwin: {error}", err=True)
        raise typer.Exit(2) from None


VALIDATE_HELP = """Simulate a real run under a profile, and print how wrong it is.

MEASURED is a folder with requests.jsonl and meta.json, or per_request.csv and exp-config.json, or the result
of vllm bench serve --save-detailed. Which blocks prompts share comes from a trace of the same requests.

    servetwin calibrate validate rtx4090 --measured run/ --trace run/trace_blocks16.jsonl -o out/

    servetwin calibrate validate h100-80gb-sxm --measured run/ --blocks 7438 --warmup 1 --json
"""


@app.command(help=VALIDATE_HELP)
def validate(
    profile: Annotated[str, typer.Argument(help="Shipped name or file.", show_default=False)],
    measured: Annotated[Path, typer.Option(help="The run: a folder, or a bench result.", show_default=False)],
    trace: Annotated[Path | None, typer.Option(help="Its requests with prefix blocks.")] = None,
    blocks: Annotated[int | None, typer.Option(min=2, help="KV blocks that the server printed.")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="First requests to leave out of the figures.")] = 0,
    fit_constant: Annotated[
        bool, typer.Option("--fit-constant", help="Also fit one constant a step, on the mean TPOT alone.")
    ] = False,
    limit: Annotated[
        float | None, typer.Option(min=0, help="Exit 1 if a latency figure errs by more percent.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder for validate.html.")] = None,
) -> None:
    """Compare; exit 1 if the last result errs by more than the limit."""
    import json

    from calibration.validate_command import lines, run_validate, save_validation, validation_json

    found = run_validate(
        profile, measured, trace=trace, blocks=blocks, warmup=warmup, fit_constant=fit_constant
    )
    written = save_validation(found, out) if out else []
    for each in found:
        for line in lines(each):
            typer.echo(line, err=as_json)
    for path in written:
        typer.echo(f"wrote {path}", err=as_json)
    if as_json:
        typer.echo(json.dumps(validation_json(found[-1])))
    if limit is not None and found[-1].worst > limit / 100:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
