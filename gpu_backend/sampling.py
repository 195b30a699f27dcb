"""From logits to tokens: greedy, or temperature, then top-k, then top-p, as in vLLM V1.

A token is drawn by the Gumbel trick, argmax of logit + Gumbel noise (Maddison et al., NeurIPS 2014). The
noise of a row depends on its request's seed, the position of the token in its sequence and what the draw is
for, so a request gets the same tokens in any batch and after any preemption. On CUDA (untested on hardware)
the bits are those of the CPU; their logarithms may differ in the last place.
Left out: penalties, min-p, logit bias, log probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from gpu_backend import counter_hash

ALMOST_GREEDY = 1e-5
"""Temperatures below are greedy, as in vLLM: logits divided by them would overflow."""

PIECE = 1 << 22
"""Logits that get their noise at once: the int64 bits of 256 rows of 128k would fill 256 MiB, twice."""


class Stream(IntEnum):
    """What a random number is for: draws for one position that must not depend on each other."""

    TARGET = 0  # the token that is emitted
    DRAFT = 1  # the token that a draft model proposes
    ACCEPT = 2  # whether a proposal is accepted


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Temperature 0 is greedy; top_k 0 and top_p 1 keep every token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 keeps every token), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be in 0 .. 2**64 - 1, got {self.seed}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < ALMOST_GREEDY


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    stream: Stream = Stream.TARGET,
) -> Tensor:
    """Choose one token for each row of logits, (rows, vocab) float32; (rows,) int64 on the same device.

    `positions` are those that the tokens will have in their sequences. A draft model samples from
    `Stream.DRAFT`: its proposals must not know the noise that decides about them.
    """
    if not params:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    if all(each.is_greedy for each in params):
        return logits.argmax(-1)
    return draw(restrict(logits, params), keys_of(params, positions, stream, logits.device))


def restrict(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return new logits whose softmax is the distribution that is sampled from, -inf where it is 0.

    A greedy row keeps its argmax alone. Top-k keeps the k highest logits and what equals the lowest of them;
    top-p then keeps the smallest set of the most probable tokens whose probability is p or more, of equal
    tokens the lowest ids. Top-p sorts the vocabulary, which is dear.
    """
    divisor = [1.0 if each.is_greedy else each.temperature for each in params]
    kept = logits / logits.new_tensor(divisor)[:, None]
    vocab = logits.shape[1]
    top_k = [i for i, each in enumerate(params) if not each.is_greedy and 0 < each.top_k < vocab]
    if top_k:
        kept[top_k] = _top_k(kept[top_k], [params[i].top_k for i in top_k])
    top_p = [i for i, each in enumerate(params) if not each.is_greedy and each.top_p < 1.0]
    if top_p:
        kept[top_p] = _top_p(kept[top_p], [params[i].top_p for i in top_p])
    greedy = [i for i, each in enumerate(params) if each.is_greedy]
    if greedy:
        best = logits[greedy].argmax(-1, keepdim=True)
        kept[greedy] = torch.full_like(kept[greedy], -torch.inf).scatter_(1, best, 0.0)
    return kept


def draw(logits: Tensor, keys: Tensor) -> Tensor:
    """Draw one token from the softmax of each row, with the noise of its key; (rows,) int64."""
    vocab = logits.shape[1]
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    rows = max(1, PIECE // vocab)
    for first in range(0, len(logits), rows):
        piece = slice(first, first + rows)
        # -log(1 - u) is exponential and exact to a float where it is small, which is where tokens win.
        noise = counter_hash.uniforms(keys[piece], vocab).neg_().log1p_().neg_().log_()
        tokens[piece] = (logits[piece] - noise).argmax(-1)
    return tokens


def keys_of(
    params: Sequence[SamplingParams], positions: Sequence[int], stream: Stream, device: torch.device
) -> Tensor:
    """Return the key of each row's random numbers, (rows,) int64."""
    seeds = np.array([each.seed for each in params], np.uint64)
    keys = counter_hash.fold(int(stream), seeds, np.array(positions, np.uint64))
    return counter_hash.to_device(keys, device)


def _top_k(logits: Tensor, ks: Sequence[int]) -> Tensor:
    index = torch.tensor(ks, device=logits.device)[:, None] - 1
    lowest = logits.topk(max(ks)).values.gather(1, index)
    return logits.masked_fill(logits < lowest, -torch.inf)


def _top_p(logits: Tensor, ps: Sequence[float]) -> Tensor:
    ordered, tokens = logits.sort(descending=True, stable=True)
    mass = ordered.softmax(-1, dtype=torch.float64).cumsum(-1)
    drop = torch.zeros_like(ordered, dtype=torch.bool)
    drop[:, 1:] = mass[:, :-1] >= mass.new_tensor(ps)[:, None]
    return logits.masked_fill(drop.scatter(1, tokens, drop), -torch.inf)
