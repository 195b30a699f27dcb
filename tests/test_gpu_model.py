"""The decoder against transformers, over paged KV: what the scheduler may do must not show in the logits."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_models import FAMILIES, greedy, logits, save_model
from gpu_sequences import Pages, Sequence

from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.loader import load_decoder
from gpu_backend.model import Projection

Pair = tuple[Any, Pages]


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    model = save_model(request.param, tmp_path)
    return model, Pages(load_decoder(tmp_path, "cpu", torch.float32), SdpaGather())


def ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(97, size=count).tolist()


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_whole_prefill(pair: Pair) -> None:
    model, pages = pair
    tokens = ids(30)
    near(pages.step((pages.sequence(tokens), 30)), logits(model, tokens))


def test_prefill_in_chunks(pair: Pair) -> None:
    model, pages = pair
    tokens = ids(30)
    sequence = pages.sequence(tokens)
    parts = [
        pages.step((sequence, count), padding=padding)
        for count, padding in ((5, 3), (1, 0), (13, 0), (11, 1))
    ]
    near(torch.cat(parts), logits(model, tokens))


def test_decodes_and_chunks_in_one_step(pair: Pair) -> None:
    model, pages = pair
    texts = [ids(25, 1), ids(9, 2), ids(18, 3), ids(14, 4)]
    short, long, middle, fresh = (pages.sequence(text) for text in texts)
    pages.step((short, 24), (long, 8), (middle, 7))
    found = pages.step((short, 1), (long, 1), (middle, 11), (fresh, 14), padding=5)
    expected = [logits(model, text) for text in texts]
    near(found, torch.cat([expected[0][24:], expected[1][8:], expected[2][7:], expected[3]]))


def test_joint_decodes_on_scattered_blocks(pair: Pair) -> None:
    """Lengths far apart, so that they attend in several groups; blocks interleave as the pool gives them."""
    model, pages = pair
    pages.attention = SdpaGather(padding_per_call=6)
    texts = [ids(count, count) for count in (3, 31, 6, 28, 17)]
    sequences = [pages.sequence(text) for text in texts]
    pages.step(*[(sequence, len(sequence.tokens) - 2) for sequence in sorted(sequences, key=_last_chunk)])
    first = pages.step(*[(sequence, 1) for sequence in sequences], padding=3)
    second = pages.step(*[(sequence, 1) for sequence in reversed(sequences)])
    expected = torch.stack([logits(model, text)[-2:] for text in texts])
    near(first, expected[:, 0])
    near(second.flip(0), expected[:, 1])


def _last_chunk(sequence: Sequence) -> bool:
    return len(sequence.tokens) > 3


@pytest.mark.parametrize("same_step", [False, True])
def test_two_sequences_share_prefix_blocks(pair: Pair, same_step: bool) -> None:
    """Also in the step that fills the blocks: all K and V are written before anybody attends."""
    model, pages = pair
    prefix = ids(12)
    texts = [prefix + ids(7, 1), prefix + ids(10, 2)]
    first = pages.sequence(texts[0])
    second = pages.sequence(texts[1], shared=first.blocks[:3])
    if same_step:
        found = pages.step((second, 10), (first, 19))
        found, rest = found[:10], found[10:]
        near(rest, logits(model, texts[0]))
    else:
        pages.step((first, 19))
        found = pages.step((second, 10))
    near(found, logits(model, texts[1])[12:])


def test_greedy_tokens(pair: Pair) -> None:
    """Prompts prefilled in chunks, then decoded together: the tokens that `generate` picks alone."""
    model, pages = pair
    prompts = [ids(11, 1), ids(20, 2)]
    sequences = [pages.sequence(list(prompt)) for prompt in prompts]
    pages.step((sequences[0], 10), (sequences[1], 6))
    pages.step((sequences[1], 13))
    for _ in range(14):
        for sequence, row in zip(sequences, pages.step(*[(s, 1) for s in sequences]), strict=True):
            sequence.tokens.append(int(row.argmax()))
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert sequence.tokens[len(prompt) :] == greedy(model, prompt, 14)


def test_swapping_two_blocks_changes_the_logits(pair: Pair) -> None:
    """A full block and the one being filled: keys carry their positions, so among full ones order is free."""
    _, pages = pair
    tokens = ids(17)
    sequence = pages.sequence(tokens)
    pages.step((sequence, 16))
    right = pages.step((sequence, 1))
    blocks, sequence.num_computed = sequence.blocks, 16
    blocks[3], blocks[4] = blocks[4], blocks[3]
    assert not torch.allclose(right, pages.step((sequence, 1)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near(tmp_path: Path, dtype: torch.dtype) -> None:
    model = save_model("llama 3.1", tmp_path)
    pages = Pages(load_decoder(tmp_path, "cpu", dtype), SdpaGather())
    tokens = ids(20)
    found = pages.step((pages.sequence(tokens), 20))
    assert (found.dtype, pages.kv.pages.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(found, logits(model, tokens), rtol=0.05, atol=0.15)


def test_every_projection_can_be_exchanged(tmp_path: Path) -> None:
    """What a quantised model does: the same calls through another object."""
    model = save_model("qwen2", tmp_path)
    decoder = load_decoder(tmp_path, "cpu", torch.float32)
    called = []

    def spy(name: str, plain: Projection) -> Projection:
        return lambda x: (called.append(name), plain(x))[1]

    for layer, name, plain in decoder.projections():
        setattr(layer, name, spy(name, plain))
    pages, tokens = Pages(decoder, SdpaGather()), ids(9)
    near(pages.step((pages.sequence(tokens), 9)), logits(model, tokens))
    assert called == ["qkv", "out", "gate_up", "down"] * 3
