"""One rank of a tensor-parallel group as a model of its own: the matrices, heads and vocabulary of one GPU.

Megatron-LM's cut, as vLLM makes it: attention heads, MLP columns and the vocabulary are divided; the hidden
size, norms, routers and MLA's latent are whole on every rank; KV heads are replicated where there are fewer
of them than ranks. Whatever is priced by a `Model`'s shape is thereby priced per rank. For shapes only: the
parameters of such a model are not those of `Model.weight_bytes`.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.specs.models import Model


def rank_of(model: Model, tensor_parallel_size: int, *, expert_parallel: bool = False) -> Model:
    """Return what one rank computes, named `model/tp4`; the model itself for a group of one.

    With `expert_parallel` routed experts are whole, and each rank has its share of them.

    ConfigError where heads or MLP columns cannot be divided.

    >>> llama = Model("llama-70b", 80, 8192, 64, 8, 128, 28672, 32000, 4096)
    >>> rank = rank_of(llama, 4)
    >>> rank.name, rank.num_heads, rank.num_kv_heads, rank.intermediate_size, rank.vocab_size
    ('llama-70b/tp4', 16, 2, 7168, 8000)
    """
    if tensor_parallel_size == 1:
        return model
    tp = tensor_parallel_size
    heads, kv_heads = model.heads_per_rank(tp)
    model.layer_gemms(tp)  # refuses what cannot be divided
    moe = model.moe
    return replace(
        model,
        name=rank_name(model.name, tp),
        num_heads=heads,
        num_kv_heads=kv_heads,
        intermediate_size=-(-model.intermediate_size // tp),
        vocab_size=model.head_gemm(tp)[0],
        moe=moe
        and replace(
            moe,
            intermediate_size=moe.intermediate_size // (1 if expert_parallel else tp),
            ranks=tp if expert_parallel else 1,
            shared_intermediate_size=moe.shared_intermediate_size // tp,
        ),
    )


def rank_name(name: str, tensor_parallel_size: int) -> str:
    """Return the name of a model's rank, as profiles list it."""
    return name if tensor_parallel_size == 1 else f"{name}/tp{tensor_parallel_size}"
