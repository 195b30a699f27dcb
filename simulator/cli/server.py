"""servetwin import, export: take a measured result in, take settings and load to a real server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no result block.")]


def import_(
    result: Annotated[Path, typer.Argument(help="A benchmark's result.", metavar="RESULT.json")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder.", show_default="runs/imported-NAME")
    ] = None,
    source: Annotated[
        str, typer.Option(help="auto, vllm, sglang, guidellm, aiperf, servetwin; auto goes by the keys.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a run folder of what a benchmark of a real server wrote, to lay beside simulated runs.

    Reads `vllm bench serve --save-result` (best with --save-detailed), SGLang's bench_serving, GuideLLM's
    benchmarks.json, AIPerf's profile_export files, and our own summary.json. What a file does not have is
    null. A file of several results gives a folder each: RUN/1, RUN/2.

    Examples:

        servetwin import result.json -o runs/measured

        servetwin diff runs/measured runs/chat-a100-3bb0b00d
    """
    from simulator.experiments.run_folder import summary_text
    from simulator.experiments.server.imported import read_imported, save_imported

    found = list(read_imported(result, source))
    folder = out or Path("runs") / f"imported-{result.stem[:60]}"
    for number, each in enumerate(found, start=1):
        written = save_imported(each, folder if len(found) == 1 else folder / str(number))
        if as_json:
            sys.stdout.write(summary_text(each.summary))
        if not quiet:
            print(_outcome(each.summary, written), file=sys.stderr if as_json else sys.stdout)


def _outcome(summary: dict[str, object], written: list[Path]) -> str:
    from simulator.metrics.block import result_block

    own = summary["servetwin"]
    assert isinstance(own, dict), "made so"
    lines = [result_block(summary), f"Source: {own['source']}"]
    lines += [f"Note: {note}" for note in own.get("notes") or ()]
    lines.append(f"Run folder: {written[0].parent}")
    return "\n".join(
        "".join(c if c.isprintable() else "?" for c in line) for text in lines for line in text.split("\n")
    )


def export(
    server: Annotated[str, typer.Argument(help="vllm or sglang.", metavar="vllm|sglang")],
    run: Annotated[str, typer.Argument(help="Run folder, winner/ or any scenario.", metavar="RUN")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the load here, as Mooncake jsonl.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load policy code that the scenario file names.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Print what to type: the serve command, what the server cannot do, the client's command, what to expect.

    Flags are those of vLLM 0.33 and SGLang 0.5.23. With -o the run's very requests are written for the
    client, with their times, lengths and shared prefixes. A scenario that was not run is simulated first.

    Examples:

        servetwin export vllm runs/chat-a100-3bb0b00d -o load.jsonl

        servetwin export sglang runs/compare-chat-a100-1234abcd/winner

        servetwin export vllm chat-a100 --json
    """
    from simulator.config.build import Policies
    from simulator.experiments.progress import ProgressBar
    from simulator.experiments.server.export import export as make

    with ProgressBar("export") as bar:
        found = make(server, run, out=out, policies=Policies(trust=trust), progress=None if quiet else bar)
    print(json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else found.text())
    if out is not None and not quiet:
        print(f"Wrote {len(found.load):,} requests to {out}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    app.command("import")(import_)
    app.command("export")(export)
