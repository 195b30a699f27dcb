"""Models known by name. The numbers are those of each `source`'s config.json on Hugging Face.

`get_model` also takes the Hugging Face id, and the path of any other model's config.json.
"""

from __future__ import annotations

import os

from simulator.errors import ConfigError, suggest
from simulator.specs.hf_config import read_hf_config
from simulator.specs.models import MLA, Model, MoE

# Positional: name, layers, hidden, heads, KV heads, head dim, MLP width, vocabulary, max_model_len.
_SHIPPED = (
    Model(
        *(
            "tiny-llama-28m",
            8,
            512,
            8,
            2,
            64,
            1408,
            8192,
            4096,
            "float32",
        ),  # a Llama small enough for one CPU core
        source="servetwin, for teaching: random weights, no checkpoint exists",
    ),
    Model(
        "llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, "float16", source="meta-llama/Llama-2-7b-hf"
    ),
    Model(
        "llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, 4096, "float16", source="meta-llama/Llama-2-70b-hf"
    ),
    Model("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192, source="meta-llama/Meta-Llama-3-8B"),
    Model("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, source="meta-llama/Llama-3.1-8B"),
    Model(
        *("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072),
        tied_embeddings=True,
        source="meta-llama/Llama-3.2-1B",
    ),
    Model("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072, source="meta-llama/Llama-3.1-70B"),
    Model("codellama-34b", 48, 8192, 64, 8, 128, 22016, 32000, 16384, source="codellama/CodeLlama-34b-hf"),
    Model(
        *("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768),
        sliding_window=4096,  # v0.1: all layers; v0.3 has none
        num_sliding_layers=32,
        source="mistralai/Mistral-7B-v0.1",
    ),
    Model("mistral-7b-v0.3", 32, 4096, 32, 8, 128, 14336, 32768, 32768, source="mistralai/Mistral-7B-v0.3"),
    Model(
        *("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 131072), qkv_bias=True, source="Qwen/Qwen2.5-7B"
    ),
    Model("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960, qk_norm=True, source="Qwen/Qwen3-8B"),
    Model("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, 40960, qk_norm=True, source="Qwen/Qwen3-14B"),
    Model("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, 40960, qk_norm=True, source="Qwen/Qwen3-32B"),
    Model(
        *("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768),
        moe=MoE(num_experts=8, experts_per_token=2, intermediate_size=14336),
        source="mistralai/Mixtral-8x7B-v0.1",
    ),
    Model(
        *("deepseek-v3", 61, 7168, 128, 128, 192, 18432, 129280, 163840),
        quantization="fp8",  # the released weights; their 128 x 128 block scales (0.02 %) are left out
        moe=MoE(256, 8, intermediate_size=2048, shared_intermediate_size=2048, num_dense_layers=3),
        mla=MLA(512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536),
        extra_params=58 * 256,  # the routers' correction biases
        source="deepseek-ai/DeepSeek-V3",
    ),
)
MODELS: dict[str, Model] = {model.name: model for model in _SHIPPED}

# Further ids of the same shape and length, as people pass them to `vllm serve`.
_IDS = {model.source.lower(): model.name for model in _SHIPPED} | {
    "meta-llama/llama-2-7b-chat-hf": "llama-2-7b",
    "meta-llama/llama-2-70b-chat-hf": "llama-2-70b",
    "meta-llama/meta-llama-3-8b-instruct": "llama-3-8b",
    "meta-llama/llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama/meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/meta-llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama/llama-3.2-1b-instruct": "llama-3.2-1b",
    "meta-llama/llama-3.1-70b-instruct": "llama-3.1-70b",
    "codellama/codellama-34b-instruct-hf": "codellama-34b",
    "mistralai/mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
}


def get_model(name_or_path: str) -> Model:
    """Return a shipped model by name or Hugging Face id, letter case aside, or read a config.json.

    A path may be the file or a folder that holds it. ConfigError names the near names.
    """
    key = name_or_path.strip().lower()
    model = MODELS.get(_IDS.get(key, key))
    if model is not None:
        return model
    if os.path.exists(name_or_path):
        return read_hf_config(name_or_path)
    near = suggest(key.rpartition("/")[2], MODELS)
    shown = repr(name_or_path[:100])
    raise ConfigError(f"model.name: {shown} is neither a shipped model nor an existing config.json{near}")
