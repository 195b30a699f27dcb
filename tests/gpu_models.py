"""Tiny models of every family, made by transformers with random weights: the reference of the decoder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

transformers.logging.set_verbosity_error()

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 4}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, tied, biases": (
        "llama",
        {
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": LINEAR_ROPE,
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2, windows in the last layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": 7}),
}


def save_model(name: str, folder: Path, **changes: Any) -> Any:
    """Make the model of this name, save it to `folder` and return it, for logits and `generate`."""
    kind, overrides = FAMILIES[name]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **overrides, **changes})
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.normal_(1.0 if key.endswith("norm.weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


def logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the logits of every position, (tokens, vocab)."""
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return result


def greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    """Return the next tokens that `generate` picks."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return list(out[0, len(tokens) :].tolist())
