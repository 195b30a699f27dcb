"""What another source says of the same GEMMs: how far its level is, and what lies between the knots.

A sweep over the very shapes of a model (Vidur has two models at every eighth token) tests both: its level
against the fitted one, and the fitted knots as knots of its own curve, with all other points held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.fit_dense import Layer
from calibration.timings import Timing
from simulator.latency.base import Floats
from simulator.specs.models import Model

FEWEST = 8  # points in common below which nothing is said


class Opinion(NamedTuple):
    """Mean absolute relative differences; None where the source is too sparse to tell."""

    source: str
    level: float
    between_knots: float | None


def second_opinions(timings: Sequence[Timing], gemms: Layer, source: str, model: Model) -> list[Opinion]:
    """Compare a layer's fitted GEMMs with every other source that measured all of its shapes."""
    shapes = model.layer_gemms()
    found = []
    for name in sorted({t.source for t in timings if t.op == "gemm"} - {source}):
        rows = {(t.m, t.n, t.k): t.seconds for t in timings if t.op == "gemm" and t.source == name}
        sizes = sorted({m for m, _, _ in rows if all((m, n, k) in rows for n, k in shapes)})
        at = np.array(sizes, dtype=np.float64)
        true = np.array([sum(rows[m, n, k] for n, k in shapes) for m in sizes])
        if len(at) >= FEWEST:
            level = np.interp(at, gemms.tokens, gemms.seconds)[at <= gemms.tokens[-1]]
            difference = float(np.mean(np.abs(level / true[: len(level)] - 1)))
            found.append(Opinion(name, difference, _between(at, true, gemms.tokens)))
    return found


def _between(at: Floats, true: Floats, knots: Floats) -> float | None:
    """Interpolate a source's own curve from its points at or just behind the knots, and test the rest."""
    index = np.unique(np.searchsorted(at, knots[(knots >= at[0]) & (knots <= at[-1])]))
    rest = np.setdiff1d(np.arange(index[0], index[-1] + 1), index)
    if len(rest) < FEWEST:
        return None
    return float(np.mean(np.abs(np.interp(at[rest], at[index], true[index]) / true[rest] - 1)))
