"""What steps cost at least under a latency model, whatever is batched with whatever.

A latency model prices one step; a bound must hold for every way to cut work into steps. So each term becomes
a price that adds up over steps and never falls as a step grows: where a table falls (noise of a measurement),
the lowest price of any larger step takes its place. Cutting a prompt may be cheaper than computing it whole,
since tables have edges, so the cheapest cut counts. One sequence may decode more cheaply in company, since a
kernel may read the same sum of contexts faster as several, so the cheapest company counts.
Left out: what only mixed steps cost; it is priced as a sum, and a sum of least prices is below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.latency.base import Floats, LatencyModel
from simulator.latency.grid import DecodeGrid
from simulator.latency.linear import LinearModel
from simulator.latency.profile import Host, Profile
from simulator.latency.roofline import PrefillTerms
from simulator.metrics.tables import Ints

TABLE = 2**17
"""Rows of a step up to which dense prices are laid out, or up to the longest request."""
EXACT_CUTS = 8192
"""Prompts up to so many tokens are cut in every possible way; of longer ones the best price per token is
taken for all tokens, some 2 % below the best cut."""


@dataclass(frozen=True)
class Prices:
    """Least seconds: `dense[n]` of n rows in a step, `head[r]` of r sampled rows; none falls with n or r.

    `beyond` is the price of a row in steps of more rows than `dense` has, infinite if none can be. With
    `overlap` a step takes the longer of GPU and host, else their sum.
    """

    dense: Floats
    beyond: float
    head: Floats
    decode: DecodeGrid
    prefill: PrefillTerms
    host: Host
    overlap: bool

    def prompts(self, num_cached: Ints, num_prompt: Ints) -> Floats:
        """Return the least seconds of the steps in which prompts get from `num_cached` tokens to their first
        output token; at least one token of each is computed.

        Let steps compute n1, n2, .. tokens of it. Attention work s * (kv + s / 2) is the same sum for every
        cut, and the constants and the longest context count once at least; dense and host are at least those
        of the cheapest cut.
        """
        n, terms = num_prompt - num_cached, self.prefill
        work = n * (num_cached + n / 2)
        attention = terms.constant + terms.per_seq + terms.per_token * n + terms.per_work * work
        attention = np.maximum(attention, terms.per_kv * num_prompt)
        host = self.host.per_step + self.host.per_seq
        longest = int(n.max(initial=1))
        dense = cheapest_cuts(self.dense[: longest + 1] + (0.0 if self.overlap else host))
        seconds: Floats = dense[n] + attention + self.head[1]
        return np.maximum(seconds, host) if self.overlap else seconds

    def decodes(self, longest: int, max_num_seqs: int) -> Floats:
        """Return the least seconds in which a sequence gets its next token by reading so many tokens.

        Index 0..longest. A token is decoded in one step, in the cheapest company of sequences whose contexts
        are taken to be empty; or the sequence was preempted before, and then waits for a step at least.
        """
        kv = np.arange(longest + 1, dtype=np.float64)
        alone = self.attention(1, kv)
        best = self._step(1, alone)
        gain = float((alone - self.kv_price * kv).max())
        for batch in range(2, max_num_seqs + 1):
            dearer = self.dense[batch] + self.head[batch] - self.dense[1] - self.head[1]
            if dearer >= gain:
                break
            best = np.minimum(best, self._step(batch, self.attention(batch, kv)))
        least: Floats = np.minimum(best, 2 * self.least_step)
        return least

    @property
    def least_step(self) -> float:
        """Seconds of the cheapest step that computes anything."""
        host = self.host.per_step + self.host.per_seq
        gpu = float(self.dense[1])
        return max(gpu, host) if self.overlap else gpu + host

    @property
    def kv_price(self) -> float:
        """Least seconds of decode attention for each token of context read, at any batch and context."""
        grid = self.decode
        ratio = grid.seconds / (grid.batch[:, None] * grid.kv[None, :])
        rise = np.diff(grid.seconds, axis=1) / (grid.batch[:, None] * np.diff(grid.kv)[None, :])
        return float(min(ratio.min(), rise[:, -1].min()))

    @property
    def head_price(self) -> float:
        """Least seconds of the head for each sampled row."""
        return float((self.head[1:] / np.arange(1, len(self.head))).min())

    def dense_price(self, num_steps: float, num_tokens: float) -> tuple[float, float]:
        """Return seconds a step and seconds a token that are together below `dense` at every size.

        Of the lines tried, the one that says most about so many steps with so many tokens in all.
        """
        n = np.arange(1, len(self.dense))
        dense = self.dense[1:]
        sizes = 2 ** np.arange(int(np.log2(len(dense))))  # 1, 2, 4, .., each with its double in the table
        tried = [(dense[2 * k - 1] - dense[k - 1]) / k for k in sizes.tolist()]
        lines = [(0.0, min(float((dense / n).min()), self.beyond))]
        if self.beyond < np.inf:
            return lines[0]
        lines += [(max(0.0, float((dense - slope * n).min())), float(slope)) for slope in tried]
        lines = [line for line in lines if (line[0] + line[1] * n <= dense * (1 + 1e-12)).all()]
        return max(lines, key=lambda line: line[0] * num_steps + line[1] * num_tokens)

    def attention(self, batch: int, kv: Floats) -> Floats:
        """Return the seconds of decode attention by the sum of contexts."""
        knots, seconds, slopes = (part[0] for part in self.decode.rows([batch]))
        j = knots.searchsorted(kv, side="right") - 1
        found: Floats = seconds[j] + slopes[j] * (kv - knots[j])
        return found

    def _step(self, batch: int, attention: Floats) -> Floats:
        gpu: Floats = self.dense[batch] + self.head[batch] + attention
        host = self.host.per_step + self.host.per_seq * batch
        return np.maximum(gpu, host) if self.overlap else gpu + host


def least_prices(latency: LatencyModel, max_tokens: int, max_num_seqs: int, longest: int) -> Prices | None:
    """Return a model's least prices for steps of at most so many rows and sequences and requests of `longest`
    tokens; None if the model is neither a profile nor a line."""
    rows = max(max_num_seqs, 1)
    tokens = max(min(max_tokens, TABLE), rows, longest, 1)
    if isinstance(latency, LinearModel) and latency.constant >= 0:
        per_kv, host = latency.per_kv_token, Host(latency.host, latency.per_seq)
        dense = latency.constant + latency.per_token * np.arange(tokens + 1.0)
        sizes = np.array([1.0, 2.0])
        grid = DecodeGrid(sizes, sizes, per_kv * sizes[:, None] * sizes[None, :])
        work = PrefillTerms(0.0, 0.0, 0.0, latency.per_prefill_work, 0.0)
        beyond = latency.per_token if max_tokens > tokens else np.inf
        return Prices(dense, beyond, np.zeros(rows + 1), grid, work, host, latency.overlap)
    if not isinstance(latency, Profile):
        return None
    dense, formula = latency.dense, latency.roofline.dense
    beyond = np.inf
    if max_tokens > tokens:  # a formula's price a row falls with the rows
        beyond = float(dense[-1] / formula(len(dense) - 1) * formula(max_tokens) / max_tokens)
    grid = latency.decode
    return Prices(
        _never_falling(_as_long_as(dense, formula, tokens)),
        beyond,
        _never_falling(_as_long_as(latency.head, latency.roofline.head, rows)),
        grid._replace(seconds=_never_falling(grid.seconds)),
        latency.least_prefill,
        latency.host,
        latency.overlap,
    )


def cheapest_cuts(seconds: Floats) -> Floats:
    """Return the least total of `seconds[n1] + seconds[n2] + ..` for each n1 + n2 + ..; index 0 is nothing.

    >>> cheapest_cuts(np.array([0.0, 3.0, 4.0, 9.0, 9.5])).tolist()
    [0.0, 3.0, 4.0, 7.0, 8.0]
    """
    best = seconds.copy()
    best[0] = 0.0
    for n in range(2, min(len(best), EXACT_CUTS + 1)):
        half = n // 2
        best[n] = min(best[n], (best[1 : half + 1] + best[n - 1 : n - half - 1 : -1]).min())
    if len(best) > EXACT_CUTS + 1:
        sizes = np.arange(1, len(best))
        per_token = np.minimum.accumulate(best[1:] / sizes)
        best[EXACT_CUTS + 1 :] = (per_token * sizes)[EXACT_CUTS:]
    return best


def _never_falling(values: Floats) -> Floats:
    """Replace each value by the lowest from it on, along the last axis."""
    lowest: Floats = np.minimum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    return lowest


def _as_long_as(table: Floats, formula: Callable[[Ints], Floats], upto: int) -> Floats:
    """Return entries 0..upto of a table that goes on in proportion to a formula, as `Profile` has it."""
    last = len(table) - 1
    if upto <= last:
        return table[: upto + 1]
    beyond = formula(np.arange(last, upto + 1))
    return np.concatenate([table, table[last] * (beyond[1:] / beyond[0])])
