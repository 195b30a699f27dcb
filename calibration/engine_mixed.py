"""Attention of an engine's mixed steps: decode plus prefill, less what both pay once, checked on mixed rows.

Each of the two was measured in a step of its own and holds that step's constant (planning, launching): a
mixed step pays it once. `shared` is the median of what the sum is too long by; it is fitted on mixed rows,
a fifth of them left out in turn for the error. The grid that a profile has for mixed steps is this form
laid out; beyond it a plane goes on. Left out: what a single launch of both gains or loses on a GPU beyond a
constant, which the form of seven numbers has (`fit_mixed`), where rows suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.engine_errors import Compared, features, words
from calibration.engine_timings import whole
from calibration.fit_attention import linear_terms
from calibration.fit_engine import EngineFit
from calibration.timings import Timing
from simulator.latency.base import Floats

FOLDS = 5
FEWEST = 5  # mixed rows, under which nothing is fitted on them
LEFT = 0.5  # of the shorter of the two, that a mixed step costs more than the longer at least


class MixedGrid(NamedTuple):
    """Attention of one layer; `seconds[i, j, k, l]` for chunk i after prefix j beside k decodes of KV l."""

    chunk: list[int]
    prefix: list[int]
    decodes: list[int]
    kv: list[int]
    seconds: Floats
    plane: tuple[float, float, float, float, float]  # constant, per token, pair, decode, KV token
    shared: float


def mixed_grid(fit: EngineFit) -> MixedGrid | None:
    """Lay out mixed steps; None without enough mixed rows."""
    rows = _mixed(fit)
    if len(rows) < FEWEST:
        return None
    shared = _shared(fit, rows)
    chunks = sorted({t.tokens for t in fit.rows.of("prefill_attention")})
    prefixes = sorted({0, *(t.kv for t in fit.rows.of("prefill_attention"))})
    batches, lengths = (
        sorted({getattr(t, f) for t in fit.rows.of("decode_attention")}) for f in ("batch", "kv")
    )
    if min(map(len, (chunks, prefixes, batches, lengths))) < 2:
        return None
    table = np.empty((len(chunks), len(prefixes), 1 + len(batches), len(lengths)))
    for at in np.ndindex(table.shape):
        n = [0, *batches][at[2]]
        table[at] = _joined(*_parts(fit, 1, chunks[at[0]], prefixes[at[1]], n, lengths[at[3]]), shared)
    constant, per_decode, per_kv = linear_terms(fit.decode)
    line = fit.prefill
    start = line.constant + line.per_seq + max(constant - shared, 0.0)
    plane = (start, line.per_token, line.per_work, per_decode, per_kv)
    return MixedGrid(chunks, prefixes, [0, *batches], lengths, table, plane, shared)


def compare_mixed(fit: EngineFit) -> list[Compared]:
    """Predict each mixed row with `shared` from the other four fifths; nothing without enough rows."""
    rows = _mixed(fit)
    if len(rows) < FEWEST:
        return []
    found, layers = [], fit.model.num_layers
    for fold in range(FOLDS):
        shared = _shared(fit, [t for i, t in enumerate(rows) if i % FOLDS != fold])
        for t in rows[fold::FOLDS]:
            value = layers * _joined(*_sums(fit, t), shared)
            found.append(Compared("mixed, joined", words(t), t.seconds, value))
            added = layers * sum(_sums(fit, t))
            found.append(Compared("mixed, added", words(t), t.seconds, added))
    return found


def _mixed(fit: EngineFit) -> list[Timing]:
    return whole(fit.rows.of("mixed_attention"), fit.rows.settings, fit.model.num_layers)


def _shared(fit: EngineFit, rows: Sequence[Timing]) -> float:
    over = [sum(_sums(fit, t)) - t.seconds / fit.model.num_layers for t in rows]
    return max(float(np.median(over)), 0.0)


def _sums(fit: EngineFit, t: Timing) -> tuple[float, float]:
    step = features(t)
    work = step.prefill_work / max(t.chunks, 1)
    part = t.tokens / max(t.chunks, 1)
    return _parts(fit, t.chunks, part, work / part - part / 2, t.batch, t.kv)


def _parts(
    fit: EngineFit, chunks: int, tokens: float, prefix: float, decodes: float, kv: float
) -> tuple[float, float]:
    """Return the seconds of one layer's chunks, and of its decodes alone."""
    line = fit.prefill
    prefill = line.constant + chunks * (line.per_seq + line.per_token * tokens)
    prefill += chunks * line.per_work * tokens * (prefix + tokens / 2)
    return prefill, _decode(fit, decodes, kv) if decodes else 0.0


def _decode(fit: EngineFit, decodes: float, kv: float) -> float:
    grid = fit.decode
    at_kv = [np.interp(kv, grid.kv, row) for row in grid.seconds]
    return float(np.interp(decodes, grid.batch, at_kv))


def _joined(prefill: float, decode: float, shared: float) -> float:
    longer, shorter = max(prefill, decode), min(prefill, decode)
    return longer + max(shorter - shared, LEFT * shorter) if shorter else longer
