"""How wrong a fit is on what it has not seen: per term and for whole composed steps.

Each term is predicted with the measurement in question left out: a GEMM without the grid's nearest n and k,
a decode cell without its KV column, a prefill row by what is fitted to the other four fifths. A step adds
such predictions up and is compared with the step made of the measurements. That truth is composed too, so
these are errors of the form; the sources' disagreement about the same GPU comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.fit_attention import Grid, fill, linear_decode, prefill_sums
from calibration.fit_dense import GemmGrid, layer_gemms
from calibration.fit_prefill import fit_prefill_residual
from calibration.timings import Timing
from simulator.latency.base import Floats
from simulator.latency.roofline import Roofline

FOLDS = 5


class HeldOut(NamedTuple):
    """Mean absolute relative errors, as fractions."""

    dense: float  # layer GEMMs whose shapes were left out
    decode: float  # decode attention, KV column left out, on the grid
    decode_linear: float  # the same for a0 + a1 * batch + a2 * sum of KV
    prefill: float  # prefill attention, a fifth left out
    step: float  # whole decode and prefill steps, all terms left out


def held_out(grid: GemmGrid, decode: Grid, prefill: Sequence[Timing], roofline: Roofline) -> HeldOut:
    """Measure the errors of one model's fit."""
    dense, dense_left = (layer_gemms(grid, roofline, skip=skip).seconds for skip in (False, True))
    cells, left, linear = decode_left_out(decode, roofline)
    measured = np.array([t.seconds for t in prefill])
    line = prefill_left_out(prefill, roofline)
    steps = np.concatenate(
        [
            _decode_steps(decode, cells, left, grid.m, dense, dense_left, roofline),
            _prefill_steps(prefill, measured, line, grid.m, dense, dense_left, roofline),
        ]
    )
    return HeldOut(
        dense=_error(dense_left, dense),
        decode=_error(left[cells], decode.measured[cells]),
        decode_linear=_error(linear[cells], decode.measured[cells]),
        prefill=_error(line, measured),
        step=float(np.mean(steps)),
    )


def _error(predicted: Floats, true: Floats) -> float:
    return float(np.mean(np.abs(predicted / true - 1)))


def decode_left_out(decode: Grid, roofline: Roofline) -> tuple[Floats, Floats, Floats]:
    """Predict each interior KV column from the others, by the grid and by the line."""
    cells = np.isfinite(decode.measured)
    cells[:, [0, -1]] = False
    left, linear = np.empty_like(decode.seconds), np.empty_like(decode.seconds)
    for j in range(len(decode.kv)):
        others = np.arange(len(decode.kv)) != j
        kept = decode.measured.copy()
        kept[:, j] = np.nan
        cells[np.isfinite(kept).sum(axis=1) == 0, j] = False
        known = np.isfinite(kept).any(axis=1)
        left[known, j] = fill(decode.batch[known], decode.kv, kept[known], roofline)[:, j]
        linear[:, j] = linear_decode(decode, np.broadcast_to(others, kept.shape))[:, j]
    return cells, left, linear


def prefill_left_out(rows: Sequence[Timing], roofline: Roofline) -> Floats:
    predicted = np.empty(len(rows))
    for fold in range(FOLDS):
        test = [i for i in range(len(rows)) if i % FOLDS == fold]
        kept = fit_prefill_residual([t for i, t in enumerate(rows) if i % FOLDS != fold], roofline)
        predicted[test] = kept.seconds([rows[i] for i in test])
    return predicted


def _rest(tokens: Floats, sampled: Floats, roofline: Roofline) -> Floats:
    """Return what no term above covers: small kernels, embedding and head, the same on both sides."""
    once = roofline.once(tokens) + roofline.head(sampled)
    return roofline.model.num_layers * roofline.elementwise(tokens) + once


def _decode_steps(
    decode: Grid,
    cells: Floats,
    left: Floats,
    m: Floats,
    dense: Floats,
    dense_left: Floats,
    roofline: Roofline,
) -> Floats:
    at = np.argwhere(cells)
    batch = decode.batch[at[:, 0]]
    rest = _rest(batch, batch, roofline)
    layers = roofline.model.num_layers
    true = rest + layers * (np.interp(batch, m, dense) + decode.measured[cells])
    predicted = rest + layers * (np.interp(batch, m, dense_left) + left[cells])
    return np.asarray(np.abs(predicted / true - 1))


def _prefill_steps(
    rows: Sequence[Timing],
    measured: Floats,
    line: Floats,
    m: Floats,
    dense: Floats,
    dense_left: Floats,
    roofline: Roofline,
) -> Floats:
    chunks, tokens, _ = prefill_sums(rows)
    inside = tokens <= m[-1]
    tokens, rest = tokens[inside], _rest(tokens[inside], chunks[inside], roofline)
    layers = roofline.model.num_layers
    true = rest + layers * (np.interp(tokens, m, dense) + measured[inside])
    predicted = rest + layers * (np.interp(tokens, m, dense_left) + line[inside])
    return np.asarray(np.abs(predicted / true - 1))
