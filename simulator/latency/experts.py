"""How a batch's tokens fall on the experts of a layer: which are read, which GPU has most to do.

**Popularity.** The expert of rank i is chosen by a share of tokens proportional to i^-skew, at most 1, so
that the shares add up to the experts a token takes; skew 0 is even. Tokens choose independently of each
other. **Reading.** An expert that nobody chose is not read: of m tokens, 1 - (1 - share)^m are expected.
**Spread.** With `ranks` > 1 whole experts lie on each GPU of a group, as many on each, popular ones wherever
they happen to be: every layer has its own, so the mean over `PLACEMENTS`, drawn once with a fixed seed, is
taken. The layer ends when the GPU with most tokens does. The expected maximum is that of normal numbers with
the GPUs' means and variances, independent but for their fixed sum, whose correlation of -1/(n-1) widens them
by sqrt(n/(n-1)). Choosing without replacement narrows them by (E-k)/(E-1), as in the hypergeometric law.
Against drawn tokens that is within 5 % from 16 tokens a batch on, and within 20 % below. Left out: tokens of
one text that choose alike, experts moved or copied to balance the load (vLLM's EPLB).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.latency.base import Floats
from simulator.specs.models import MoE

PLACEMENTS = 64
SEED = 0
_DEVIATES = np.linspace(-6, 6, 97)  # of the maximum's distribution, in standard deviations
_KNOTS = np.unique(np.round(np.geomspace(1, 2**20, 61)))  # tokens at which spread experts are computed


class Load(NamedTuple):
    """What the busiest GPU of a layer has: (token, expert) pairs to compute and experts to read."""

    pairs: Floats
    experts: Floats


def shares(num_experts: int, experts_per_token: int, skew: float) -> Floats:
    """Return by which share of tokens each expert is chosen, the most popular first.

    >>> shares(4, 2, 0.0).tolist()
    [0.5, 0.5, 0.5, 0.5]
    >>> shares(4, 2, 9.0).round(2).tolist()
    [1.0, 0.97, 0.03, 0.0]
    """
    weights = np.arange(1, num_experts + 1, dtype=np.float64) ** -skew
    found = np.zeros(num_experts)
    for sure in range(experts_per_token + 1):  # so many experts are chosen by every token
        rest = (experts_per_token - sure) * weights[sure:] / weights[sure:].sum()
        found = np.concatenate([np.ones(sure), rest])
        if not len(rest) or rest[0] <= 1 + 1e-12:
            break
    return found


def expert_load(moe: MoE, tokens: ArrayLike) -> Load:
    """Return what the busiest GPU has to do for each number of tokens; of a lone GPU, all."""
    m = np.asarray(tokens, dtype=np.float64)
    chosen = shares(moe.num_experts, moe.experts_per_token, moe.skew)
    if moe.ranks == 1:
        unread = (1 - chosen[:, None]) ** m.reshape(-1)
        return Load(m * moe.experts_per_token, (1 - unread).sum(axis=0).reshape(m.shape))
    pairs, experts = _busiest(moe)
    at = np.log(np.maximum(m, 1))
    knots = np.log(_KNOTS)
    return Load(m * np.interp(at, knots, pairs / _KNOTS), np.where(m > 0, np.interp(at, knots, experts), 0.0))


@lru_cache(maxsize=64)
def _busiest(moe: MoE) -> tuple[Floats, Floats]:
    """Return the expected most pairs and most experts read of a GPU, at the knots."""
    chosen = shares(moe.num_experts, moe.experts_per_token, moe.skew)
    each, tokens = moe.num_experts // moe.ranks, _KNOTS[:, None]
    narrow = (moe.num_experts - moe.experts_per_token) / max(moe.num_experts - 1, 1)
    most_pairs, most_experts = np.zeros(len(_KNOTS)), np.zeros(len(_KNOTS))
    rng = np.random.default_rng(SEED)
    placements = [rng.permutation(moe.num_experts) for _ in range(PLACEMENTS if moe.skew else 1)]
    for placement in placements:
        on = chosen[placement].reshape(moe.ranks, each)
        share = on.sum(axis=1) / moe.experts_per_token  # of all pairs, by GPU
        mean = tokens * moe.experts_per_token * share
        pairs = _expected_maximum(mean, mean * (1 - share) * narrow)
        read = 1 - (1 - on[:, None, :]) ** tokens  # GPU, tokens, expert
        experts = _expected_maximum(read.sum(axis=2).T, (read * (1 - read)).sum(axis=2).T)
        least = np.maximum(mean.max(axis=1), np.ceil(_KNOTS * moe.experts_per_token / moe.ranks))
        pairs = np.clip(pairs, least, _KNOTS * min(moe.experts_per_token, each))
        most_pairs += pairs / len(placements)
        most_experts += np.minimum(np.clip(experts, 1.0, each), pairs) / len(placements)
    return most_pairs, most_experts


def _expected_maximum(mean: Floats, variance: Floats) -> Floats:
    """Return the expected maximum of normal numbers with a fixed sum; rows are cases, columns numbers."""
    from scipy.special import ndtr

    n = mean.shape[1]
    spread = np.sqrt(np.maximum(variance, 1e-12) * n / (n - 1))
    low, high = (mean - 6 * spread).min(axis=1), (mean + 6 * spread).max(axis=1)
    at = low[:, None] + (high - low)[:, None] * (_DEVIATES + 6) / 12
    below = ndtr((at[:, :, None] - mean[:, None, :]) / spread[:, None, :]).prod(axis=2)
    step = np.diff(at, axis=1)
    found: Floats = high - (step * (below[:, 1:] + below[:, :-1]) / 2).sum(axis=1)
    return found
