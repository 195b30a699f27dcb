"""Fit attention: decode as a grid over (batch, KV), prefill as a line in chunks, tokens and query-key pairs.

Heads that were not measured come from the nearest tables that were: for grouped queries those with the same
KV heads and the query heads around, for multi-head attention those with as many KV heads as query heads.
Where those end below the wanted number, B sequences of 32/32 heads are read as 4 B sequences of 8/8.
Cells that memory did not allow continue their row at the slope of its last two points, or at the
roofline's bandwidth if that is slower. Left out: head_dim other than 128, mixed batches (nobody published any
for A100), prefixes (no public table of this engine has them: the line in query-key pairs is extended to
them unverified, and profiles say so).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.fit_dense import monotone
from calibration.timings import Timing
from simulator.errors import InputError
from simulator.latency.base import Floats
from simulator.latency.roofline import Roofline

OUTLIER = 2.0  # a cell this many times above both its neighbours in KV is not believed
OUTLIER_LAST = 1.25  # nor the last of a row, this many times above its neighbour grown in proportion to KV


class Grid(NamedTuple):
    """Decode attention of one layer. `measured` is NaN where nothing valid was; `seconds` is filled."""

    batch: Floats
    kv: Floats
    measured: Floats
    seconds: Floats
    outliers: list[str]


class PrefillLine(NamedTuple):
    """Prefill attention of one layer: constant + per_seq * chunks + per_token * s + per_work * pairs."""

    constant: float
    per_seq: float
    per_token: float
    per_work: float

    def seconds(self, chunks: Floats, tokens: Floats, pairs: Floats) -> Floats:
        """Return the seconds of steps given as arrays of their sums."""
        return np.asarray(
            self.constant + self.per_seq * chunks + self.per_token * tokens + self.per_work * pairs
        )


def head_tables(rows: Sequence[Timing], heads: int, kv_heads: int) -> dict[tuple[int, int], float]:
    """Choose which measured (heads, KV heads) stand for the wanted ones, and how much each counts."""
    measured = {(t.heads, t.kv_heads) for t in rows}
    if (heads, kv_heads) in measured:
        return {(heads, kv_heads): 1.0}
    multi_head = heads == kv_heads
    alike = sorted(h for h, g in measured if (g == h if multi_head else g == kv_heads))
    if not alike:
        raise InputError(f"no attention timings near {heads} heads and {kv_heads} KV heads")
    low = max((h for h in alike if h < heads), default=alike[0])
    high = min((h for h in alike if h > heads), default=alike[-1])
    weight = (heads - low) / (high - low) if high > low else 0.0
    both = {low: 1 - weight, high: weight} if high > low else {low: 1.0}
    return {(h, h if multi_head else kv_heads): w for h, w in both.items() if 0 < w <= 1} or {
        (low, low if multi_head else kv_heads): 1.0
    }


def folded(rows: Sequence[Timing], heads: int, kv_heads: int) -> tuple[list[Timing], int]:
    """Read multi-head rows that were not measured from larger batches of fewer heads: (B, H) as (f B, H / f).

    Returns the rows with the wanted heads, and f; the rows as they are and 1 where there is no need. A head
    of a sequence is one unit of work to a decode kernel, whichever sequence it belongs to.
    """
    alike = {t.heads for t in rows if t.heads == t.kv_heads}
    parts = [h for h in alike if h < heads and heads % h == 0]
    if heads != kv_heads or not parts or max(alike) >= heads:
        return list(rows), 1
    factor = heads // max(parts)
    whole = [
        t._replace(heads=heads, kv_heads=heads, batch=t.batch // factor)
        for t in rows
        if t.heads == t.kv_heads == max(parts) and t.batch % factor == 0
    ]
    return whole or list(rows), factor if whole else 1


def decode_grid(rows: Sequence[Timing], roofline: Roofline) -> Grid:
    """Lay the decode rows of one head configuration on a grid, cleaned, filled and never falling."""
    batch, kv = (np.array(sorted({getattr(t, f) for t in rows}), dtype=np.float64) for f in ("batch", "kv"))
    measured = np.full((len(batch), len(kv)), np.nan)
    for t in rows:
        measured[np.searchsorted(batch, t.batch), np.searchsorted(kv, t.kv)] = t.seconds
    outliers = []
    for i, j in np.argwhere(_above_neighbours(measured, kv)):
        outliers.append(f"batch {batch[i]:g}, kv {kv[j]:g}: {measured[i, j] * 1e6:.1f} us")
        measured[i, j] = np.nan
    return Grid(batch, kv, measured, fill(batch, kv, measured, roofline), outliers)


def _above_neighbours(table: Floats, kv: Floats) -> Floats:
    left, right = np.full_like(table, np.nan), np.full_like(table, np.nan)
    left[:, 1:], right[:, :-1] = table[:, :-1], table[:, 1:]
    grown = np.full_like(table, np.nan)
    grown[:, 1:] = left[:, 1:] * (kv[1:] / kv[:-1])
    limit = np.where(np.isfinite(right), OUTLIER * np.fmax(left, right), OUTLIER_LAST * grown)
    return np.asarray(table > np.where(np.isfinite(limit), limit, np.inf))


def fill(batch: Floats, kv: Floats, measured: Floats, roofline: Roofline) -> Floats:
    """Complete a grid: lines between measured cells, the last slope or the bandwidth's beyond them."""
    filled = np.empty_like(measured)
    rate = roofline.efficiency.bandwidth * roofline.bandwidth
    floor = batch[:, None] * kv[None, :] * roofline.kv_token_bytes / roofline.bandwidth
    for i, row in enumerate(measured):
        known = np.flatnonzero(np.isfinite(row))
        filled[i] = np.interp(kv, kv[known], row[known])
        last = known[-1]
        slope = batch[i] * roofline.kv_token_bytes / rate
        if len(known) > 1:
            before = known[-2]
            slope = max(slope, (row[last] - row[before]) / (kv[last] - kv[before]))
        beyond = kv > kv[last]
        filled[i, beyond] = row[last] + slope * (kv[beyond] - kv[last])
    return monotone(monotone(np.maximum(filled, floor), axis=1), axis=0)


def linear_decode(grid: Grid, keep: Floats) -> Floats:
    """Fit a0 + a1 * batch + a2 * sum of KV to the cells kept, by relative error, and lay it on the grid."""
    terms, found = _linear(grid, keep)
    return np.asarray(terms @ found)


def linear_terms(grid: Grid) -> tuple[float, float, float]:
    """Return a0, a1 and a2 of that plane, fitted to all cells."""
    constant, per_seq, per_token = _linear(grid, np.isfinite(grid.measured))[1].tolist()
    return constant, per_seq, per_token


def _linear(grid: Grid, keep: Floats | NDArray[np.bool_]) -> tuple[Floats, Floats]:
    from scipy.optimize import nnls

    batch, kv = np.meshgrid(grid.batch, grid.kv, indexing="ij")
    terms = np.stack([np.ones_like(batch), batch, batch * kv], axis=-1)
    cells = np.isfinite(grid.measured) & keep
    weights = 1 / grid.measured[cells]
    found, _ = nnls(terms[cells] * weights[:, None], np.ones(int(cells.sum())))
    return terms, found


def fit_prefill(rows: Sequence[Timing], roofline: Roofline) -> PrefillLine:
    """Fit the prefill line by relative error; what grows with query heads is scaled to the model's."""
    from scipy.optimize import nnls

    seconds = np.array([t.seconds for t in rows])
    terms = np.stack([np.ones(len(rows)), *prefill_sums(rows, roofline)], axis=1)
    found, _ = nnls(terms / seconds[:, None], np.ones(len(rows)))
    line = PrefillLine(*found.tolist())
    return line._replace(per_work=max(line.per_work, roofline.pair_flops / roofline.flops))


def prefill_sums(rows: Sequence[Timing], roofline: Roofline | None = None) -> tuple[Floats, Floats, Floats]:
    """Return chunks, tokens and query-key pairs s * (kv + s / 2) of each row, added over its batch.

    With a roofline each is scaled to its model's heads, as the line is that `fit_prefill` fits.
    """
    scale = np.array([t.heads / roofline.model.num_heads if roofline else 1.0 for t in rows])
    chunks = np.array([float(t.batch) for t in rows])
    tokens = np.array([float(t.batch * t.tokens) for t in rows])
    pairs = np.array([t.batch * t.tokens * (t.kv + t.tokens / 2) for t in rows])
    return scale * chunks, scale * tokens, scale * pairs
