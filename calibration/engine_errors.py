"""How wrong an engine's fit is: each term with the measurement left out, and whole steps never seen.

`step` rows are of no term: they are the figure of the profile. Skewed batches are not fitted either, so they
say what the sum of KV misses; mixed ones are in `engine_mixed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from calibration.engine_timings import whole
from calibration.fit_attention import fill, prefill_sums
from calibration.fit_engine import EngineFit, per_layer, prefill_line
from calibration.timings import Timing
from simulator.latency.base import Floats, StepFeatures
from simulator.latency.profile import Profile

FOLDS = 5


class Compared(NamedTuple):
    """One measurement beside what is predicted without it; seconds."""

    term: str
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class TermError(NamedTuple):
    """The errors of one term: mean and median of their absolute values, the worst with its sign."""

    term: str
    rows: int
    mean: float
    median: float
    bias: float  # mean with sign
    worst: float


def compare_terms(fit: EngineFit) -> list[Compared]:
    """Predict every term's measurements from the others: a knot, a KV column, a fifth of the chunks."""
    return [
        *_table("dense", fit.tokens, fit.layer),
        *_table("head", fit.head_rows, fit.head),
        *_decode(fit),
        *_prefill(fit),
    ]


def compare_steps(fit: EngineFit, profile: Profile) -> list[Compared]:
    """Price whole steps, graph steps and batches of unlike rows; `profile` neither pads nor adds a host."""
    found = []
    for op in ("step", "graph_step"):
        for t in fit.rows.of(op):
            term = op if op != "step" else "decode step" if not t.tokens else "mixed step"
            found.append(Compared(term, words(t), t.seconds, profile.step_time(features(t))))
    layers = fit.model.num_layers
    for t in whole(fit.rows.of("skewed_attention"), fit.rows.settings, layers):
        found.append(Compared("skewed attention", words(t), t.seconds, _attention(profile, features(t))))
    return found


def features(t: Timing) -> StepFeatures:
    """Return the sums of a row's batch: decodes at their mean context, chunks of equal length."""
    n, chunks = t.batch, t.chunks
    part = t.tokens / chunks if chunks else 0.0
    return StepFeatures(
        num_tokens=n + t.tokens,
        num_seqs=n + chunks,
        num_sampled=n + chunks,
        num_decodes=n,
        decode_kv=n * t.kv,
        decode_kv_max=max(t.kv, 0 if chunks else t.longest) if n else 0,
        prefill_tokens=t.tokens,
        prefill_work=t.tokens * (t.prefix + part / 2),
        prefill_kv_max=round(t.prefix + part),
    )


def _attention(profile: Profile, step: StepFeatures) -> float:
    """Return what a step's attention adds to the same step without it."""
    bare = StepFeatures(step.num_tokens, step.num_seqs, step.num_sampled)
    return profile.step_time(step) - profile.step_time(bare)


def words(t: Timing) -> str:
    """Return a row's batch in words."""
    decodes = f"{t.batch} x {t.kv}" if t.batch else ""
    chunks = f"{t.chunks} chunks of {t.tokens} after {t.prefix}" if t.chunks else ""
    return " + ".join(part for part in (decodes, chunks) if part)


def _table(term: str, at: Floats, seconds: Floats) -> list[Compared]:
    """Leave out each inner knot of a table and draw the line through its neighbours."""
    found = []
    for i in range(1, len(at) - 1):
        others = np.arange(len(at)) != i
        value = float(np.interp(at[i], at[others], seconds[others]))
        found.append(Compared(term, f"{at[i]:g}", float(seconds[i]), value))
    return found


def _decode(fit: EngineFit) -> list[Compared]:
    """Leave out each inner KV column of the grid."""
    grid, layers, found = fit.decode, fit.model.num_layers, []
    for j in range(1, len(grid.kv) - 1):
        kept = grid.measured.copy()
        kept[:, j] = np.nan
        known = np.isfinite(kept).any(axis=1)
        left = fill(grid.batch[known], grid.kv, kept[known], fit.roofline)[:, j]
        for batch, true, value in zip(grid.batch[known], grid.measured[known, j], left, strict=True):
            if np.isfinite(true):
                what = f"{batch:g} x {grid.kv[j]:g}"
                found.append(Compared("decode attention", what, float(layers * true), float(layers * value)))
    return found


def _prefill(fit: EngineFit) -> list[Compared]:
    """Leave out a fifth of the chunks at a time."""
    rows = per_layer(fit.rows, "prefill_attention", fit.model)
    layers, found = fit.model.num_layers, []
    for fold in range(FOLDS):
        test = rows[fold::FOLDS]
        line = prefill_line(
            [t for i, t in enumerate(rows) if i % FOLDS != fold], fit.roofline, fit.rows.on_cpu
        )
        for t, value in zip(test, line.seconds(*prefill_sums(test)), strict=True):
            what = f"{t.tokens} after {t.kv}"
            found.append(Compared("prefill attention", what, layers * t.seconds, layers * float(value)))
    return found


def summarise(compared: Iterable[Compared]) -> dict[str, TermError]:
    """Return the errors of each term, and of all whole steps together under "step"."""
    every = list(compared)
    terms = list(dict.fromkeys(each.term for each in every))
    found = {term: _error(term, [c.error for c in every if c.term == term]) for term in terms}
    steps = [c.error for c in every if c.term in ("decode step", "mixed step")]
    return {**found, "step": _error("step", steps)} if steps else found


def _error(term: str, errors: Sequence[float]) -> TermError:
    size: Callable[[Floats], Floats] = np.abs
    at = np.array(errors)
    worst = float(at[int(np.argmax(size(at)))])
    return TermError(
        term, len(at), float(size(at).mean()), float(np.median(size(at))), float(at.mean()), worst
    )
