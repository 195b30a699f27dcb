"""Fit prefill attention: the line in its sums, and the factor that is left at each measured length and batch.

The line is fitted to all rows together. What it leaves is kept for each head configuration by itself, since
waves of kernels depend on the heads; a model between two of them gets their mean, in logs. A length and
batch that nobody measured is interpolated between its neighbours in log tokens and in log batch, the mean of
the two where both sides are known; beyond what memory allowed, the last known value holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.fit_attention import PrefillLine, fit_prefill
from calibration.timings import Timing
from simulator.latency.base import Floats
from simulator.latency.prefill import PrefillFactor, PrefillPrice
from simulator.latency.roofline import PrefillTerms, Roofline

Heads = tuple[int, int]  # query heads, KV heads


class PrefillFit(NamedTuple):
    """Prefill attention of one layer; `factors` are logs on (tokens, chunks), by head configuration."""

    line: PrefillLine
    tokens: Floats
    chunks: Floats
    factors: dict[Heads, Floats]
    roofline: Roofline

    def seconds(self, rows: Sequence[Timing]) -> Floats:
        """Predict rows, each at its own heads, as the simulator would."""
        prices = {heads: self._price(heads) for heads in {(t.heads, t.kv_heads) for t in rows}}
        return np.array(
            [
                prices[t.heads, t.kv_heads].seconds(
                    t.batch, t.batch * t.tokens, t.batch * t.tokens * (t.kv + t.tokens / 2), 0
                )
                for t in rows
            ]
        )

    def factor(self, tables: Mapping[Heads, float]) -> PrefillFactor | None:
        """Return the factor of a model that lies between head configurations; None where rows are too few."""
        logs = sum(weight * self.factors[heads] for heads, weight in tables.items() if heads in self.factors)
        return None if isinstance(logs, int) else PrefillFactor(self.tokens, self.chunks, np.exp(logs))

    def _price(self, heads: Heads) -> PrefillPrice:
        constant, *sums = self.line
        scale = heads[0] / self.roofline.model.num_heads
        per_seq, per_token, per_work = (scale * term for term in sums)
        peak = scale * self.roofline.pair_flops / self.roofline.flops
        terms = PrefillTerms(constant, per_seq, per_token, per_work, 0.0)
        return PrefillPrice(terms, self.factor({heads: 1.0}), peak)


def fit_prefill_residual(rows: Sequence[Timing], roofline: Roofline) -> PrefillFit:
    """Fit the line, and lay what is left of each row on the grid of the lengths and batches of all rows."""
    line = fit_prefill(rows, roofline)
    bare = PrefillFit(line, np.zeros(0), np.zeros(0), {}, roofline)
    axes = [np.array(sorted({getattr(t, f) for t in rows}), dtype=np.float64) for f in ("tokens", "batch")]
    if min(len(axis) for axis in axes) < 2:  # no grid
        return bare
    left = np.log(np.array([t.seconds for t in rows]) / bare.seconds(rows))
    factors = {}
    for heads in sorted({(t.heads, t.kv_heads) for t in rows}):
        grid = np.full((len(axes[0]), len(axes[1])), np.nan)
        for t, log in zip(rows, left, strict=True):
            if (t.heads, t.kv_heads) == heads:
                grid[np.searchsorted(axes[0], t.tokens), np.searchsorted(axes[1], t.batch)] = log
        factors[heads] = _filled(grid, np.log(axes[0]), np.log(axes[1]))
    return PrefillFit(line, axes[0], axes[1], factors, roofline)


def _filled(grid: Floats, rows: Floats, columns: Floats) -> Floats:
    """Complete a table from neighbours along both axes; what lies between measured cells goes before ends."""
    down, between_down = _along(grid, rows)
    across, between_across = (part.T for part in _along(grid.T, columns))
    guesses = np.stack([down, across])
    inner = np.stack([between_down, between_across])
    trusted = np.where(inner.any(axis=0), inner, np.isfinite(guesses))
    weight = trusted.sum(axis=0)
    mean = np.where(trusted, guesses, 0.0).sum(axis=0) / np.maximum(weight, 1)
    return np.where(np.isfinite(grid), grid, mean)


def _along(grid: Floats, at: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Interpolate each column, the ends held; also say which cells lie between measured ones."""
    found, between = np.full_like(grid, np.nan), np.zeros(grid.shape, dtype=np.bool_)
    for j, column in enumerate(grid.T):
        known = np.flatnonzero(np.isfinite(column))
        if len(known):
            found[:, j] = np.interp(at, at[known], column[known])
            between[known[0] : known[-1] + 1, j] = True
    return found, between
