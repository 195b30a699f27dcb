"""How wrong a fit to measured layers is on what it has not seen: a random fifth left out, ten times.

A cell of the mixed grid that is left out is filled from its neighbours, a row off the grid interpolated, a
dense knot passed over. Whole steps add such predictions up and are compared with the step made of the
measurements, which is composed too: these are errors of the form, for one source on one GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.fit_layers import LayerFit
from calibration.fit_mixed import Rows, fit_mixed, predict, predict_form
from calibration.held_out import decode_left_out, prefill_left_out
from simulator.latency.base import Floats

SEEDS = range(10)
LEFT_OUT = 0.2
FEW = 64  # decodes; the first goal is for at most so many


class Spread(NamedTuple):
    """Mean absolute relative error over the seeds, as fractions."""

    median: float
    worst: float


class LayerErrors(NamedTuple):
    """Errors of every term, each the median over the seeds unless a spread is given."""

    dense: float
    decode: float
    decode_linear: float
    prefill: float
    step: float
    mixed: Spread  # attention of mixed steps, by the grid
    mixed_few: Spread  # of at most 64 decodes
    form: Spread  # the same by the form alone
    form_few: Spread


def held_out_layers(fit: LayerFit) -> LayerErrors:
    """Measure the errors of a fit; fits the mixed attention ten times."""
    steps = fit.steps
    mixed = steps.decodes > 0
    found = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        out = mixed & (rng.random(len(mixed)) < LEFT_OUT)
        refit = fit_mixed(steps.take(~out), fit.mixed.axes)
        test = steps.take(out)
        few = test.decodes <= FEW
        grid, form = predict(refit, test), predict_form(refit.form, test)
        dense = _dense_left_out(fit, rng)
        tables, forms = np.abs(grid / test.seconds - 1), np.abs(form / test.seconds - 1)
        whole = _step_errors(fit, test, grid, dense)
        knots = np.abs(dense / fit.dense - 1)[dense != fit.dense]
        found.append([e.mean() for e in (knots, tables, tables[few], forms, forms[few], whole)])
    columns = np.array(found)
    spreads = [Spread(float(np.median(c)), float(c.max())) for c in columns.T]
    cells, left, linear = decode_left_out(fit.decode, fit.roofline)
    true = fit.decode.measured[cells]
    prefill = np.array([t.seconds for t in fit.prefill_rows])
    return LayerErrors(
        dense=spreads[0].median,
        decode=_error(left[cells], true),
        decode_linear=_error(linear[cells], true),
        prefill=_error(prefill_left_out(fit.prefill_rows, fit.roofline), prefill),
        step=spreads[5].median,
        mixed=spreads[1],
        mixed_few=spreads[2],
        form=spreads[3],
        form_few=spreads[4],
    )


def _error(predicted: Floats, true: Floats) -> float:
    return float(np.mean(np.abs(predicted / true - 1)))


def _dense_left_out(fit: LayerFit, rng: np.random.Generator) -> Floats:
    """Return the dense knots, a random fifth of the inner ones read off the line through the others."""
    out: NDArray[np.bool_] = rng.random(len(fit.tokens)) < LEFT_OUT
    out[[0, -1]] = False
    between = np.interp(fit.tokens, fit.tokens[~out], fit.dense[~out])
    return np.asarray(np.where(out, between, fit.dense))


def _step_errors(fit: LayerFit, test: Rows, attention: Floats, dense: Floats) -> Floats:
    layers, tokens = fit.model.num_layers, test.chunk + test.decodes
    inside = tokens <= fit.tokens[-1]
    rest = np.interp(tokens, fit.tokens, fit.once)
    rest = rest + np.interp(test.decodes + 1, fit.head_rows, fit.head)
    true = rest + layers * (np.interp(tokens, fit.tokens, fit.dense) + test.seconds)
    predicted = rest + layers * (np.interp(tokens, fit.tokens, dense) + attention)
    return np.asarray(np.abs(predicted / true - 1)[inside])
