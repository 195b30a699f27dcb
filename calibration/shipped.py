"""The profiles that servetwin ships: which files each is fitted from, for which models, with which host.

`make profiles KERNELS=dir` rebuilds all of them byte for byte: python -m calibration.shipped DIR [PROFILE..].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from calibration.command import MODELS, run_fit
from calibration.write import ASSUMED, HostTerms
from simulator.errors import ConfigError, SimulatorError, suggest
from simulator.latency.profile_file import SHIPPED as FOLDER

MORE = ("codellama-34b", "mistral-7b-v0.3", "qwen3-8b", "qwen3-14b", "qwen3-32b")  # dense, one GPU holds them
HOPPER = (
    "aic_h100_h200_vllm_gemm_bf16.parquet",
    "aic_h100_h200_vllm_context_attention_bf16.parquet",
    "aic_h100_h200_vllm_generation_attention_bf16.parquet",
)
RTX = ("attention", "dense", "per_sequence")  # tables of LLMServingSim, Llama-3.1-8B alone
H100_HOST = HostTerms(
    per_step=215e-6,
    per_seq=0.0,
    kind="fitted",
    source="the one constant fitted on real runs: mean TPOT of Llama-2-7b on vLLM 0.11.0, 281 requests "
    "(inference-sim e7a4aa37); it holds CodeLlama-34b's mean E2E within 2 %. It also corrects the small "
    "kernels, which are priced as on A100, unfused",
)


class Recipe(NamedTuple):
    """What one shipped profile is made of."""

    hardware: str
    files: tuple[str, ...]
    models: tuple[str, ...] = MODELS
    host: HostTerms = ASSUMED


RECIPES = {
    "a100-80gb-sxm": Recipe(
        "a100-80gb-sxm",
        (
            "aic_a100_sxm_gemm_bf16.parquet",
            "aic_a100_sxm_context_attention_bf16.parquet",
            "aic_a100_sxm_generation_attention_bf16.parquet",
            "vidur_mlp_a100_tp1_llama2-7b_llama3-8b.csv",
            "aic_a100_sxm_custom_allreduce.csv",
            "vidur_allreduce_a100_dgx.csv",
        ),
        models=(),  # the default four, and the ranks of groups
    ),
    "rtx4090": Recipe(
        "rtx-4090",
        tuple(f"llmservingsim_rtx4090_llama3.1-8b_{table}.parquet" for table in RTX),
        ("llama-3.1-8b",),
    ),
    "rtxpro6000": Recipe(
        "rtx-pro-6000",
        tuple(f"llmservingsim_rtxpro6000_llama3.1-8b_{table}.parquet" for table in RTX),
        ("llama-3.1-8b",),
    ),
    "h100-80gb-sxm": Recipe("h100-80gb-sxm", HOPPER, (*MODELS, *MORE), H100_HOST),
    "h200": Recipe(
        "h200",
        HOPPER,
        (*MODELS, *MORE),
        H100_HOST._replace(kind="assumed", source=f"assumed to be the H100's: {H100_HOST.source}"),
    ),
}


def build(kernels: Path, out: Path = FOLDER, names: Sequence[str] = ()) -> Iterator[str]:
    """Fit shipped profiles from a folder of public timings, write them to `out`, yield lines to print."""
    for name in names or RECIPES:
        if name not in RECIPES:
            raise ConfigError(f"no shipped profile {name[:60]!r}{suggest(name, RECIPES)}")
        recipe = RECIPES[name]
        files = [kernels / file for file in recipe.files]
        made = run_fit(
            files, out / f"{name}.json", recipe.hardware, recipe.models, [], recipe.host, page=False
        )
        yield from made


if __name__ == "__main__":
    try:
        for line in build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(), names=sys.argv[2:]):
            print(line)
    except SimulatorError as error:
        sys.exit(f"error: {error}")
