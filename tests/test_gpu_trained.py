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

import torch
from gpu_models import greedy
from gpu_sequences import Pages
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.loader import load_decoder
from gpu_backend.sampling import SamplingParams
from gpu_backend.speculative import propose_ngram, verify

FOLDER = Path(os.environ["SERVETWIN_SMOLLM2"])
NUM_TOKENS = 24
PROMPTS = ["The capital of France is", "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> list[list[int]]:
    """What `generate` of transformers appends to each prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return [greedy(model, tokenizer.encode(prompt).ids, NUM_TOKENS) for prompt in PROMPTS]


@pytest.fixture
def pages() -> Pages:
    return Pages(load_decoder(FOLDER, "cpu", torch.float32), SdpaGather(), block_size=16)


def test_joint_decodes_give_the_tokens_of_transformers(
    pages: Pages, tokenizer: Tokenizer, expected: list[list[int]]
) -> None:
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    sequences = [pages.sequence(list(prompt), room=NUM_TOKENS) for prompt in prompts]
    pages.step(*((sequence, len(sequence.tokens) - 1) for sequence in sequences))
    for _ in range(NUM_TOKENS):
        rows = pages.step(*((sequence, 1) for sequence in sequences))
        for sequence, token in zip(sequences, rows.argmax(-1).tolist(), strict=True):
            sequence.tokens.append(token)
    found = [s.tokens[len(prompt) :] for s, prompt in zip(sequences, prompts, strict=True)]
    assert found == expected
    assert tokenizer.decode(found[0]).startswith(" Paris.")


def test_speculation_by_ngrams_gives_the_same_tokens_in_fewer_steps(
    pages: Pages, tokenizer: Tokenizer, expected: list[list[int]]
) -> None:
    prompt = tokenizer.encode(PROMPTS[1]).ids
    sequence = pages.sequence(list(prompt), room=NUM_TOKENS + 4)
    pages.step((sequence, len(prompt) - 1))
    steps = 0
    while len(sequence.tokens) < len(prompt) + NUM_TOKENS:
        known = len(sequence.tokens)
        drafts = propose_ngram(sequence.tokens, max_n=3, min_n=1, k=3)
        sequence.tokens += drafts
        logits = pages.step((sequence, 1 + len(drafts)))
        emitted = verify(logits, drafts, None, SamplingParams(), known)
        sequence.tokens[known:] = emitted
        sequence.num_computed = known + len(emitted) - 1  # the KV of rejected drafts will be overwritten
        steps += 1
    assert sequence.tokens[len(prompt) :][:NUM_TOKENS] == expected[1]
    assert steps < NUM_TOKENS * 0.8
