"""Prefixes that requests share: what they have in common is what the cache finds, and no more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.workload.prefixes import with_prefixes
from simulator.workload.workload import Workload


def prompts(*tokens: int) -> Workload:
    n = len(tokens)
    return Workload(np.arange(n, dtype=float), np.array(tokens), np.ones(n, int), source="four prompts")


def test_a_prompt_shares_the_full_blocks_of_its_prefix_and_nothing_else() -> None:
    shared = with_prefixes(prompts(3, 20, 16, 1), np.random.default_rng(0), [40], [1.0])
    assert shared.num_prompt.tolist() == [43, 60, 56, 41]
    assert shared.blocks is not None
    assert [shared.blocks.of(i) for i in range(4)] == [[0, 1, 2], [0, 1, 3, 4], [0, 1, 5, 6], [0, 1, 7]]
    assert shared.source == "four prompts, one of 1 prefixes each"


def test_a_prefix_of_less_than_a_block_is_computed_every_time() -> None:
    shared = with_prefixes(prompts(3, 20), np.random.default_rng(0), [15, 0], [1.0, 1.0])
    assert shared.blocks is not None
    assert shared.blocks.hit_blocks().tolist() == [0, 0]


def test_weights_are_shares_and_weight_0_is_never() -> None:
    n = 20_000
    workload = Workload(np.arange(n, dtype=float), np.ones(n, int), np.ones(n, int))
    drawn = with_prefixes(workload, np.random.default_rng(1), [100, 200, 300], [3, 1, 0])
    counts = np.bincount(drawn.num_prompt, minlength=302)[[101, 201, 301]]
    assert counts.sum() == n
    assert counts[2] == 0
    assert abs(counts[0] / n - 0.75) < 4 * np.sqrt(0.75 * 0.25 / n)


@given(
    own=st.lists(st.integers(1, 90), min_size=1, max_size=8),
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    block_size=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_ids_agree_with_prompts_written_out(
    own: list[int], lengths: list[int], block_size: int, seed: int
) -> None:
    """Against token lists: two prompts have as many leading ids in common as full blocks of one prefix."""
    drawn = with_prefixes(
        prompts(*own), np.random.default_rng(seed), lengths, [1.0] * len(lengths), block_size
    )
    which = np.random.default_rng(seed).choice(len(lengths), len(own), p=[1 / len(lengths)] * len(lengths))
    assert drawn.blocks is not None
    ids = [drawn.blocks.of(i) for i in range(len(own))]
    for i, mine in enumerate(ids):
        assert drawn.num_prompt[i] == own[i] + lengths[which[i]]
        assert len(mine) == -(-drawn.num_prompt[i] // block_size)
        for j in range(i):
            common = len(set(mine) & set(ids[j]))
            assert mine[:common] == ids[j][:common]
            assert common == (lengths[which[i]] // block_size if which[i] == which[j] else 0)


@pytest.mark.parametrize(
    ("lengths", "weights", "message"),
    [
        ([], [], "lengths must be"),
        ([1, 2], [1.0], "as many as weights"),
        ([-1], [1.0], "lengths must be >= 0"),
        ([1], [0.0], "not all 0"),
        ([1, 2], [1.0, -1.0], "weights must be >= 0"),
        ([1, 2], [1.0, float("nan")], "weights must be >= 0 and finite"),
    ],
)
def test_what_cannot_be_drawn_is_told(lengths: list[int], weights: list[float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_prefixes(prompts(1), np.random.default_rng(0), lengths, weights)


def test_prefix_ids_are_given_once_and_blocks_have_a_size() -> None:
    once = with_prefixes(prompts(5), np.random.default_rng(0), [40], [1.0])
    with pytest.raises(ConfigError, match="prefixes each has prefix ids already"):
        with_prefixes(once, np.random.default_rng(0), [40], [1.0])
    with pytest.raises(ConfigError, match="block_size must be >= 1, got 0"):
        with_prefixes(prompts(5), np.random.default_rng(0), [40], [1.0], block_size=0)
