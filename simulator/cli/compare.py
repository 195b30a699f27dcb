"""servetwin compare, explain, diff: candidates side by side, one request's story, two runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.flags import Chosen, takes_scenario
from simulator.errors import ConfigError


@takes_scenario
def compare(
    chosen: Chosen,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="KEY=A,B,..; repeat for the product of several keys.", metavar="KEY=A,B"),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Candidate that changes refer to; the first.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What decides; attainment if there is an SLO, else output_throughput.")
    ] = None,
    model_draws: Annotated[
        int,
        typer.Option(help="Runs of each under common draws of the profile's errors, for model intervals."),
    ] = 0,
    replications: Annotated[
        str | None,
        typer.Option(
            help="Other draws of the requests, for verdicts: a number, or auto until they are possible.",
            metavar="R|auto",
            show_default="none",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Limit of --replications auto.", show_default="60")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="A tie differs by less: percent, or points of attainment.", show_default="5, 1"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder.", show_default="runs/compare-NAME-DIGEST")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
) -> None:
    """Run candidates on the same requests, side by side; the best becomes winner/, a scenario of its own.

    With --replications all serve other draws of the requests too, and each gets a verdict against the
    baseline: win, loss, tie, identical, or needs more runs.

    Examples:

        servetwin compare chat-a100 --vary scheduler.batching=static,continuous,prefill_first,chunked

        servetwin compare chat-a100 --vary scheduler.max_num_batched_tokens=512,1024,2048 --metric p99_itl_ms

        servetwin compare chat-a100 --vary scheduler.max_num_seqs=64,256 --model-draws 20 --replications auto
    """
    from simulator.experiments.compare import candidates_of, compare
    from simulator.experiments.compare_report import comparison_folder, comparison_text, save_comparison
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.run_folder import writable_folder

    if out is not None:
        writable_folder(out)
    candidates = candidates_of(vary or [])
    if replications is None and (max_seconds is not None or margin is not None):
        raise ConfigError("--max-seconds and --margin belong to --replications")
    with ProgressBar("compare", unit="runs" if model_draws or replications else "candidates") as bar:
        found = compare(
            chosen.scenario,
            candidates,
            metric=metric,
            baseline=baseline,
            policies=chosen.policies,
            n_model_draws=model_draws,
            replications=replications,
            max_seconds=max_seconds,
            margin=None if margin is None else margin / 100,
            progress=None if quiet else bar,
        )
    folder = out or comparison_folder(found)
    written = save_comparison(found, folder, chosen.scenario.name, report=not no_report)
    if as_json:
        sys.stdout.write(comparison_text(found))
    if not quiet:
        lines = [found.text(), *(f"Wrote {path}" for path in written)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)


def explain(
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")],
    request_id: Annotated[
        str, typer.Argument(help="A request's id; see requests.csv.", metavar="REQUEST_ID")
    ],
    trust: Annotated[bool, typer.Option("--trust", help="Load the policy code that the run copied.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell one request's story: what it waited for, how it was computed, who took its blocks, in seconds.

    The run is simulated again; its scenario gives the same run. One that a real engine served is simulated
    again at its recorded times.

    Example:

        servetwin explain runs/chat-a100-3bb0b00d 1234
    """
    from simulator.config.build import Policies
    from simulator.config.loading import load_scenario
    from simulator.experiments.explain import explain as tell
    from simulator.experiments.explain import explain_measured
    from simulator.experiments.run_folder import load_run

    policies = Policies(trust=trust)
    if (run / "summary.json").is_file() and (saved := load_run(run)).is_measured:
        found = explain_measured(saved, request_id, policies)
    else:
        found = tell(load_scenario(run), request_id, policies)
    print(json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else found.text())


def diff(
    a: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN_A")],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="RUN_B")],
    limit: Annotated[
        list[str] | None,
        typer.Option(help="METRIC:PERCENT; exit 1 if it changed by more. Repeatable.", metavar="METRIC:PCT"),
    ] = None,
    repeat: Annotated[
        list[Path] | None,
        typer.Option(help="RUN_A measured again: its noise floor. Repeatable.", metavar="RUN"),
    ] = None,
    split: Annotated[
        bool | None,
        typer.Option(
            "--split/--no-split",
            help="Split the error into timing and decisions.",
            show_default="if RUN_A was measured",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for diff.json and diff.html.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Load the policy code that RUN_B copied.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two runs: every metric, and the first decision in which they part, with its cause.

    Decisions are compared where both runs were made with --log decisions. If RUN_A was measured (gpu replay)
    and RUN_B is a simulation, the error of step times is given by kind of step, and each error is split into
    timing and decisions by simulating RUN_A again at its own times.

    Examples:

        servetwin diff runs/a runs/b --limit p99_ttft_ms:5

        servetwin diff runs/replay runs/model --repeat runs/replay-again -o runs/error
    """
    from simulator.config.build import Policies
    from simulator.experiments.diff import diff as compare
    from simulator.experiments.diff_report import diff_json
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.run_folder import load_run

    limits = _limits(limit or [])
    with ProgressBar("re-simulating") as bar:
        found = compare(
            load_run(a),
            load_run(b),
            repeats=[load_run(each) for each in repeat or ()],
            split=split,
            policies=Policies(trust=trust),
            progress=bar,
        )
    over = found.over(limits)
    print(diff_json(found, over_limit=over) if as_json else found.text())
    for path in [] if out is None else found.save(out):
        print(f"Wrote {path}", file=sys.stderr if as_json else sys.stdout)
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
    app.command("compare")(compare)
    app.command("explain")(explain)
    app.command("diff")(diff)
