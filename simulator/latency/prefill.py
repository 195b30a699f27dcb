"""Prefill attention of a step: a line in its sums, times what measurements left of it.

    line = constant + per_seq * chunks + per_token * tokens + per_work * pairs
    attention = factor(mean tokens a chunk, chunks) * line

The line alone errs by 4-6 % on A100, since kernels fill a GPU in waves: 256 tokens of one prompt take 1.2
times what it says, of sixteen prompts 1.05 times. A step knows how many chunks and tokens it has, so the
factor is read at their mean length: in logs along the chunks, a line between two measured lengths, held at
the ends of what was measured. A chunk behind a prefix is read by its own tokens; its prefix counts in the
pairs. As it is laid out, the factor never makes longer chunks cheaper than shorter ones, whatever a file
says, and never takes query-key pairs below the peak FLOP/s. Left out: how unlike the chunks of a step are.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from simulator.latency.base import Floats
from simulator.latency.roofline import PrefillTerms


class PrefillFactor(NamedTuple):
    """Measured over line: `factor[i, j]` for `chunks[j]` chunks of `tokens[i]` tokens each. Both rise."""

    tokens: Floats
    chunks: Floats
    factor: Floats

    def rows(self, terms: PrefillTerms, least: float) -> Floats:
        """Return the factor at each of `tokens` for 0, 1, .. chunks[-1] chunks, raised where it must be.

        Between two lengths a < b the factor r is a line, and its product with the line L(s) of `terms` is a
        cubic whose slope is concave where r falls: it rises everywhere if it rises at a and at b, and
        behind any prefix too if r * s rises. Each of the three asks r(b) not to fall too far below r(a).
        """
        n = np.maximum(np.arange(int(self.chunks[-1]) + 1), 1)
        at, logs = np.log(self.chunks), np.log(self.factor)
        rows: Floats = np.exp([np.interp(np.log(n), at, each) for each in logs]).T
        rows = np.maximum(rows, least)
        rise = [_elasticity(terms, n, s) for s in self.tokens]
        for i in range(1, len(self.tokens)):
            a, b = self.tokens[i - 1 : i + 1]
            kept = np.maximum(1 - rise[i - 1] * (b / a - 1), 1 / (1 + np.minimum(rise[i], 1.0) * (1 - a / b)))
            rows[:, i] = np.maximum(rows[:, i], rows[:, i - 1] * kept)
        return rows


def _elasticity(terms: PrefillTerms, chunks: Floats, tokens: float) -> Floats:
    """Return by how many per cent the line rises with 1 % longer chunks, without prefixes."""
    linear, square = terms.per_token * chunks * tokens, terms.per_work * chunks * tokens**2
    total = terms.constant + terms.per_seq * chunks + linear + square / 2
    return (linear + square) / np.maximum(total, 1e-300)


class PrefillPrice:
    """The terms and the factor laid out so that a step costs a look-up; `factor` None is the line alone."""

    __slots__ = ("_knots", "_last", "_least", "_rows", "_terms")

    def __init__(self, terms: PrefillTerms, factor: PrefillFactor | None, peak: float) -> None:
        """Lay them out; `peak` is the seconds of a query-key pair at the peak, in all that `terms` cover."""
        self._terms: tuple[float, ...] = tuple(terms)
        self._knots: list[float] = []
        self._rows: list[list[tuple[float, float]]] = []  # by chunks: the factor's lines a + b * mean
        self._last, self._least = -1, 1.0
        if factor is None:
            return
        rows = factor.rows(terms, min(1.0, peak / max(terms.per_work, 1e-300)))
        slopes = np.diff(rows, axis=1, append=rows[:, -1:]) / np.diff(factor.tokens, append=np.inf)
        starts = rows - slopes * factor.tokens
        for first, start, slope in zip(rows[:, 0].tolist(), starts.tolist(), slopes.tolist(), strict=True):
            self._rows.append([(first, 0.0), *zip(start, slope, strict=True)])
        self._knots = factor.tokens.tolist()
        self._last, self._least = len(rows) - 1, float(rows.min())

    def seconds(self, chunks: int, tokens: int, work: float, longest: int) -> float:
        """Return the attention of all layers for so many chunks of so many tokens together, all prefilled."""
        constant, per_seq, per_token, per_work, per_kv = self._terms
        attention = constant + per_seq * chunks + per_token * tokens + per_work * work
        if self._last > 0:
            mean = tokens / (chunks or 1)
            lines = self._rows[chunks if chunks < self._last else self._last]
            start, slope = lines[bisect_right(self._knots, mean)]
            attention *= start + slope * mean
        floor = per_kv * longest
        return attention if attention > floor else floor

    def least(self) -> PrefillTerms:
        """Return terms that no step is priced below."""
        constant, per_seq, per_token, per_work, per_kv = self._terms
        r = self._least
        return PrefillTerms(r * constant, r * per_seq, r * per_token, r * per_work, per_kv)
