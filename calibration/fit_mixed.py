"""Fit attention of mixed steps: a grid where it was measured, the form of seven numbers for what lies beyond.

The grid takes the values of chunk and prefix that were measured with each other over the widest range; rows
off it are a test of interpolation. A cell that is missing has the form's value times the residual of its
neighbours on each axis. The form is fitted on all numbers of decodes, by a robust loss on the log error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.timings import Timing
from simulator.errors import InputError
from simulator.latency.base import Floats, StepFeatures
from simulator.latency.mixed import Mixed, MixedForm

FEWEST = 50  # rows under which no form of seven numbers is fitted
START = (8e-6, 2e-8, 2e-11, 3e-7, 4e-9, 2e-8, 2.0)  # seconds a layer and the power, to begin the search at
POWERS = (1.0, 10.0)  # a sum, and all but a maximum
LOSS_SCALE = 0.1  # relative error beyond which a row pulls less
COMMON = 0.5  # share of the (chunk, prefix) pairs that a value of decodes or KV must be measured at


class Rows(NamedTuple):
    """Mixed steps as columns: tokens of the chunk, tokens before it, decodes, their mean KV, seconds."""

    chunk: Floats
    prefix: Floats
    decodes: Floats
    kv: Floats
    seconds: Floats

    def take(self, which: NDArray[np.generic]) -> Rows:
        """Return some of the rows."""
        return Rows._make(column[which] for column in self)


def rows_of_steps(timings: Sequence[Timing]) -> Rows:
    """Return steps of one chunk, mixed and prefill alone; 0 decodes for the latter."""
    cells = [
        (t.tokens, t.prefix, t.batch, t.kv, t.seconds)
        if t.op == "mixed_attention"
        else (t.tokens, t.kv, 0, 0, t.seconds)
        for t in timings
        if (t.op == "mixed_attention" and t.chunks == 1) or (t.op == "prefill_attention" and t.batch == 1)
    ]
    return Rows._make(np.array(cells, dtype=np.float64).reshape(-1, 5).T)


def predict_form(form: MixedForm, rows: Rows) -> Floats:
    """Return the form's seconds of each row."""
    total = form.per_token * rows.chunk + form.per_work * rows.chunk * (rows.prefix + rows.chunk / 2)
    total = total + form.per_decode * rows.decodes + form.per_kv * rows.decodes * rows.kv
    longest = np.maximum(rows.prefix + rows.chunk, np.where(rows.decodes > 0, rows.kv, 0.0))
    p = form.power
    return np.asarray(form.constant + (total**p + (form.per_longest * longest) ** p) ** (1 / p))


def fit_form(rows: Rows) -> MixedForm:
    """Fit the seven numbers, all positive; seconds of one layer."""
    from scipy.optimize import least_squares

    if len(rows.seconds) < FEWEST:
        raise InputError(f"{len(rows.seconds)} rows of mixed attention; a fit needs {FEWEST}")

    def residual(logs: Floats) -> Floats:
        return np.asarray(np.log(predict_form(MixedForm(*np.exp(logs).tolist()), rows) / rows.seconds))

    wide = np.full(len(START) - 1, np.inf)
    bounds = (np.append(-wide, np.log(POWERS[0])), np.append(wide, np.log(POWERS[1])))
    solved = least_squares(residual, np.log(START), loss="soft_l1", f_scale=LOSS_SCALE, bounds=bounds)
    return MixedForm(*np.exp(solved.x).tolist())


def grid_axes(rows: Rows) -> tuple[tuple[float, ...], ...]:
    """Choose the values of chunk, prefix, decodes and KV that the grid has."""
    mixed = rows.take(rows.decodes > 0)
    prefixes: dict[float, set[float]] = {}
    for chunk, prefix in set(zip(mixed.chunk.tolist(), mixed.prefix.tolist(), strict=True)):
        prefixes.setdefault(chunk, set()).add(prefix)
    found = [
        ([chunk for chunk, more in prefixes.items() if more >= some], some)
        for some in {frozenset(each): each for each in prefixes.values()}.values()
    ]
    chunks, wanted = max(
        found, key=lambda both: (_octaves(both[0]) * _octaves(both[1]), len(both[0]) * len(both[1]))
    )
    inside = mixed.take(np.isin(mixed.chunk, chunks) & np.isin(mixed.prefix, list(wanted)))
    pairs = len(chunks) * len(wanted)
    others = []
    for column, width in ((inside.decodes, inside.kv), (inside.kv, inside.decodes)):
        counts = Counter(column.tolist())
        fewest = COMMON * pairs * len(set(width.tolist())) / 2
        others.append(tuple(sorted(value for value, count in counts.items() if count >= fewest)))
    return tuple(sorted(chunks)), tuple(sorted(wanted)), (0.0, *others[0]), others[1]


def _octaves(values: Sequence[float] | set[float]) -> float:
    positive = [value for value in values if value > 0]
    return log2(max(positive) / min(positive)) if positive else 0.0


def fit_mixed(rows: Rows, axes: tuple[tuple[float, ...], ...]) -> Mixed:
    """Lay the rows on the axes and complete the grid; seconds of one layer."""
    form = fit_form(rows)
    table = np.full([len(axis) for axis in axes], np.nan)
    index = [np.searchsorted(axis, column) for axis, column in zip(axes, rows[:4], strict=True)]
    alone = rows.decodes == 0
    index[3] = np.where(alone, 0, index[3])
    fits = np.ones(len(rows.seconds), dtype=np.bool_)
    for axis, at, column in zip(axes, index, rows[:4], strict=True):
        held = np.array(axis)[np.minimum(at, len(axis) - 1)] == column
        fits &= held | (alone if column is rows.kv else False)
    table[tuple(at[fits] for at in index)] = rows.seconds[fits]
    table[:, :, 0, :] = table[:, :, 0, :1]  # without decodes their length plays no part
    cells = np.meshgrid(*axes, indexing="ij")
    formed = predict_form(form, Rows._make([*(cell.ravel() for cell in cells), np.empty(table.size)]))
    filled = _filled(np.log(table / formed.reshape(table.shape)), axes)
    a, b, c, d = axes
    return Mixed((a, b, c, d), formed.reshape(table.shape) * np.exp(filled), form)


def _filled(residual: Floats, axes: tuple[tuple[float, ...], ...]) -> Floats:
    """Complete log residuals: the mean of the lines through the neighbours along each axis, 0 without any."""
    found, weight = np.zeros_like(residual), np.zeros_like(residual)
    for axis in range(residual.ndim):
        lines = np.moveaxis(residual, axis, -1)
        at = np.arange(len(axes[axis]), dtype=np.float64)
        between = np.full_like(lines, np.nan)
        for place in np.ndindex(lines.shape[:-1]):
            known = np.flatnonzero(np.isfinite(lines[place]))
            if len(known) > 1:
                between[place] = np.interp(at, at[known], lines[place][known], left=np.nan, right=np.nan)
        between = np.moveaxis(between, -1, axis)
        known_here = np.isfinite(between)
        found += np.where(known_here, between, 0.0)
        weight += known_here
    filled = found / np.maximum(weight, 1)
    return np.where(np.isfinite(residual), residual, filled)


def predict(mixed: Mixed, rows: Rows) -> Floats:
    """Return the grid's seconds of each row, as a step is priced."""
    out = np.empty(len(rows.seconds))
    for i, (s, prefix, n, kv, _) in enumerate(zip(*(column.tolist() for column in rows), strict=True)):
        out[i] = mixed.seconds(
            StepFeatures(
                num_decodes=int(n),
                decode_kv=int(n * kv),
                prefill_tokens=int(s),
                prefill_work=s * (prefix + s / 2),
                prefill_kv_max=int(prefix + s),
            )
        )
    return out
