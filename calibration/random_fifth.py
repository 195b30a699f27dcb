"""Held-out errors by chance: a random fifth of a term's measurements is predicted from the rest, ten times.

Dense: a sweep over the model's own shapes where a source has one (Vidur), else the second source's grid, of
which the profile's knots are known and a fifth of all others is predicted; else a fifth of the main grid's.
Attention: inner cells and rows of the tables used. GEMM: whole (n, k) shapes, by the residual interpolated
between the others. Steps: decode steps composed of held-out attention and of GEMMs of unseen shapes. The
sources' disagreement about the same GPU comes on top of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.fit_attention import Grid, fill, prefill_sums
from calibration.fit_dense import EDGES, SMALL, GemmGrid, Layer, layer_gemms
from calibration.fit_prefill import fit_prefill_residual
from calibration.timings import Timing
from simulator.latency.base import Floats
from simulator.latency.roofline import Roofline

SEEDS = 10
SHARE = 0.2
FEW_TOKENS = 1024  # below it tiles decide: its error is told apart
FEWEST = 4  # held-out points below which a seed says nothing

Bools = NDArray[np.bool_]


class Pairs(NamedTuple):
    """What was predicted and what was measured, seconds; `at` is the size each belongs to."""

    predicted: Floats
    measured: Floats
    at: Floats

    @property
    def error(self) -> float:
        """Mean absolute relative error."""
        return float(np.mean(np.abs(self.predicted / self.measured - 1)))

    def where(self, rows: Bools) -> Pairs:
        """Return those rows alone."""
        return Pairs(*(part[rows] for part in self))


class Spread(NamedTuple):
    """An error over the seeds, as a fraction."""

    median: float
    worst: float


class Fifth(NamedTuple):
    """One term: its error over the seeds, and the first seed's points to look at."""

    error: Spread
    pairs: Pairs


Draw = Callable[[np.random.Generator], Pairs]


def random_fifths(
    sweep: Layer | None,
    layer: Layer,
    grid: GemmGrid,
    decode: Grid,
    prefill: Sequence[Timing],
    roofline: Roofline,
) -> dict[str, Fifth]:
    """Return every term's held-out error, by name; a term with too few points is left out."""

    def few(pairs: Pairs) -> Pairs:
        return pairs.where(pairs.at < FEW_TOKENS)

    def dense(rng: np.random.Generator) -> Pairs:
        return dense_left_out(sweep or layer_gemms(grid, roofline), layer.tokens if sweep else None, rng)

    draws: dict[str, Draw] = {
        "dense": dense,
        f"dense below {FEW_TOKENS} tokens": lambda rng: few(dense(rng)),
        "gemm of unseen shapes": lambda rng: gemm_left_out(grid, roofline, rng),
        "decode attention": lambda rng: decode_left_out(decode, roofline, rng)[1],
        "prefill attention": lambda rng: prefill_left_out(prefill, roofline, rng),
        "decode step": lambda rng: step_left_out(grid, decode, roofline, rng),
    }
    found = {}
    for name, draw in draws.items():
        drawn = [draw(np.random.default_rng(seed)) for seed in range(SEEDS)]
        errors = [pairs.error for pairs in drawn if len(pairs.measured) >= FEWEST]
        if errors:
            found[name] = Fifth(Spread(float(np.median(errors)), max(errors)), drawn[0])
    return found


def dense_left_out(sweep: Layer, knots: Floats | None, rng: np.random.Generator) -> Pairs:
    """Predict a fifth of a sweep's inner points by lines: between `knots`, else between all the others."""
    at, seconds = sweep
    known = np.zeros(len(at), dtype=np.bool_)
    known[[0, -1]] = True
    if knots is not None:
        inside = knots[(knots >= at[0]) & (knots <= at[-1])]
        before, behind = np.searchsorted(at, inside, side="right") - 1, np.searchsorted(at, inside)
        known[np.where(np.isin(inside, np.array(EDGES) + 1), behind, before)] = True
    held = ~known & (rng.random(len(at)) < SHARE)
    known = known if knots is not None else ~held
    return Pairs(np.interp(at[held], at[known], seconds[known]), seconds[held], at[held])


def gemm_left_out(grid: GemmGrid, roofline: Roofline, rng: np.random.Generator) -> Pairs:
    """Predict a fifth of the inner (n, k) shapes, all tokens, from the residuals of their neighbours left."""
    inner = np.outer(grid.n >= SMALL, grid.k >= SMALL)
    held: Bools = inner & (rng.random(inner.shape) < SHARE)
    kept = np.where(held[:, :, None], np.nan, grid.residual)
    n, k = np.log(grid.n), np.log(grid.k)
    predicted, measured, at = [], [], []
    for i, j in np.argwhere(held):
        base = roofline.gemm(grid.m, int(grid.n[i]), int(grid.k[j]))
        guess = np.nanmean([_line(n, kept[:, j], n[i]), _line(k, kept[i], k[j])], axis=0)
        known = np.isfinite(grid.residual[i, j]) & np.isfinite(guess)
        predicted.append((base * np.exp(guess))[known])
        measured.append((base * np.exp(grid.residual[i, j]))[known])
        at.append(grid.m[known])
    return Pairs(*(np.concatenate(part) if part else np.zeros(0) for part in (predicted, measured, at)))


def _line(axis: Floats, rows: Floats, x: float) -> Floats:
    """Interpolate rows of residuals at x between the nearest known neighbours; ends are held."""
    known = np.flatnonzero(np.isfinite(rows).any(axis=1))
    if not len(known):
        return np.full(rows.shape[1], np.nan)
    high = min(int(np.searchsorted(axis[known], x)), len(known) - 1)
    low = max(high - 1, 0)
    a, b = known[low], known[high]
    weight = float(np.clip((x - axis[a]) / (axis[b] - axis[a]), 0, 1)) if a != b else 0.0
    return np.asarray((1 - weight) * rows[a] + weight * rows[b])


def decode_left_out(
    decode: Grid, roofline: Roofline, rng: np.random.Generator
) -> tuple[tuple[Floats, Floats], Pairs]:
    """Predict a fifth of the inner cells by the grid fitted to the others; also return batch and length."""
    cells = np.isfinite(decode.measured)
    order = np.cumsum(cells, axis=1)
    inner = cells & (order > 1) & (order < order[:, -1:])  # the ends of a row would be extrapolated
    held: Bools = np.asarray(inner & (rng.random(cells.shape) < SHARE))
    kept = np.where(held, np.nan, decode.measured)
    known: Bools = np.asarray(np.isfinite(kept).any(axis=1))
    filled = np.full_like(decode.seconds, np.nan)
    filled[known] = fill(decode.batch[known], decode.kv, kept[known], roofline)
    held &= known[:, None]
    at = np.argwhere(held)
    batch, kv = decode.batch[at[:, 0]], decode.kv[at[:, 1]]
    return (batch, kv), Pairs(filled[held], decode.measured[held], batch * kv)


def prefill_left_out(rows: Sequence[Timing], roofline: Roofline, rng: np.random.Generator) -> Pairs:
    """Predict a fifth of the rows by what is fitted to the others, at each row's own heads."""
    held = rng.random(len(rows)) < SHARE
    kept = fit_prefill_residual([t for t, out in zip(rows, held, strict=True) if not out], roofline)
    test = [t for t, out in zip(rows, held, strict=True) if out]
    return Pairs(kept.seconds(test), np.array([t.seconds for t in test]), prefill_sums(test)[1])


def step_left_out(grid: GemmGrid, decode: Grid, roofline: Roofline, rng: np.random.Generator) -> Pairs:
    """Compose decode steps of held-out attention and unseen GEMM shapes; the truth of what was measured."""
    (batch, _), attention = decode_left_out(decode, roofline, rng)
    layers = roofline.model.num_layers
    rest = layers * roofline.elementwise(batch) + roofline.once(batch) + roofline.head(batch)
    inside = batch <= grid.m[-1]
    unseen, true = (
        rest + layers * (np.interp(batch, grid.m, layer_gemms(grid, roofline, skip=skip).seconds) + seconds)
        for skip, seconds in ((True, attention.predicted), (False, attention.measured))
    )
    return Pairs(unseen, true, attention.at).where(inside)


def sweep_of(timings: Sequence[Timing], roofline: Roofline, source: str) -> Layer | None:
    """Return the longest sweep of another source over the model's very shapes, small kernels included."""
    shapes, width = roofline.model.layer_gemms(), roofline.elementwise_width
    best: Layer | None = None
    for name in sorted({t.source for t in timings if t.op == "gemm"} - {source}):
        rows = {(t.m, t.n, t.k): t.seconds for t in timings if t.op == "gemm" and t.source == name}
        small = {
            t.m: t.seconds for t in timings if t.op == "elementwise" and t.source == name and t.n == width
        }
        sizes = sorted({m for m, _, _ in rows if m in small and all((m, n, k) in rows for n, k in shapes)})
        if len(sizes) > max(50, len(best.tokens) if best else 0):
            seconds = [small[m] + sum(rows[m, n, k] for n, k in shapes) for m in sizes]
            best = Layer(np.array(sizes, dtype=np.float64), np.array(seconds))
    return best
