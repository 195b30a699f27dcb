"""Fit a model whose own layers were timed: nothing is composed from GEMM shapes, only levels are fitted.

    layer[m]: dense of one layer by tokens   head[r]: head and sampler   once: embedding and final norm

Attention of decodes alone is a grid over (batch, KV), of any step that prefills a grid of its own
(`fit_mixed`). The reader prices embedding and norm by the roofline, so the layer's knots carry what they
were measured at beyond it. One source serves everything. Left out: the host, unless a caller gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.checks import Rejected, describe
from calibration.fit_attention import Grid, PrefillLine, decode_grid, fit_prefill
from calibration.fit_dense import monotone
from calibration.fit_mixed import Rows, fit_mixed, grid_axes, rows_of_steps
from calibration.timings import Timing
from simulator.errors import ConfigError
from simulator.latency.base import Floats
from simulator.latency.mixed import Mixed
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model

NEEDED = ("dense", "embedding", "head", "decode_attention", "prefill_attention", "mixed_attention")


class LayerFit(NamedTuple):
    """All that was fitted; seconds, of one layer where a layer is meant."""

    model: Model
    roofline: Roofline
    tokens: Floats
    layer: Floats
    dense: Floats  # `layer` as measured, without what the knots carry of embedding and final norm
    once: Floats  # embedding and final norm at `tokens`, once a step
    head_rows: Floats
    head: Floats  # with the sampler where it was measured
    decode: Grid
    prefill: PrefillLine
    prefill_rows: list[Timing]
    longest_prefill: int
    mixed: Mixed
    steps: Rows  # what the mixed grid was fitted to
    rejected: list[Rejected]
    notes: list[str]


def fit_layers(timings: Sequence[Timing], hardware: Hardware, model: Model) -> LayerFit:
    """Fit one model to its own timings; ConfigError names the operation that lacks rows."""
    by_op: dict[str, list[Timing]] = {}
    for t in timings:
        by_op.setdefault(t.op, []).append(t)
    for op in NEEDED:
        if len(by_op.get(op, ())) < 2:
            raise ConfigError(f"the timings hold no {op} rows for {hardware.name}; a profile needs them")
    roofline = Roofline.of(hardware, model)
    dense_rows, rejected = _possible(by_op["dense"], roofline)
    tokens, dense = _table(dense_rows, "m")
    at, once = _table(by_op["embedding"], "m")
    once = np.interp(tokens, at, once)
    layer = monotone(dense + (once - roofline.once(tokens)) / model.num_layers)
    head_rows, head = _table(by_op["head"], "batch")
    notes = [f"every term: {dense_rows[0].source}", "head and sampler by sampled rows"]
    if "sampler" in by_op:
        sampled, seconds = _table(by_op["sampler"], "batch")
        head = head + np.interp(head_rows, sampled, seconds)
    else:
        notes[-1] = "no sampler rows: sampling is in the host's share"
    decode = decode_grid(by_op["decode_attention"], roofline)
    notes += [f"decode outliers left out: {'; '.join(decode.outliers)}"] if decode.outliers else []
    prefill = by_op["prefill_attention"]
    steps = rows_of_steps([*by_op["mixed_attention"], *prefill])
    axes = grid_axes(steps)
    notes.append(
        f"mixed attention: {len(steps.seconds)} rows on a grid of {' x '.join(str(len(a)) for a in axes)}; "
        "beyond it a form of seven numbers"
    )
    return LayerFit(
        model,
        roofline,
        tokens,
        layer,
        dense,
        once,
        head_rows,
        monotone(head),
        decode,
        fit_prefill(prefill, roofline),
        prefill,
        max(t.tokens + t.kv for t in prefill),
        fit_mixed(steps, axes),
        steps,
        rejected,
        notes,
    )


def _table(rows: Sequence[Timing], key: str) -> tuple[Floats, Floats]:
    """Return sizes and seconds in order of size."""
    ordered = sorted((getattr(t, key), t.seconds) for t in rows)
    sizes, seconds = np.array(ordered, dtype=np.float64).T
    return sizes, seconds


def _possible(rows: Sequence[Timing], roofline: Roofline) -> tuple[list[Timing], list[Rejected]]:
    """Drop layers that beat the peaks: their weights must be read and their FLOPs be done."""
    weights = sum(n * k for n, k in roofline.model.layer_gemms())
    memory = roofline.weight_bytes * weights / roofline.bandwidth
    kept: list[Timing] = []
    beyond: list[Timing] = []
    for t in rows:
        fast = t.seconds < memory or t.seconds < 2 * weights * t.m / roofline.flops
        (beyond if fast else kept).append(t)
    if len(kept) < 2:
        raise ConfigError(f"{len(beyond)} dense rows are above the peak of the GPU: is their unit right?")
    reason = "dense layer above the peak of the GPU"
    return kept, [Rejected(reason, len(beyond), describe(beyond[0]))] if beyond else []
