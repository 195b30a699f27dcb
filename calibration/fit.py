"""Timings in, profile out: one file per GPU, a section per model, every choice of source written into it.

One source per operation, since public sources differ by 7-20 % about the same GPU and a mixture would
hide it: GEMMs and grouped-query attention from vLLM's rows where there are any, multi-head decode from the
first engine that measured those heads, small kernels from the only source that has them. The output
depends on the input alone: no clock, no randomness. Left out: fitting the host (`calibrate tune`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.checks import Checked
from calibration.fit_attention import Grid, PrefillLine, decode_grid, folded, head_tables
from calibration.fit_dense import (
    EDGES,
    GemmGrid,
    Layer,
    add_edge,
    edge_rise,
    fit_elementwise,
    fit_roofline,
    gemm_grid,
    layer_gemms,
    monotone,
    rows_of,
)
from calibration.fit_prefill import fit_prefill_residual
from calibration.held_out import HeldOut, held_out
from calibration.left_out import LeftOut, left_out
from calibration.random_fifth import Fifth, random_fifths, sweep_of
from calibration.second_opinion import Opinion, second_opinions
from calibration.timings import Timing
from simulator.errors import ConfigError, suggest
from simulator.latency.prefill import PrefillFactor
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model

ENGINES = ("vllm", "trtllm", "sglang")  # order of preference; any other source comes after them
SHORTEST_CHUNK = 16  # tokens; a shorter "prefill" runs as a decode
HEAD_ROWS = 1024  # sampled rows up to which the head is written as a table


class ModelFit(NamedTuple):
    """All that was fitted for one model; times in seconds, per layer where a layer is meant."""

    model: Model
    roofline: Roofline
    layer: Layer
    head_rows: list[float]
    head: list[float]
    decode: Grid
    prefill: PrefillLine
    factor: PrefillFactor | None  # what the line leaves, by chunk length and chunks
    longest_prefill: int
    errors: HeldOut
    fifths: dict[str, Fifth]
    axes: list[LeftOut]
    opinions: list[Opinion]
    used: list[tuple[str, str]]  # (operation, source)
    notes: list[str]


class Dense(NamedTuple):
    """What is fitted once for all models: the GEMM grids of two sources, and the sweep behind edges."""

    grid: GemmGrid
    edges: GemmGrid | None
    sweep: list[Timing]
    elementwise: list[Timing]


def fit(
    checked: Checked, hardware: Hardware, models: Sequence[Model], chosen: dict[str, str]
) -> list[ModelFit]:
    """Fit every model. `chosen` maps an operation to the source that must serve it."""
    timings = checked.timings
    start = Roofline.of(hardware, models[0])
    gemm_source = choose(timings, "gemm", chosen)
    elementwise = [t for t in timings if t.op == "elementwise"]
    if "elementwise" in chosen:
        elementwise = rows_of(timings, "elementwise", choose(timings, "elementwise", chosen))
    start = fit_elementwise(elementwise, fit_roofline(rows_of(timings, "gemm", gemm_source), start))
    grid = gemm_grid(rows_of(timings, "gemm", gemm_source), start)
    dense = Dense(grid, *_second_sources(timings, grid, start), elementwise)
    return [_fit_model(timings, dense, start, model, chosen) for model in models]


def sources(timings: Sequence[Timing], op: str) -> list[str]:
    """Return the sources that measured an operation, the preferred engine first, then by rows."""
    rows: dict[str, int] = {}
    for t in timings:
        if t.op == op:
            rows[t.source] = rows.get(t.source, 0) + 1
    rank = {name: next((i for i, e in enumerate(ENGINES) if name.startswith(e)), 9) for name in rows}
    return sorted(rows, key=lambda name: (rank[name], -rows[name], name))


def choose(
    timings: Sequence[Timing], op: str, chosen: dict[str, str], heads: tuple[int, int] | None = None
) -> str:
    """Choose one operation's source: the user's, else the first with the very heads, else the first."""
    known = sources(timings, op)
    if op in chosen:
        if chosen[op] not in known:
            raise ConfigError(f"--source {op}={chosen[op][:60]}: no such rows{suggest(chosen[op], known)}")
        return chosen[op]
    exact = {t.source for t in timings if t.op == op and (t.heads, t.kv_heads) == heads}
    best = next((name for name in known if name in exact), known[0] if known else None)
    if best is None:
        raise ConfigError(f"the timings hold no {op} rows; a profile needs them")
    return best


def _second_sources(
    timings: Sequence[Timing], grid: GemmGrid, roofline: Roofline
) -> tuple[GemmGrid | None, list[Timing]]:
    """Find the sources that measured just behind tile edges: one on a grid of shapes, one as a sweep."""
    others = [name for name in sources(timings, "gemm") if name != grid.source]
    if not others or np.isin(np.array(EDGES) + 1, grid.m).all():
        return None, []
    rows = {name: rows_of(timings, "gemm", name) for name in others}
    known = {name: len({t.m for t in rows[name]} & {e + 1 for e in EDGES}) for name in others}
    near = {name: sum(edge_rise(rows[name], e) is not None for e in EDGES) for name in others}
    best = max(others, key=lambda name: known[name])
    sweep = max(others, key=lambda name: near[name] - known[name])
    return (gemm_grid(rows[best], roofline) if known[best] else None), rows[sweep]


def _layer(dense: Dense, roofline: Roofline, used: list[tuple[str, str]], notes: list[str]) -> Layer:
    layer = layer_gemms(dense.grid, roofline, dense.edges)
    if dense.edges:
        used.append(("gemm", dense.edges.source))
        notes.append(f"shape of the steps behind tile edges from {dense.edges.source}")
    for edge in EDGES:
        if edge + 1 not in layer.tokens:
            rise = edge_rise(dense.sweep, edge)
            if rise and layer.tokens[0] <= edge < layer.tokens[-1]:
                layer = add_edge(layer, edge, rise)
                used.append(("gemm", dense.sweep[0].source))
                notes.append(f"rise of {rise - 1:.0%} behind {edge} tokens from {dense.sweep[0].source}")
    return Layer(layer.tokens, monotone(layer.seconds))


def _fit_model(
    timings: Sequence[Timing], dense: Dense, start: Roofline, model: Model, chosen: dict[str, str]
) -> ModelFit:
    roofline = start.for_model(model)
    heads = (model.num_heads, model.num_kv_heads)
    notes = [f"gemm: {dense.grid.source}"]
    used = [("gemm", dense.grid.source)]
    gemms = _layer(dense, roofline, used, notes)
    layer = Layer(gemms.tokens, gemms.seconds + roofline.elementwise(gemms.tokens))
    opinions = second_opinions(timings, gemms, dense.grid.source, model)
    source = choose(timings, "decode_attention", chosen, heads)
    used.append(("decode_attention", source))
    decode = _decode(rows_of(timings, "decode_attention", source), roofline, source, notes)
    source = choose(timings, "prefill_attention", chosen, heads)
    used.append(("prefill_attention", source))
    rows = [t for t in rows_of(timings, "prefill_attention", source) if t.tokens >= SHORTEST_CHUNK]
    tables = head_tables(rows, *heads)
    rows = [t for t in rows if (t.heads, t.kv_heads) in tables]
    notes.append(
        f"prefill attention: {source}, heads {_heads(tables)}, scaled to {heads[0]}, without prefixes"
    )
    if dense.elementwise:
        used.append(("elementwise", dense.elementwise[0].source))
        notes.append(f"norms, rope, activation, adds: {dense.elementwise[0].source}, unfused")
    else:
        notes.append("norms, rope, activation, adds: not among the timings, A100's efficiencies assumed")
    vocab, hidden = model.head_gemm()
    head_rows = dense.grid.m[dense.grid.m <= HEAD_ROWS]
    head = monotone(dense.grid.seconds(roofline, vocab, hidden)[: len(head_rows)])
    prefill = fit_prefill_residual(rows, roofline)
    errors = held_out(dense.grid, decode, rows, roofline)
    sweep = sweep_of(timings, roofline, dense.grid.source)
    if sweep is None and dense.edges is not None:
        sweep = layer_gemms(dense.edges, roofline)
    longest = max(t.tokens for t in rows)
    return ModelFit(
        model,
        roofline,
        layer,
        head_rows.tolist(),
        head.tolist(),
        decode,
        prefill.line,
        prefill.factor(tables),
        longest,
        errors,
        random_fifths(sweep, layer, dense.grid, decode, rows, roofline),
        left_out(dense.grid, decode, rows, roofline),
        opinions,
        used,
        notes,
    )


def _decode(rows: Sequence[Timing], roofline: Roofline, source: str, notes: list[str]) -> Grid:
    """Lay out decode attention, averaging the tables of the nearest heads where the very ones are absent."""
    model = roofline.model
    rows, factor = folded(rows, model.num_heads, model.num_kv_heads)
    tables = head_tables(rows, model.num_heads, model.num_kv_heads)
    grids = [decode_grid([t for t in rows if (t.heads, t.kv_heads) == heads], roofline) for heads in tables]
    read_as = f", batches of {model.num_heads // factor} heads {factor} times as large" if factor > 1 else ""
    notes.append(f"decode attention: {source}, heads {_heads(tables)}{read_as}")
    outliers = [text for grid in grids for text in grid.outliers]
    if outliers:
        notes.append(f"decode outliers left out: {'; '.join(outliers)}")
    if len(grids) == 1:
        return grids[0]
    batch = np.intersect1d(grids[0].batch, grids[1].batch)
    kv = np.intersect1d(grids[0].kv, grids[1].kv)
    measured, seconds = np.zeros((len(batch), len(kv))), np.zeros((len(batch), len(kv)))
    for grid, weight in zip(grids, tables.values(), strict=True):
        common = np.ix_(np.isin(grid.batch, batch), np.isin(grid.kv, kv))
        measured += weight * grid.measured[common]
        seconds += weight * grid.seconds[common]
    return Grid(batch, kv, measured, seconds, outliers)


def _heads(tables: dict[tuple[int, int], float]) -> str:
    return " and ".join(f"{h}/{g}" for h, g in tables)
