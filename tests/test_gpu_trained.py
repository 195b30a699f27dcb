"""A trained model: the engine's tokens are those of transformers, and speculation changes none of them.

Runs where SERVETWIN_SMOLLM2 names the folder that examples/smollm2.py wrote.
"""

# ruff: noqa: E402  (imports follow what skips the file where it cannot run)
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
if "SERVETWIN_SMOLLM2" not in os.environ:
    pytest.skip("needs SERVETWIN_SMOLLM2, see examples/smollm2.py", allow_module_level=True)

import numpy as np
import torch
from gpu_models import greedy
from transformers import AutoModelForCausalLM

from gpu_backend.generate import Options, complete, read_tokenizer
from gpu_backend.loader import load_decoder
from gpu_backend.model import Decoder

FOLDER = Path(os.environ["SERVETWIN_SMOLLM2"])
NUM_TOKENS = 24
PROMPTS = ["The capital of France is", "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return"]


@pytest.fixture(scope="module")
def prompts() -> list[Any]:
    tokenizer = read_tokenizer(FOLDER)
    return [np.array(tokenizer.encode(prompt), dtype=np.int64) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected(prompts: list[Any]) -> list[list[int]]:
    """What `generate` of transformers appends to each prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return [greedy(model, prompt.tolist(), NUM_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load_decoder(FOLDER, "cpu", torch.float32)


@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
def test_the_engine_gives_the_tokens_of_transformers(
    decoder: Decoder, prompts: list[Any], expected: list[list[int]], num_speculative_tokens: int
) -> None:
    options = Options("cpu", NUM_TOKENS, num_speculative_tokens=num_speculative_tokens)
    assert complete(decoder, prompts, options) == expected
    assert read_tokenizer(FOLDER).decode(expected[0]).startswith(" Paris.")
