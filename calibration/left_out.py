"""What interpolation and extrapolation cost: one value of an axis left out, and the last factor of four.

Each term is predicted as the simulator would: decode attention by lines in KV and in batch, and beyond the
grid by its last slope and in proportion to the batch; layers by lines and the scaled roofline; GEMMs by
interpolated residuals, held at the ends; prefill attention by the
fitted line, its factor held at the ends. `worst` keeps its sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from calibration.fit_attention import Grid, fill
from calibration.fit_dense import SMALL, GemmGrid, layer_gemms
from calibration.fit_prefill import fit_prefill_residual
from calibration.timings import Timing
from simulator.latency.base import Floats
from simulator.latency.grid import DecodeGrid
from simulator.latency.profile_file import continued
from simulator.latency.roofline import Roofline

BEYOND = 4  # how far beyond what is kept extrapolation is tried


class LeftOut(NamedTuple):
    """Relative errors of one term along one axis: mean absolute, and the worst with its sign."""

    term: str
    axis: str
    how: str  # "one left out" | "4x beyond"
    mean: float
    worst: float


def left_out(grid: GemmGrid, decode: Grid, prefill: Sequence[Timing], roofline: Roofline) -> list[LeftOut]:
    """Return every term's errors along each of its axes; an axis too short is left out."""
    found = []
    for term, axis, how, errors in _all(grid, decode, prefill, roofline):
        known = errors[np.isfinite(errors)]
        if len(known):
            worst = float(known[np.argmax(np.abs(known))])
            found.append(LeftOut(term, axis, how, float(np.abs(known).mean()), worst))
    return found


def _all(
    grid: GemmGrid, decode: Grid, prefill: Sequence[Timing], roofline: Roofline
) -> Iterator[tuple[str, str, str, Floats]]:
    one, beyond = "one left out", f"{BEYOND}x beyond"
    yield "layer GEMMs", "tokens", one, _layer_one(grid, roofline)
    yield "layer GEMMs", "tokens", beyond, _layer_beyond(grid, roofline)
    for axis in (0, 1, 2):
        yield "GEMM", "nkm"[axis], one, _gemm(grid, axis, None)
        yield "GEMM", "nkm"[axis], beyond, _gemm(grid, axis, BEYOND)
    yield "decode attention", "kv", one, _kv_one(decode, roofline)
    yield "decode attention", "kv", beyond, _kv_beyond(decode, roofline)
    yield "decode attention", "batch", one, _batch_one(decode)
    yield "decode attention", "batch", beyond, _batch_beyond(decode)
    for name, axis_of in (("tokens", lambda t: t.tokens), ("batch", lambda t: t.batch)):
        yield "prefill attention", name, one, _prefill_one(prefill, roofline, axis_of)
        yield "prefill attention", name, beyond, _prefill_beyond(prefill, roofline, axis_of)


def _layer_one(grid: GemmGrid, roofline: Roofline) -> Floats:
    tokens, seconds = layer_gemms(grid, roofline)
    inner = range(1, len(tokens) - 1)
    guess = [np.interp(tokens[i], np.delete(tokens, i), np.delete(seconds, i)) for i in inner]
    return np.asarray(np.array(guess) / seconds[1:-1] - 1)


def _layer_beyond(grid: GemmGrid, roofline: Roofline) -> Floats:
    tokens, seconds = layer_gemms(grid, roofline)
    kept = tokens <= tokens[-1] / BEYOND
    guess = continued(
        tokens[~kept].astype(np.int64),
        tokens[kept],
        seconds[kept],
        lambda m: np.sum([roofline.gemm(m, n, k) for n, k in roofline.model.layer_gemms()], axis=0),
    )
    return np.asarray(guess / seconds[~kept] - 1)


def _gemm(grid: GemmGrid, axis: int, beyond: int | None) -> Floats:
    """Predict residuals along n, k or m from the others on that axis: the roofline cancels."""
    at = np.log((grid.n, grid.k, grid.m)[axis])
    rows = np.moveaxis(grid.residual[grid.n >= SMALL][:, grid.k >= SMALL], axis, 0)
    at = at[(grid.n >= SMALL, grid.k >= SMALL, np.ones(len(grid.m), dtype=np.bool_))[axis]]
    if beyond is not None:
        far = at > at[-1] - np.log(beyond) + 1e-9
        if far.all():
            return np.zeros(0)
        return np.asarray(np.exp(rows[~far][-1] - rows[far]) - 1).ravel()
    errors = []
    for i in range(1, len(at) - 1):
        weight = (at[i] - at[i - 1]) / (at[i + 1] - at[i - 1])
        errors.append(np.exp((1 - weight) * rows[i - 1] + weight * rows[i + 1] - rows[i]) - 1)
    return np.concatenate([e.ravel() for e in errors]) if errors else np.zeros(0)


def _kv_one(decode: Grid, roofline: Roofline) -> Floats:
    errors = []
    for j in range(1, len(decode.kv) - 1):
        kept = decode.measured.copy()
        kept[:, j] = np.nan
        known = np.isfinite(kept[:, j + 1 :]).any(axis=1) & np.isfinite(kept[:, :j]).any(axis=1)
        guess = fill(decode.batch[known], decode.kv, kept[known], roofline)[:, j]
        errors.append(guess / decode.measured[known, j] - 1)
    return np.concatenate(errors) if errors else np.zeros(0)


def _kv_beyond(decode: Grid, roofline: Roofline) -> Floats:
    reach = np.where(np.isfinite(decode.measured), decode.kv, 0).max(axis=1)
    far = decode.kv[None, :] > reach[:, None] / BEYOND
    kept = np.where(far, np.nan, decode.measured)
    known = np.isfinite(kept).sum(axis=1) > 1
    guess = fill(decode.batch[known], decode.kv, kept[known], roofline)
    return np.asarray((guess / decode.measured[known] - 1)[far[known]])


def _batch_one(decode: Grid) -> Floats:
    errors = []
    for i in range(1, len(decode.batch) - 1):
        others = np.delete(np.arange(len(decode.batch)), i)
        rest = DecodeGrid(decode.batch[others], decode.kv, decode.seconds[others])
        errors.append(rest.rows([decode.batch[i]])[1][0, 1:] / decode.measured[i] - 1)
    return np.concatenate(errors) if errors else np.zeros(0)


def _batch_beyond(decode: Grid) -> Floats:
    kept = decode.batch <= decode.batch[-1] / BEYOND
    if kept.sum() < 2:
        return np.zeros(0)
    rest = DecodeGrid(decode.batch[kept], decode.kv, decode.seconds[kept])
    return np.asarray(rest.rows(decode.batch[~kept])[1][:, 1:] / decode.measured[~kept] - 1)


def _prefill(kept: Sequence[Timing], test: Sequence[Timing], roofline: Roofline) -> Floats:
    guess = fit_prefill_residual(kept, roofline).seconds(test)
    return np.asarray(guess / np.array([t.seconds for t in test]) - 1)


def _prefill_one(rows: Sequence[Timing], roofline: Roofline, axis: Callable[[Timing], int]) -> Floats:
    values = sorted({axis(t) for t in rows})[1:-1]
    errors = [
        _prefill([t for t in rows if axis(t) != value], [t for t in rows if axis(t) == value], roofline)
        for value in values
    ]
    return np.concatenate(errors) if errors else np.zeros(0)


def _prefill_beyond(rows: Sequence[Timing], roofline: Roofline, axis: Callable[[Timing], int]) -> Floats:
    limit = max(axis(t) for t in rows) / BEYOND
    kept, test = ([t for t in rows if (axis(t) <= limit) == near] for near in (True, False))
    return _prefill(kept, test, roofline) if len(kept) > 4 else np.zeros(0)
