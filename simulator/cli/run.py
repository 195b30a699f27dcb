"""servetwin run: simulate a scenario, print the result block and the verdict, write the run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.flags import Chosen, takes_scenario
from simulator.errors import ConfigError, suggest

if TYPE_CHECKING:
    from simulator.config.run import Run

LOGS = ("steps", "decisions", "timeline")
OVERSIZED = "prompts longer than max_num_batched_tokens, each computed alone in a step"


@takes_scenario
def run(
    chosen: Chosen,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder.", show_default="runs/NAME-DIGEST")
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="Also write: steps, decisions, timeline (comma-separated), or all.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.")] = False,
    bottleneck: Annotated[
        bool, typer.Option("--bottleneck", help="Look for the bottleneck even where the run is long.")
    ] = False,
    model_draws: Annotated[
        int, typer.Option(help="Runs under draws of the profile's errors, for model intervals; 20 is fair.")
    ] = 0,
    batching: Annotated[str | None, typer.Option(help="Batching policy, or file.py:Class.")] = None,
    order: Annotated[str | None, typer.Option(help="Waiting order, or file.py:function.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no result block.")] = False,
) -> None:
    """Simulate a scenario: result block, provenance, verdict, and a report to look at.

    Examples:

        servetwin run chat-a100

        servetwin run chat-a100 --trace AzureLLMInferenceTrace_conv.csv --slo ttft:500 --slo tpot:50

        servetwin run chat-a100 --set scheduler.max_num_batched_tokens=512 --log all

        servetwin run chat-a100 --model-draws 20
    """
    logs = _logs(log)
    from simulator.config.run import run_scenario
    from simulator.config.server import one_replica
    from simulator.experiments.judge import judge
    from simulator.experiments.model_draws import checked_draws
    from simulator.experiments.model_interval import add_model_interval, drawable_machine
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.run_folder import default_folder, save_run, summary_text

    scenario = chosen.scenario
    if "decisions" in logs and scenario.cluster is not None:
        if log != "all":
            one_replica(scenario, "decisions")
        logs = tuple(each for each in logs if each != "decisions")
    folder = out or default_folder(scenario)
    machine = drawable_machine(scenario) if checked_draws(model_draws) else None
    with ProgressBar(scenario.name) as bar:
        made = run_scenario(
            scenario,
            policies=chosen.policies,
            machine=machine,
            decisions="decisions" in logs,
            progress=None if quiet else bar,
        )
    if model_draws:
        with ProgressBar(f"{scenario.name}, model draws", unit="runs") as bar:
            add_model_interval(made, model_draws, progress=None if quiet else bar)
    judge(made, True if bottleneck else None)
    written = save_run(made, folder, logs=logs, report=not no_report)
    if as_json:
        sys.stdout.write(summary_text(made.summary))
    if not quiet:
        print(outcome(made, written), file=sys.stderr if as_json else sys.stdout)


def outcome(made: Run, written: list[Path]) -> str:
    """Return what `run` prints: block, provenance, notes, verdict, files."""
    from simulator.config.cost import all_gpus
    from simulator.experiments.fleet_tables import fleet_text
    from simulator.experiments.model_interval import interval_text_of
    from simulator.experiments.tenant_tables import tenants_text
    from simulator.experiments.verdict import bottleneck_table
    from simulator.metrics.block import result_block

    own = made.own
    lines = [result_block(made.summary), f"Source: {own['source']}", f"Times: {own['provenance']}"]
    if made.machine.latency.error is not None:
        lines.append(f"Held-out error of a step: {100 * made.machine.latency.error:.1f} %")
    share = own["extrapolated_share"]
    if share and not (share == 1.0 and own["profile_error"] is None):
        lines.append(f"Extrapolated: {100 * share:.1f} % of steps lie outside the measured range")  # type: ignore[operator]
    for what in ("rejected", "aborted", "unfinished"):
        if own[what]:
            lines.append(f"{what.capitalize()}: {own[what]} {own.get(f'{what}_by_reason') or ''}".rstrip())
    if own["oversized_prompts"]:
        lines.append(f"Oversized: {own['oversized_prompts']} {OVERSIZED}")
    if made.scenario.speculative is not None:
        lines.append(drafts_line(made))
    lines.append(steps_line(made))
    if isinstance(own.get("bubble_share"), float):
        lines.append(pipeline_line(own))
    if own["cost_per_million_output_tokens"] is not None:
        gpus = all_gpus(made.scenario)
        of = f" ({gpus} GPUs)" if gpus > 1 else ""
        lines.append(f"Cost: {own['cost_per_million_output_tokens']:.2f} per million output tokens{of}")
    if own["accuracy"] is not None:
        lines.append(f"Accuracy: {own['accuracy']:g}, your own score; servetwin measures none")
    if own["skipped"]:
        lines.append(f"Rows skipped: {own['skipped']}")
    lines += [f"Note: {note}" for note in own["notes"]]  # type: ignore[attr-defined]
    if fleet := fleet_text(made.summary):
        lines += ["", fleet]
    if tenants := tenants_text(made.summary):
        lines += ["", tenants]
    if intervals := interval_text_of(made.summary):
        lines += ["", intervals]
    bottleneck = own["bottleneck"]
    if isinstance(bottleneck, dict):
        lines += ["", bottleneck_table(bottleneck["rows"])]
    lines += ["", str(own["verdict"]), ""]
    names = {path.name: path for path in written}
    first = names.get("report.html")
    lines.append(f"Report: {first}" if first else f"Run folder: {written[0].parent}")
    return "\n".join(lines)


def pipeline_line(own: dict[str, object]) -> str:
    """Say how much of the stages' time was idle while batches were in flight."""
    pipeline = own["pipeline"]
    assert isinstance(pipeline, dict), "a run over stages has it"
    busy = ", ".join(f"{100 * share:.0f}" for share in pipeline["stage_busy_share"])
    return f"Pipeline: bubbles {100 * own['bubble_share']:.1f} % of stage time; stages busy {busy} %"  # type: ignore[operator]


def drafts_line(made: Run) -> str:
    """Say what speculative decoding drafted and what came of it."""
    keys, rate = made.scenario.speculative, made.summary["spec_decode_acceptance_rate"]
    assert keys is not None, "the run speculates"
    most = "" if keys.num_speculative_tokens_per_batch_size is None else "at most "
    text = f"Drafts: {keys.method}, {most}{keys.num_speculative_tokens} at a time, "
    if rate is None:
        return text + "none verified"
    length = made.summary["spec_decode_acceptance_length"]
    return text + f"{rate:.1f} % accepted, {length:.2f} tokens a verification"


def steps_line(made: Run) -> str:
    """Say how many steps the run took and how many of them needed no new decision."""
    share = made.own["skipped_decode_share"]
    if made.own["is_stepped"]:
        return f"Steps: {len(made.steps):,}, every one decided (this policy or run cannot skip any)"
    of_decodes = f", {100 * share:.0f} % of those that only decode" if isinstance(share, float) else ""
    return f"Steps: {len(made.steps):,}, of which {made.own['num_skipped_steps']:,} skipped{of_decodes}"


def _logs(value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    names = LOGS if value == "all" else tuple(value.split(","))
    for name in names:
        if name not in LOGS:
            raise ConfigError(f"--log {name[:40]!r}: unknown{suggest(name, [*LOGS, 'all'])}")
    return names


def register(app: typer.Typer) -> None:
    app.command("run")(run)
