"""The stages of a pipeline: which layers each holds, and what lies on it besides.

Layers are divided as vLLM divides them (`get_pp_indices`): evenly, and what is left over goes to the stages
before the last one, from the back. The embedding lies on the first stage, final norm and head on the last;
tied embeddings on both. Left out: VLLM_PP_LAYER_PARTITION, another cut of the user's.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import ConfigError
from simulator.specs.models import Model, dtype_bits


def stage_layers(num_layers: int, num_stages: int) -> list[int]:
    """Return how many layers each stage holds; ConfigError where there are more stages than layers.

    >>> stage_layers(32, 2), stage_layers(61, 2), stage_layers(61, 4)
    ([16, 16], [31, 30], [15, 15, 16, 15])
    """
    if not 1 <= num_stages <= num_layers:
        raise ConfigError(f"pipeline_parallel_size must be 1..{num_layers}, the layers, got {num_stages}")
    each, rest = divmod(num_layers, num_stages)
    layers = [each] * num_stages
    for i in range(2, rest + 2):
        layers[-i] += 1
    return layers


def stage_of(model: Model, stage: int, num_stages: int) -> Model:
    """Return one stage's layers as a model of its own, for shapes: its embeddings are the whole model's."""
    if num_stages == 1:
        return model
    layers = stage_layers(model.num_layers, num_stages)
    begin, n = sum(layers[:stage]), layers[stage]
    moe = model.moe
    if moe is not None:  # the dense layers are the first ones
        moe = replace(moe, num_dense_layers=min(max(moe.num_dense_layers - begin, 0), n))
    sliding = -(-model.num_sliding_layers * n // model.num_layers)
    return replace(
        model,
        name=f"{model.name}/stage{stage + 1}of{num_stages}",
        num_layers=n,
        num_sliding_layers=sliding,
        moe=moe,
        extra_params=model.extra_params if stage == 0 else 0,
    )


def stage_weight_bytes(model: Model, stage: int, num_stages: int, tensor_parallel_size: int = 1) -> int:
    """Return the bytes of the weights on one rank of a stage; the whole model's for one stage."""
    whole = stage_of(model, stage, num_stages).weight_bytes(tensor_parallel_size=tensor_parallel_size)
    if num_stages == 1:
        return whole
    rows, hidden = model.head_gemm(tensor_parallel_size)
    size = dtype_bits(model.dtype)
    table, norm = rows * hidden * size // 8, hidden * size // 8
    if stage == 0:
        return whole - norm - (0 if model.tied_embeddings else table)
    if stage == num_stages - 1:
        return whole - (0 if model.tied_embeddings else table)
    return whole - norm - (1 if model.tied_embeddings else 2) * table
