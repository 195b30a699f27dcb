"""How long a set of requests must take at least: floating-point work, memory traffic, step prices.

Each limit gives every request a number of seconds that adds up over requests whatever the policy, so that all
that comes after some moment must be done after it: makespan >= moment + seconds of what arrives from then on,
for every moment (`last_end`). Limits of the GPU take data-sheet peaks (specs/hardware.py), perfect overlap
and one read of the weights a step; the seats and the KV blocks say how many steps there are at least.
Assumed: attention reads each sequence's own context from memory (no kernel that reads a shared prefix once
for many), a token's own KV and activations stay on the chip, and weights do not, but for what L2 holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.experiments.bounds_prices import Prices
from simulator.latency.base import Floats
from simulator.latency.roofline import Roofline
from simulator.metrics.tables import Ints
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model, dtype_bits, weight_bits


@dataclass(frozen=True)
class Demand:
    """What requests need, in order of the earliest moment at which each can arrive (s). Lengths in tokens.

    `num_cached` are prompt tokens in blocks that an earlier row has too: the rest is what a cache that
    forgets nothing must compute once, whoever comes first. `shared_blocks` are those that any other row has.
    """

    earliest: Floats
    num_prompt: Ints
    num_output: Ints
    num_cached: Ints
    shared_blocks: Ints
    num_preemptions: Ints

    @property
    def num_tokens(self) -> Ints:
        """Tokens to compute; of the last one sampled no KV is needed."""
        return self.num_prompt - self.num_cached + self.num_output - 1

    def last_end(self, seconds: Floats) -> float:
        """Return when the last request ends at the earliest if each takes so many seconds of one resource."""
        after: Floats = np.cumsum(seconds[::-1])[::-1]
        return float((self.earliest + after).max())


class Limits(NamedTuple):
    """What bounds a step: sequences, KV blocks of `block_size` tokens, and rows, which are its tokens."""

    max_num_seqs: int
    num_blocks: int
    block_size: int
    max_rows: int


def least_steps(demand: Demand, limits: Limits) -> dict[str, Floats]:
    """Return lower bounds on the steps that sample a token, each as shares of the requests that add up.

    A step samples a token of at most `max_num_seqs` sequences. One that gets its j-th token holds the blocks
    of prompt + j - 1 tokens in that step; those that no other request shares are its own, and all own
    blocks together are at most `num_blocks`.
    """
    first, count = demand.num_prompt, demand.num_output
    blocks = -(-np.arange(int((first + count).max(initial=0)) + 1) // limits.block_size)
    own = between(blocks, first, first + count) - demand.shared_blocks * count
    return {"max_num_seqs": count / limits.max_num_seqs, "KV blocks": own / limits.num_blocks}


@dataclass(frozen=True)
class Peaks:
    """A model on a GPU at its data sheet's peaks (FLOP/s, bytes/s)."""

    hardware: Hardware
    model: Model
    kv_dtype: str = "auto"

    @property
    def flops(self) -> float:
        """Peak of the fastest number format that weights or KV have; 4-bit weights are computed as 16-bit."""
        formats = {self.model.quantization or self.model.dtype, self.kv_dtype}
        peaks = [self.hardware.flops]
        if "int8" in formats:
            peaks.append(self.hardware.flops_int8)
        if any(name.startswith("fp8") for name in formats):
            peaks.append(self.hardware.flops_fp8 or 0.0)
        return max(peaks)

    @property
    def layer_weights(self) -> int:
        """Weights that one token is multiplied with in all layers: of experts, those it is routed to."""
        dense = self.model.moe.num_dense_layers if self.model.moe else 0
        plain = replace(self.model, moe=None)
        return (self.model.num_layers - dense) * _size(self.model) + dense * _size(plain)

    def compute(self, demand: Demand) -> Floats:
        """Return seconds of floating-point work: every token once, prompts without what may be cached.

        A policy that computes tokens again, or finds less in its cache, does more.
        """
        m, roofline = self.model, Roofline.of(self.hardware, self.model)
        last = demand.num_prompt + demand.num_output - 1
        keys = np.arange(1.0, int(last.max(initial=0)) + 1)  # that the token at each position looks at
        windowed = np.minimum(keys, m.sliding_window or np.inf)
        full = m.num_layers - m.num_sliding_layers
        pairs = full * keys + m.num_sliding_layers * windowed
        flops = between(2.0 * self.layer_weights + roofline.pair_flops * pairs, demand.num_cached, last)
        n, k = m.head_gemm()
        seconds: Floats = (flops + 2.0 * n * k * demand.num_output) / self.flops
        return seconds

    def memory(self, demand: Demand, num_steps: Floats) -> Floats | None:
        """Return seconds of memory traffic: weights once a step, and the context of every decode.

        A policy may drop KV and compute it again to save a read. Let x be the seconds in which a token's KV
        is read over those in which the token is computed (one in hundreds). Every policy's T is at least
        its memory and its compute time, so at least (memory + x * compute) / (1 + x); an exchange of
        reading for computing never lowers that sum. None if L2 holds the weights: then they bind nothing.
        """
        m, bandwidth = self.model, self.hardware.hbm_bandwidth
        n, k = m.head_gemm()
        bits = self.layer_weights * weight_bits(m.quantization or m.dtype) + n * k * dtype_bits(m.dtype)
        weights = bits / 8 - self.hardware.l2
        if weights < 0:
            return None
        first, last = demand.num_prompt, demand.num_prompt + demand.num_output - 1
        layer = m.kv_bytes_per_token(self.kv_dtype) // m.num_layers
        tokens = np.arange(float(last.max(initial=0)) + 1)
        windowed = np.minimum(tokens, m.sliding_window or np.inf)
        kv = layer * ((m.num_layers - m.num_sliding_layers) * tokens + m.num_sliding_layers * windowed)
        read = (weights * num_steps + between(kv, first, last)) / bandwidth
        exchange = (layer * m.num_layers / bandwidth) / (2.0 * self.layer_weights / self.flops)
        seconds: Floats = (read + exchange * self.compute(demand)) / (1 + exchange)
        return seconds


def priced(demand: Demand, prices: Prices, limits: Limits) -> Floats:
    """Return seconds of the engine by the least prices of a latency model.

    Every token is a row of a step and every output token a sampled row; a decode reads its context; of the
    lower bounds on the number of steps, the one that says most counts. A preempted sequence
    gets one token of its recomputation in place of a decode: one read of its longest context is taken off
    for each of its preemptions, so this holds for policies that preempt no request more often.
    """
    prompt, output, cached = demand.num_prompt, demand.num_output, demand.num_cached
    tokens = demand.num_tokens
    read = (output - 1) * prompt + (output - 1) * output / 2
    read = np.maximum(read - demand.num_preemptions * (prompt + output - 1), 0.0)
    work = (prompt.astype(float) ** 2 - cached.astype(float) ** 2) / 2
    rows = tokens / limits.max_rows
    steps = max(*least_steps(demand, limits).values(), rows, key=lambda shares: float(shares.sum()))
    a_step, a_token = prices.dense_price(float(steps.sum()), float(tokens.sum()))
    seconds: Floats = a_step * steps + a_token * tokens
    seconds += prices.head_price * output + prices.kv_price * read
    seconds += prices.prefill.per_token * (prompt - cached) + prices.prefill.per_work * work
    if not prices.overlap:
        seconds += prices.host.per_step * steps + prices.host.per_seq * output
    return seconds


def between(values: Floats | Ints, lo: Ints, hi: Ints) -> Floats:
    """Return the sums of values[lo[i]:hi[i]].

    >>> between(np.array([1, 2, 4, 8]), np.array([0, 1]), np.array([2, 4])).tolist()
    [3.0, 14.0]
    """
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    sums: Floats = total[hi] - total[lo]
    return sums


def _size(model: Model) -> int:
    return sum(n * k for n, k in model.layer_gemms())
