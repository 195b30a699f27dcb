"""servetwin kv-size: what a token of context costs, and how many requests fit."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def kv_size(
    model: Annotated[str, typer.Argument(help="Shipped name, or path to a config.json.", metavar="MODEL")],
    hardware: Annotated[str, typer.Option(help="GPU; see `servetwin list hardware`.")] = "a100-80gb-sxm",
    context: Annotated[int | None, typer.Option(help="Tokens a request; default: the model's limit.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs that share the model.")] = 1,
    pipeline_parallel_size: Annotated[int, typer.Option(help="Stages that the layers are cut into.")] = 1,
    quantization: Annotated[
        str | None, typer.Option(help="Weights of the layers: int8, int4 or fp8.")
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, fp8 or int8.")] = "auto",
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of memory that vLLM may use.")] = 0.92,
    num_gpu_blocks_override: Annotated[int | None, typer.Option(help="vLLM's own number of blocks.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what the KV cache of a model costs: bytes a token, blocks, requests that fit, with units.

    Examples:

        servetwin kv-size qwen2.5-7b --context 131072

        servetwin kv-size llama-3.1-8b --hardware rtx-4090 --quantization int4 --kv-cache-dtype fp8
    """
    from simulator.kv.size import kv_size as size

    found = size(
        model,
        hardware,
        context=context,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
        tensor_parallel_size=tensor_parallel_size,
        num_gpu_blocks_override=num_gpu_blocks_override,
        pipeline_parallel_size=pipeline_parallel_size,
    )
    print(json.dumps(found.to_dict(), indent=1) if as_json else "\n".join(found.lines()))


def register(app: typer.Typer) -> None:
    app.command("kv-size")(kv_size)
