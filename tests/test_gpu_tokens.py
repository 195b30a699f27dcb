"""Prompts of a replay: equal block hashes give equal tokens, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_backend.tokens import prompt_tokens
from simulator.request import HashRange, Request
from simulator.workload.trace_blocks import TraceBlocks

BLOCK = 4
VOCAB = 32_000


def request(num_prompt: int, *ranges: HashRange) -> Request:
    return Request("r", 0.0, num_prompt, 1, 1, block_hashes=ranges)


def tokens(num_prompt: int, *ranges: HashRange, index: int = 0, seed: int = 0) -> list[int]:
    return prompt_tokens(request(num_prompt, *ranges), BLOCK, VOCAB, seed, index).tolist()


def test_blocks_are_shared_and_the_rest_is_private() -> None:
    first = tokens(11, (5, 7), index=0)
    again = tokens(14, (5, 7), (90, 91), index=1)
    assert len(first) == 11
    assert first[:8] == again[:8]
    assert first[8:] != again[8:11]
    assert not set(first[8:]) & set(again[8:])


def test_a_block_has_its_tokens_wherever_its_range_begins() -> None:
    assert tokens(12, (5, 8))[4:] == tokens(8, (6, 8))
    assert tokens(12, (5, 8)) == tokens(12, (5, 6), (6, 8))


def test_hashes_indices_and_seeds_have_tokens_of_their_own() -> None:
    runs = [
        tokens(4, (3, 4)),
        tokens(4, (4, 5)),
        tokens(4, (3, 4), seed=1),
        tokens(4, index=3),
        tokens(4, index=4),
        tokens(4, index=3, seed=1),
    ]
    assert len({tuple(run) for run in runs}) == len(runs)
    assert tokens(6, index=3)[:4] == tokens(4, index=3)
    assert tokens(6, (8, 9), index=3)[4:] == tokens(6, index=3)[4:]  # by position


def test_ids_are_uniform_over_the_vocabulary() -> None:
    ids = prompt_tokens(request(40_000, (0, 5_000)), BLOCK, 10, 0, 0)
    assert ids.dtype == np.int64
    for part in (ids[:20_000], ids[20_000:]):
        counts = np.bincount(part, minlength=10)
        assert len(counts) == 10
        assert np.abs(counts - 2000).max() < 5 * 2000**0.5


def test_requests_of_a_trace_share_what_its_block_ids_say() -> None:
    blocks = TraceBlocks.of_ids(np.array([0, 1, 2, 0, 1, 3]), np.array([0, 3, 6]), block_size=8)
    ranges = blocks.ranges(np.array([24, 24]), BLOCK)
    a, b = (tokens(24, *ranges.of(i), index=i) for i in range(2))
    assert a[:16] == b[:16]
    assert all(x != y for x, y in zip(a[16:], b[16:], strict=True))


HASHES = st.lists(st.integers(0, 6), max_size=4)


@given(HASHES, HASHES, st.integers(0, 9), st.integers(0, 9), st.integers(1, 8))
def test_the_common_tokens_of_two_prompts_are_those_of_their_common_hashes(
    a: list[int], b: list[int], rest_a: int, rest_b: int, block_size: int
) -> None:
    prompts = []
    for index, (hashes, rest) in enumerate([(a, rest_a), (b, rest_b)]):
        length = len(hashes) * block_size + rest
        if not length:
            return
        asked = request(length, *((h, h + 1) for h in hashes))
        prompts.append(prompt_tokens(asked, block_size, 1 << 40, 7, index))
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    shortest = min(map(len, prompts))
    same = (prompts[0][:shortest] == prompts[1][:shortest]).tolist()
    assert all(same[: common * block_size])
    assert not any(same[common * block_size : (common + 1) * block_size])


def test_hashes_of_another_block_size_are_refused() -> None:
    with pytest.raises(ValueError, match="request 'r': 3 block hashes must fit its prompt of 11 tokens"):
        tokens(11, (5, 8))


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be >= 1, got 0"):
        prompt_tokens(request(3), BLOCK, 0, 0, 0)
