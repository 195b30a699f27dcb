"""`servetwin gpu replay` and `gpu generate`: serve a scenario, or one prompt, with a real model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.flags import Chosen, takes_scenario
from simulator.errors import ConfigError


@takes_scenario
def replay(
    chosen: Chosen,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    clock: Annotated[
        str, typer.Option(help="wall: as it takes; predicted: as the latency model says.")
    ] = "wall",
    weights: Annotated[str, typer.Option(help="Folder with a checkpoint, or random.")] = "random",
    draft_weights: Annotated[
        str, typer.Option(help="The same of speculative.draft_model, if the scenario has one.")
    ] = "random",
    attention: Annotated[str, typer.Option(help="auto, sdpa, triton or varlen.")] = "auto",
    max_requests: Annotated[int | None, typer.Option(help="Serve at most so many requests.", min=1)] = None,
    threads: Annotated[int, typer.Option(help="PyTorch's threads on the CPU.")] = 1,
    torch_profile: Annotated[
        int | None,
        typer.Option(help="Also write a PyTorch trace of this many steps.", metavar="STEPS", min=1),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Run folder.", show_default="runs/NAME-DIGEST-DEVICE-CLOCK"),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.html.")] = False,
    batching: Annotated[str | None, typer.Option(help="Batching policy, or file.py:Class.")] = None,
    order: Annotated[str | None, typer.Option(help="Waiting order, or file.py:function.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no result block.")] = False,
) -> None:
    """Serve a scenario with a real model: the same policies, files and log as `run --log all`.

    Examples:

        servetwin gpu replay tiny-cpu -o runs/machine && servetwin run tiny-cpu --log all -o runs/model

        servetwin diff runs/machine runs/model

        servetwin gpu replay tiny-cpu --clock predicted
    """
    from gpu_backend.engine import Engine
    from gpu_backend.replay import at_most, replay_folder, run_and_save
    from simulator.cli.run import outcome
    from simulator.experiments.run_folder import summary_text

    engine = Engine(
        at_most(chosen.scenario, max_requests),
        policies=chosen.policies,
        device=device,
        clock=clock,
        weights=weights,
        draft_weights=draft_weights,
        attention=attention,
        threads=threads,
    )
    folder = out or replay_folder(engine)
    made, written = run_and_save(
        engine, folder, report=not no_report, profile_steps=torch_profile, progress=not quiet
    )
    if as_json:
        sys.stdout.write(summary_text(made.summary))
    if not quiet:
        print(outcome(made, written), file=sys.stderr if as_json else sys.stdout)


def generate(
    model: Annotated[
        str, typer.Argument(help="Folder with a checkpoint and its tokenizer.json.", metavar="MODEL_DIR")
    ],
    prompt: Annotated[
        list[str], typer.Argument(help="One or more prompts, served together.", metavar="PROMPT...")
    ],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer at most.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0.0)] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps every token.", min=0)] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps every token.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws.", min=0)] = 0,
    num_speculative_tokens: Annotated[
        int, typer.Option(help="Draft tokens a step, looked up in the text so far; 0: none.", min=0, max=64)
    ] = 0,
    quantization: Annotated[str | None, typer.Option(help="int8: weights rounded to 8 bits.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Answer prompts with a checkpoint, batched by the same scheduler.

    Examples:

        servetwin gpu generate ./SmolLM2-135M-Instruct "The capital of France is"

        servetwin gpu generate ./model "One" "Two" --temperature 0.8 --top-p 0.95 --seed 7
    """
    import json

    from gpu_backend.generate import Options, answer
    from gpu_backend.sampling import SamplingParams

    try:
        sampling = SamplingParams(temperature, top_k, top_p, seed)
    except ValueError as error:
        name, _, rule = str(error).partition(" ")
        raise ConfigError(f"--{name.replace('_', '-')} {rule}") from None
    options = Options(
        device=device,
        max_tokens=max_tokens,
        sampling=sampling,
        num_speculative_tokens=num_speculative_tokens,
        quantization=quantization,
    )
    answers = answer(Path(model), prompt, options)
    if as_json:
        sys.stdout.write(json.dumps([each._asdict() for each in answers], ensure_ascii=False) + "\n")
        return
    for each in answers:
        typer.echo(f"{each.prompt}{each.text}")


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)
    app.command("generate")(generate)
