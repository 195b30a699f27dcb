"""Fit what every token passes through: GEMMs as a residual over the roofline, and the small kernels.

A GEMM of any (n, k) is the soft-max roofline, four numbers fitted on all shapes, times a measured residual
that is interpolated between the grid's shapes in log n and log k: 5-6 % on unseen shapes, and beyond the
grid the roofline with the nearest residual. Over m nothing is smoothed: tile quantisation makes steps.
Where the main source has no point just behind a tile edge, a second source gives the shape of the step
(its value over its own straight line) and the main source the level. Left out: split-K and fp8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.timings import Timing
from simulator.errors import InputError
from simulator.latency.base import Floats
from simulator.latency.roofline import Efficiency, Roofline

EDGES = (64, 128, 192, 256, 384, 512, 768, 1024)  # tile edges, tokens: latency model, section 3.2
SMALL = 512  # shapes with n or k below this do not decide the roofline's numbers
FITTED = ("gemm_overhead", "compute", "bandwidth", "sharpness")


class GemmGrid(NamedTuple):
    """One source's GEMMs: `residual[i, j, l]` = log(measured / roofline) at n[i], k[j], m[l], or NaN."""

    source: str
    m: Floats
    n: Floats
    k: Floats
    residual: Floats

    def seconds(self, roofline: Roofline, n: int, k: int, skip: bool = False) -> Floats:
        """Return the seconds of an (n, k) at each of `m`. `skip` leaves out the grid's nearest n and k."""
        rows, columns = _weights(self.n, n, skip), _weights(self.k, k, skip)
        total = np.zeros(len(self.m))
        for i, wi in rows:
            for j, wj in columns:
                total += wi * wj * np.nan_to_num(self.residual[i, j])
        seconds: Floats = roofline.gemm(self.m, n, k) * np.exp(total)
        return seconds


def _weights(axis: Floats, value: int, skip: bool) -> list[tuple[int, float]]:
    """Return the neighbours of a value on a log axis, and how much each counts; ends are held."""
    at, x = np.log(axis), float(np.log(value))
    index = np.arange(len(axis))
    if skip:
        index = np.delete(index, int(np.argmin(np.abs(at - x))))
    high = int(np.clip(np.searchsorted(at[index], x), 1, len(index) - 1))
    low, up = int(index[high - 1]), int(index[high])
    weight = float(np.clip((x - at[low]) / (at[up] - at[low]), 0.0, 1.0))
    return [(i, w) for i, w in ((low, 1 - weight), (up, weight)) if w]


def rows_of(timings: Sequence[Timing], op: str, source: str) -> list[Timing]:
    """Return the rows of one operation from one source."""
    return [t for t in timings if t.op == op and t.source == source]


def fit_roofline(gemms: Sequence[Timing], start: Roofline) -> Roofline:
    """Fit the four numbers of the soft-max roofline to GEMMs, by a robust loss on the log error."""
    from scipy.optimize import least_squares

    rows = [t for t in gemms if min(t.n, t.k) >= SMALL]
    if len(rows) < 20:
        return start
    m, n, k, seconds = (np.array([float(getattr(t, f)) for t in rows]) for f in ("m", "n", "k", "seconds"))
    flops, moved = 2 * m * n * k, 2 * (n * k + m * (n + k))

    def at(logs: Floats) -> Roofline:
        fitted = dict(zip(FITTED, np.exp(logs).tolist(), strict=True))
        return start.with_efficiency(Efficiency(**{**start.efficiency._asdict(), **fitted}))

    first = np.log([getattr(start.efficiency, name) for name in FITTED])
    solved = least_squares(lambda x: np.log(at(x).soft_max(flops, moved) / seconds), first, loss="soft_l1")
    return at(solved.x)


def gemm_grid(gemms: Sequence[Timing], roofline: Roofline) -> GemmGrid:
    """Lay one source's GEMMs on the grid of its own m, n and k."""
    if not gemms:
        raise InputError("no GEMM timings: a profile needs them")
    axes = [np.array(sorted({getattr(t, f) for t in gemms}), dtype=np.float64) for f in ("n", "k", "m")]
    places = [{value: i for i, value in enumerate(axis.tolist())} for axis in axes]
    table = np.full([len(axis) for axis in axes], np.nan)
    for t in gemms:
        table[places[0][t.n], places[1][t.k], places[2][t.m]] = t.seconds
    for i, n in enumerate(axes[0]):
        for j, k in enumerate(axes[1]):
            table[i, j] = np.log(table[i, j] / roofline.gemm(axes[2], int(n), int(k)))
    # an m measured for few shapes only says nothing about the others
    common = np.isfinite(table).mean(axis=(0, 1)) > 0.5
    return GemmGrid(gemms[0].source, axes[2][common], axes[0], axes[1], table[:, :, common])


class Layer(NamedTuple):
    """Everything but attention in one layer, by tokens, seconds."""

    tokens: Floats
    seconds: Floats


def layer_gemms(
    grid: GemmGrid, roofline: Roofline, edges: GemmGrid | None = None, skip: bool = False
) -> Layer:
    """Add up a layer's GEMMs at the grid's m and, from a second grid, just behind the tile edges."""
    shapes = roofline.model.layer_gemms()
    level = sum((grid.seconds(roofline, n, k, skip) for n, k in shapes), np.zeros(len(grid.m)))
    if edges is None:
        return Layer(grid.m, level)
    other = sum((edges.seconds(roofline, n, k, skip) for n, k in shapes), np.zeros(len(edges.m)))
    shared = np.isin(edges.m, grid.m)
    behind = np.isin(edges.m, np.array(EDGES) + 1) | (edges.m > EDGES[-1])
    new = behind & ~shared & (edges.m > grid.m[0]) & (edges.m < grid.m[-1])
    step = other[new] / np.interp(edges.m[new], edges.m[shared], other[shared])
    tokens = np.concatenate([grid.m, edges.m[new]])
    seconds = np.concatenate([level, np.interp(edges.m[new], grid.m, level) * step])
    order = np.argsort(tokens)
    return Layer(tokens[order], seconds[order])


def add_edge(layer: Layer, edge: int, rise: float) -> Layer:
    """Put a knot just behind a tile edge, `rise` times the edge's own time."""
    at = np.searchsorted(layer.tokens, edge + 1)
    seconds = float(np.interp(edge, layer.tokens, layer.seconds)) * rise
    return Layer(np.insert(layer.tokens, at, edge + 1), np.insert(layer.seconds, at, seconds))


def edge_rise(gemms: Sequence[Timing], edge: int) -> float | None:
    """Return how much all GEMMs of a dense sweep rise from an edge to the next point it has."""
    behind = [t for t in gemms if edge < t.m <= edge + 16]
    at = {(t.n, t.k): t.seconds for t in gemms if t.m == edge}
    first = {shape: min((t for t in behind if (t.n, t.k) == shape), default=None) for shape in at}
    pairs = [(at[shape], t.seconds) for shape, t in first.items() if t is not None]
    return sum(after for _, after in pairs) / sum(before for before, _ in pairs) if pairs else None


def monotone(values: Floats, axis: int = -1) -> Floats:
    """Return the midpoint of the tightest non-decreasing bounds: the running maximum and minimum.

    >>> monotone(np.array([1.0, 3.0, 2.0, 4.0])).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    rising = np.maximum.accumulate(values, axis=axis)
    falling = np.flip(np.minimum.accumulate(np.flip(values, axis), axis=axis), axis)
    middle: Floats = (rising + falling) / 2
    return middle


def fit_elementwise(rows: Sequence[Timing], roofline: Roofline) -> Roofline:
    """Fit overhead and bandwidth of the small kernels: hypot(overhead, bytes / rate)."""
    from scipy.optimize import least_squares

    if not rows:
        return roofline
    moved = np.array([2.0 * t.m * t.n for t in rows])
    seconds = np.array([t.seconds for t in rows])

    def times(logs: Floats) -> Floats:
        return np.asarray(np.hypot(np.exp(logs[0]), moved / (np.exp(logs[1]) * roofline.bandwidth)))

    e = roofline.efficiency
    first = np.log([e.elementwise_overhead, e.elementwise_bandwidth])
    solved = least_squares(lambda x: np.log(times(x) / seconds), first, loss="soft_l1")
    overhead, bandwidth = np.exp(solved.x).tolist()
    return roofline.with_efficiency(
        e._replace(elementwise_overhead=overhead, elementwise_bandwidth=bandwidth)
    )
