"""Sampling follows the law asked for, and a request's tokens do not depend on its company."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from gpu_backend.sampling import SamplingParams, Stream, restrict, sample

NUM_DRAWS = 50_000

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.7, top_k=5, seed=3),
    SamplingParams(temperature=1.3, top_p=0.8, seed=2**64 - 1),
    SamplingParams(temperature=2.0, top_k=9, top_p=0.9),
]


def frequencies(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    rows = logits.expand(NUM_DRAWS, -1)
    tokens = sample(rows, [params] * NUM_DRAWS, range(NUM_DRAWS))
    return torch.bincount(tokens, minlength=len(logits)).tolist()


def kept_by_definition(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Return the probabilities of the tokens that stay, by the words of the definition, in doubles."""
    scaled = [each / params.temperature for each in logits]
    ids = sorted(range(len(logits)), key=lambda i: (-scaled[i], i))
    if params.top_k:
        lowest = scaled[ids[: params.top_k][-1]]
        ids = [i for i in ids if scaled[i] >= lowest]
    weights = [math.exp(scaled[i] - scaled[ids[0]]) for i in ids]
    total = math.fsum(weights)
    masses = [math.fsum(weights[: n + 1]) / total for n in range(len(ids))]
    if params.top_p < 1.0:
        ids = ids[: 1 + sum(mass < params.top_p for mass in masses)]
    kept = math.fsum(weights[: len(ids)])
    return {i: weight / kept for i, weight in zip(ids, weights, strict=False)}


@pytest.mark.parametrize(
    ("params", "seed"),
    [
        (SamplingParams(temperature=1.0, seed=1), 0),
        (SamplingParams(temperature=0.6, seed=2), 1),
        (SamplingParams(temperature=1.5, top_k=4, seed=3), 2),
        (SamplingParams(temperature=1.0, top_p=0.7, seed=4), 3),
        (SamplingParams(temperature=2.0, top_k=6, top_p=0.9, seed=5), 4),
    ],
)
def test_frequencies_are_those_of_the_softmax(params: SamplingParams, seed: int) -> None:
    logits = torch.randn(8, generator=torch.Generator().manual_seed(seed)) * 1.5
    expected = kept_by_definition(logits.tolist(), params)
    counts = frequencies(logits, params)
    assert sum(counts[i] for i in expected) == NUM_DRAWS
    test = stats.chisquare([counts[i] for i in expected], [NUM_DRAWS * p for p in expected.values()])
    assert test.pvalue > 0.01


def test_an_improbable_token_wins_by_a_draw_near_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    # There floats are fine; near one they are 2**-24 apart, too coarse for one token of a large vocabulary.
    monkeypatch.setattr("gpu_backend.counter_hash.uniforms", lambda *_: torch.tensor([[2.0**-40, 0.5]]))
    logits = torch.tensor([[-26.0, 0.0]])
    assert sample(logits, [SamplingParams(1.0)], [0]).tolist() == [0]
    assert sample(logits - torch.tensor([2.0, 0.0]), [SamplingParams(1.0)], [0]).tolist() == [1]


@given(
    st.lists(st.floats(-6, 6, width=16), min_size=1, max_size=12),
    st.sampled_from([0.25, 1.0, 4.0]),
    st.integers(0, 14),
    st.floats(0.01, 1.0),
)
def test_top_k_and_top_p_keep_the_sets_of_their_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(temperature, top_k, top_p)
    expected = kept_by_definition(logits, params)
    edges = [max(0.001, top_p - 1e-6), min(1.0, top_p + 1e-6)]
    assume(all(kept_by_definition(logits, replace(params, top_p=p)) == expected for p in edges))
    row = restrict(torch.tensor([logits]), [params])[0]
    assert {i for i in range(len(logits)) if row[i] > -torch.inf} == set(expected)
    probs = row.softmax(-1)
    assert all(abs(probs[i].item() - p) < 1e-6 for i, p in expected.items())


def test_ties_at_the_edge() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    by_k = restrict(logits, [SamplingParams(1.0, top_k=2)])
    assert by_k.isfinite().tolist() == [[False, True, True, True, True, False]]  # all that equal the second
    halves = restrict(torch.zeros(1, 4096), [SamplingParams(1.0, top_p=0.5)])
    assert halves[0].isfinite().tolist() == [True] * 2048 + [False] * 2048  # half make exactly 0.5


def test_a_top_p_of_one_keeps_even_the_improbable() -> None:
    logits = torch.tensor([[0.0, -60.0, -80.0]])
    assert restrict(logits, [SamplingParams(1.0, top_p=1.0)]).isfinite().all()


def test_greedy_is_the_first_argmax_alone_and_in_company() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    greedy = SamplingParams(temperature=1e-7, top_k=1, top_p=0.1)
    assert sample(logits, [greedy, greedy], [0, 1]).tolist() == [1, 0]
    warm = SamplingParams(temperature=1.0)
    assert sample(logits, [greedy, warm], [0, 1])[0] == 1
    assert restrict(logits, [greedy, greedy]).softmax(-1).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_tokens_depend_neither_on_the_batch_nor_on_the_place_in_it() -> None:
    rng = random.Random(5)
    n, vocab = 40, 300
    logits = torch.randn(n, vocab, generator=torch.Generator().manual_seed(1))
    params = [PARAMS[i % len(PARAMS)] for i in range(n)]
    together = sample(logits, params, range(n)).tolist()
    assert [sample(logits[i : i + 1], [params[i]], [i]).item() for i in range(n)] == together
    for _ in range(5):
        some = rng.sample(range(n), 17)
        tokens = sample(logits[some], [params[i] for i in some], some).tolist()
        assert tokens == [together[i] for i in some]


def test_pieces_are_an_affair_of_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(1.0, seed=i) for i in range(9)]
    whole = sample(logits, params, range(9)).tolist()
    monkeypatch.setattr("gpu_backend.sampling.PIECE", 100)
    assert sample(logits, params, range(9)).tolist() == whole


def test_seeds_positions_and_streams_have_noise_of_their_own() -> None:
    flat = torch.zeros(64, 1000)
    warm = SamplingParams(1.0, seed=0)
    base = sample(flat, [warm] * 64, range(64))
    assert torch.equal(base, sample(flat, [warm] * 64, range(64)))
    others = [
        sample(flat, [SamplingParams(1.0, seed=1)] * 64, range(64)),
        sample(flat, [warm] * 64, range(64, 128)),
        sample(flat, [warm] * 64, range(64), Stream.DRAFT),
    ]
    assert all(int((base == other).sum()) <= 2 for other in others)
    assert len(set(base.tolist())) > 55


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature must be finite and >= 0, got -0.1"),
        ({"temperature": math.nan}, "temperature must be finite and >= 0, got nan"),
        ({"top_k": -1}, r"top_k must be >= 0 \(0 keeps every token\), got -1"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\], got 1.1"),
        ({"seed": -1}, r"seed must be in 0 .. 2\*\*64 - 1, got -1"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**wrong)  # type: ignore[arg-type]  # wrong on purpose
