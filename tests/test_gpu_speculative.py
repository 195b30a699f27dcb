"""Verified tokens have the law of plain sampling from the target, whatever was proposed."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from gpu_backend import speculative
from gpu_backend.sampling import SamplingParams, Stream, restrict, sample
from gpu_backend.speculative import propose_ngram, verify, verify_all

NUM_DRAWS = 50_000
VOCAB = 5
WARM = SamplingParams(temperature=1.0, seed=11)

PAIRS = {  # (p, q) by name, each row a distribution over 5 tokens
    "close": ([0.30, 0.25, 0.20, 0.15, 0.10], [0.25, 0.25, 0.25, 0.15, 0.10]),
    "far": ([0.70, 0.10, 0.10, 0.05, 0.05], [0.05, 0.05, 0.10, 0.10, 0.70]),
    "q lacks tokens of p": ([0.20, 0.20, 0.20, 0.20, 0.20], [0.50, 0.00, 0.50, 0.00, 0.00]),
    "p lacks tokens of q": ([0.60, 0.00, 0.40, 0.00, 0.00], [0.20, 0.20, 0.20, 0.20, 0.20]),
    "nothing in common": ([0.50, 0.50, 0.00, 0.00, 0.00], [0.00, 0.00, 0.30, 0.30, 0.40]),
    "equal": ([0.40, 0.30, 0.20, 0.10, 0.00], [0.40, 0.30, 0.20, 0.10, 0.00]),
}


def emitted(
    p: Tensor,
    q: Tensor,
    params: SamplingParams,
    told: Tensor | None = None,
    stream: Stream = Stream.DRAFT,
    n: int = NUM_DRAWS,
) -> list[list[int]]:
    """Return what verification against p emits, n times, for two drafts drawn from q.

    The laws depend on the place only: the n-th token after the start has the law p.roll(n). Verification is
    told that the drafts came from `told`.
    """
    starts = range(0, n * 8, 8)
    many = [params] * n
    drafts = [sample(q.roll(j).log().expand(n, -1), many, [s + j for s in starts], stream) for j in range(2)]
    proposed = torch.stack(drafts, 1).tolist()
    logits = torch.stack([p.roll(j).log() for j in range(3)]).repeat(n, 1)
    told = q if told is None else told
    draft_probs = torch.stack([told, told.roll(1)]).repeat(n, 1)
    return verify_all(logits, proposed, draft_probs, many, starts)


def p_value(tokens: list[int], law: Tensor) -> float:
    """Test counts of tokens against a law; 0 if a token without probability was seen."""
    counts = np.bincount(tokens, minlength=VOCAB)
    some = law.numpy() > 0
    if counts[~some].any():
        return 0.0
    expected = law.double().numpy()[some]
    if len(expected) == 1:
        return 1.0
    return float(stats.chisquare(counts[some], expected / expected.sum() * counts.sum()).pvalue)


def laws(name: str) -> tuple[Tensor, Tensor]:
    p, q = PAIRS[name]
    return torch.tensor(p), torch.tensor(q)


def smallest_p_value(tokens: list[list[int]], p: Tensor) -> float:
    """Test the first emitted token and, where there are enough, the second and the third."""
    at = [[row[n] for row in tokens if len(row) > n] for n in range(3)]
    return min(p_value(seen, p.roll(n)) for n, seen in enumerate(at) if len(seen) > 500)


@pytest.mark.parametrize("n", [NUM_DRAWS // 4, pytest.param(NUM_DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PAIRS)
def test_emitted_tokens_have_the_law_of_the_target_and_acceptance_the_rate_of_theory(
    name: str, n: int
) -> None:
    p, q = laws(name)
    tokens = emitted(p, q, WARM, n=n)
    assert smallest_p_value(tokens, p) > 0.01
    rate = torch.minimum(p, q).sum().item()  # Leviathan et al., theorem 3.5
    error = 4 * (rate * (1 - rate) / n) ** 0.5 + 1e-7
    assert abs(np.mean([len(row) > 1 for row in tokens]) - rate) <= error
    assert abs(np.mean([len(row) > 2 for row in tokens]) - rate**2) <= 2 * error


@pytest.mark.parametrize("wrong", ["accepts with p", "accepts always", "is told a wrong q", "shares noise"])
def test_the_chi_square_test_sees_a_wrong_rule(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = laws("far")
    accepted = speculative._accepted
    if wrong == "accepts with p":
        monkeypatch.setattr(
            speculative, "_accepted", lambda t, q, rows: accepted(t, torch.ones_like(q), rows)
        )
    if wrong == "accepts always":
        monkeypatch.setattr(speculative, "_accepted", lambda t, q, rows: accepted(t, q * 0, rows))
    told = torch.full((VOCAB,), 0.2) if wrong == "is told a wrong q" else None
    stream = Stream.TARGET if wrong == "shares noise" else Stream.DRAFT
    assert smallest_p_value(emitted(p, q, WARM, told, stream, 10_000), p) < 1e-6


def test_temperature_top_k_and_top_p_shape_the_target_before_verification() -> None:
    p = torch.tensor([0.05, 0.35, 0.30, 0.20, 0.10])
    params = SamplingParams(temperature=1.5, top_k=4, top_p=0.85, seed=4)
    law = restrict(p.log()[None], [params]).softmax(-1)[0]
    assert (law > 0).sum() == 3
    tokens = emitted(p, torch.full((VOCAB,), 0.2), params)
    assert p_value([row[0] for row in tokens], law) > 0.01


@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (0.8, 0.8), (0.0, 0.8), (0.8, 0.0)])
@pytest.mark.parametrize("is_drawn", [False, True])
def test_a_batch_of_ragged_drafts_gives_each_sequence_what_it_gets_alone(
    temperatures: tuple[float, float], is_drawn: bool
) -> None:
    rng = random.Random(7)
    generator = torch.Generator().manual_seed(7)
    drafts = [[rng.randrange(VOCAB) for _ in range(k)] for k in (0, 3, 1, 0, 4, 2, 9, 9)]
    rows, total = sum(len(d) + 1 for d in drafts), sum(len(d) for d in drafts)
    logits = torch.randn(rows, VOCAB, generator=generator)
    probs = torch.randn(total, VOCAB, generator=generator).softmax(-1) if is_drawn else None
    params = [SamplingParams(temperatures[i % 2], seed=i) for i in range(len(drafts))]
    positions = [rng.randrange(100) for _ in drafts]
    together = verify_all(logits, drafts, probs, params, positions)
    row = at = 0
    for i, proposed in enumerate(drafts):
        k = len(proposed)
        q = None if probs is None else probs[at : at + k]
        alone = verify(logits[row : row + k + 1], proposed, q, params[i], positions[i])
        assert together[i] == alone
        assert alone[:-1] == proposed[: len(alone) - 1]
        row, at = row + k + 1, at + k


def test_without_drafts_verification_is_sampling() -> None:
    logits = torch.randn(20, VOCAB, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(i % 2 * 0.9, seed=i) for i in range(20)]
    plain = [[token] for token in sample(logits, params, range(20)).tolist()]
    none: list[list[int]] = [[]] * 20
    assert verify_all(logits, none, None, params, range(20)) == plain
    assert verify_all(logits, none, torch.empty(0, VOCAB), params, range(20)) == plain


def test_a_draft_that_its_distribution_cannot_have_made_gives_way_to_the_target() -> None:
    sure = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]])
    logits = torch.cat([sure, sure]).log()
    assert verify(logits, [3], sure, WARM, 0) == [1]  # max(p - q, 0) is 0 everywhere


def next_logits(tokens: list[int]) -> Tensor:
    """Stand in for a model: logits that depend on the last three tokens."""
    seed = sum((t + 1) * 7**i for i, t in enumerate(tokens[-3:]))
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def decode(
    params: SamplingParams, drafts_of: Callable[[list[int]], tuple[list[int], Tensor | None]]
) -> list[int]:
    """Decode 60 tokens after a prompt, speculatively."""
    tokens = [0, 1, 2]
    while len(tokens) < 63:
        drafts, q = drafts_of(tokens)
        logits = torch.stack([next_logits(tokens + drafts[:j]) for j in range(len(drafts) + 1)])
        tokens += verify(logits, drafts, q, params, len(tokens))
    return tokens[:63]


def nothing(tokens: list[int]) -> tuple[list[int], None]:
    return [], None


def by_ngram(tokens: list[int]) -> tuple[list[int], None]:
    return propose_ngram(tokens, max_n=3, min_n=1, k=4), None


def by_model(tokens: list[int]) -> tuple[list[int], Tensor]:
    """Draft three tokens by a model that sees but one token back."""
    drafts: list[int] = []
    qs = []
    for j in range(3):
        seen = (tokens + drafts)[-1:]
        drafts += sample(next_logits(seen)[None], [WARM], [len(tokens) + j], Stream.DRAFT).tolist()
        qs.append(next_logits(seen).softmax(-1))
    return drafts, torch.stack(qs)


@pytest.mark.parametrize("drafts_of", [by_ngram, by_model])
def test_greedy_speculation_gives_the_tokens_of_greedy_decoding(
    drafts_of: Callable[[list[int]], tuple[list[int], Tensor | None]],
) -> None:
    assert decode(SamplingParams(), drafts_of) == decode(SamplingParams(), nothing)


def test_speculation_by_ngrams_gives_the_tokens_of_plain_sampling() -> None:
    for seed in range(5):
        params = SamplingParams(0.9, top_p=0.95, seed=seed)
        assert decode(params, by_ngram) == decode(params, nothing)


@pytest.mark.parametrize("x", [0, 3])
def test_a_draft_without_a_distribution_is_accepted_with_its_probability(x: int) -> None:
    p = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0])
    logits = torch.stack([p.log(), p.roll(1).log()]).repeat(NUM_DRAWS, 1)
    tokens = verify_all(logits, [[x]] * NUM_DRAWS, None, [WARM] * NUM_DRAWS, range(0, 2 * NUM_DRAWS, 2))
    assert p_value([row[0] for row in tokens], p) > 0.01
    assert p_value([row[1] for row in tokens if len(row) == 2], p.roll(1)) > 0.01
    rest = p.clone()
    rest[x] = 0
    assert p_value([row[0] for row in tokens if len(row) == 1], rest / rest.sum()) > 0.01


@pytest.mark.parametrize(
    ("tokens", "max_n", "min_n", "k", "expected"),
    [
        ([1, 2, 3, 4, 2, 3], 3, 2, 4, [4, 2, 3]),  # two match, and three tokens follow
        ([1, 2, 3, 4, 2, 3], 3, 2, 1, [4]),
        ([1, 2, 3, 4, 2, 3], 3, 3, 4, []),  # no three match
        ([7, 1, 7, 2, 7], 2, 1, 2, [1, 7]),  # the first of two occurrences
        ([5, 9, 1, 7, 9, 2, 5, 9], 2, 1, 2, [1, 7]),  # a longer match before an earlier one
        ([9, 1, 5, 9, 2, 5, 9], 2, 1, 1, [2]),
        ([4, 4, 4], 2, 1, 3, [4]),  # an occurrence that overlaps the end
        ([4, 5, 6], 2, 1, 3, []),
        ([4], 2, 1, 3, []),
        ([], 2, 1, 3, []),
        ([4, 4], 1, 1, 0, []),
    ],
)
def test_proposals_by_hand(tokens: list[int], max_n: int, min_n: int, k: int, expected: list[int]) -> None:
    assert propose_ngram(tokens, max_n, min_n, k) == expected


def propose_slowly(tokens: list[int], max_n: int, min_n: int, k: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tokens[start + n : start + n + k]
    return []


@given(st.lists(st.integers(0, 2), max_size=25), st.integers(1, 5), st.integers(0, 4), st.integers(0, 6))
def test_proposals_are_those_of_a_search_by_definition(
    tokens: list[int], min_n: int, more: int, k: int
) -> None:
    expected = propose_slowly(tokens, min_n + more, min_n, k)
    assert propose_ngram(tokens, min_n + more, min_n, k) == expected
    assert propose_ngram(np.array(tokens, np.int64), min_n + more, min_n, k) == expected


def test_n_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_n must be in 1 \.\. max_n, got min_n 3 and max_n 2"):
        propose_ngram([1], max_n=2, min_n=3, k=1)
