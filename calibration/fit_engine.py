"""Fit a profile to what `servetwin gpu measure` timed: this engine, this model, this device, nothing else.

    step = once(m) + layers * dense[m] + head[sampled] + decode attention + prefill attention + host

Dense and head are tables at the measured sizes, decode attention a grid over (batch, KV), prefill attention
a line in chunks, tokens and query-key pairs, chunks behind prefixes included; the host a line in sequences.
Fitted on these operations alone: whole steps, mixed and skewed batches check what they add up to. Left out:
the residuals of a GEMM's shape, since nothing is transferred to another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.engine_timings import EngineRows, element_size, peaks_of, whole
from calibration.fit_attention import Grid, PrefillLine, decode_grid, prefill_sums
from calibration.fit_dense import monotone
from calibration.timings import HOST, Timing
from simulator.errors import ConfigError
from simulator.latency.base import Floats
from simulator.latency.graphs import graph_sizes
from simulator.latency.profile import MAX_TOKENS
from simulator.latency.roofline import Efficiency, Roofline
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model

FEWEST = {"dense": 2, "head": 2, "decode_attention": 4, "prefill_attention": 4}
UNPADDED = (1, 2)  # sizes under which no step is padded
FITTED = ("gemm_overhead", "compute", "bandwidth", "sharpness")


class HostLine(NamedTuple):
    """Seconds that the host adds to a step: per_step + per_seq * sequences."""

    per_step: float
    per_seq: float
    error: float  # mean absolute relative error on its own rows
    kind: str
    source: str


class Link(NamedTuple):
    """Copies of KV blocks to host memory and back: latency + bytes / bandwidth."""

    op: str
    latency: float  # seconds
    bandwidth: float  # bytes/s


class EngineFit(NamedTuple):
    """All that was fitted; seconds. Dense and attention of one layer, once and head of the whole model."""

    model: Model
    hardware: Hardware
    rows: EngineRows
    roofline: Roofline
    tokens: Floats
    layer: Floats
    once: tuple[float, float]  # constant, per token
    head_rows: Floats
    head: Floats
    decode: Grid
    prefill: PrefillLine
    longest_prefill: int
    host: HostLine
    links: list[Link]
    sizes: list[int]  # that a step's tokens are padded to
    notes: list[str]


def fit_engine(rows: EngineRows, hardware: Hardware, model: Model) -> EngineFit:
    """Fit every term; ConfigError names the operation that lacks rows."""
    for op, fewest in FEWEST.items():
        if len(rows.of(op)) < fewest:
            raise ConfigError(f"the timings hold {len(rows.of(op))} {op} rows; a profile needs {fewest}")
    notes: list[str] = []
    per_token = _slope(rows.of("embedding"))
    dense = whole(rows.of("dense"), rows.settings, model.num_layers, per_token)
    tokens = np.array([float(t.m) for t in dense])
    layer = monotone(np.array([(t.seconds - t.fixed) / model.num_layers for t in dense]))
    once = (dense[0].fixed - per_token * dense[0].m, per_token)
    roofline = _roofline(tokens, layer, hardware, model, rows.source)
    attention = {op: per_layer(rows, op, model) for op in ("decode_attention", "prefill_attention")}
    host = _host(rows, notes)
    _tell_launch(rows, dense[0].seconds, notes)
    head_rows, head = _head(rows)
    return EngineFit(
        model,
        hardware,
        rows,
        roofline,
        tokens,
        layer,
        (max(once[0], 0.0), once[1]),
        head_rows,
        head,
        decode_grid(attention["decode_attention"], roofline),
        prefill_line(attention["prefill_attention"], roofline, rows.on_cpu),
        max(t.tokens + t.kv for t in attention["prefill_attention"]),
        host,
        _links(rows),
        _sizes(rows, notes),
        notes,
    )


def per_layer(rows: EngineRows, op: str, model: Model) -> list[Timing]:
    """Return one layer's share of an attention operation, what comes once a step included."""
    every = whole(rows.of(op), rows.settings, model.num_layers)
    return [t._replace(seconds=t.seconds / model.num_layers, fixed=0.0) for t in every]


def _slope(rows: Sequence[Timing]) -> float:
    """Return the seconds per token of what comes before the layers; 0 where it was not measured."""
    if len(rows) < 2:
        return 0.0
    m, seconds = (np.array([float(getattr(t, name)) for t in rows]) for name in ("m", "seconds"))
    return max(float(np.polyfit(m, seconds, 1, w=1 / seconds)[0]), 0.0)


def _roofline(tokens: Floats, layer: Floats, hardware: Hardware, model: Model, source: str) -> Roofline:
    """Fit the soft-max roofline's numbers to one layer, for sizes beyond the measured ones."""
    from scipy.optimize import least_squares

    flops, bandwidth = peaks_of(hardware)
    size = element_size(source)
    start = Roofline(flops, bandwidth, model, size, size)

    def at(logs: Floats) -> Roofline:
        fitted = dict(zip(FITTED, np.exp(logs).tolist(), strict=True))
        small = {"elementwise_overhead": fitted["gemm_overhead"]}
        return start.with_efficiency(Efficiency(**{**start.efficiency._asdict(), **fitted, **small}))

    first = np.log([getattr(start.efficiency, name) for name in FITTED])
    bounds = (np.log([1e-8, 1e-4, 1e-4, 1.0]), np.log([1e-2, 1.0, 1.0, 8.0]))
    solved = least_squares(
        lambda x: np.log(at(x).layer(tokens) / layer), first, bounds=bounds, loss="soft_l1"
    )
    return at(solved.x)


def prefill_line(rows: Sequence[Timing], roofline: Roofline, one_by_one: bool) -> PrefillLine:
    """Fit the prefill line by relative error; the constant is each chunk's where chunks attend one by one."""
    from scipy.optimize import nnls

    _, tokens, pairs = prefill_sums(rows)
    seconds = np.array([t.seconds for t in rows])
    terms = np.stack([np.ones(len(rows)), tokens, pairs], axis=1)
    (constant, per_token, per_work), _ = nnls(terms / seconds[:, None], np.ones(len(rows)))
    per_work = max(float(per_work), roofline.pair_flops / roofline.flops)
    start = (0.0, float(constant)) if one_by_one else (float(constant), 0.0)
    return PrefillLine(*start, float(per_token), per_work)


def _head(rows: EngineRows) -> tuple[Floats, Floats]:
    """Return the head by sampled rows; on a GPU the sampler is added, on a CPU it is in the host's rows."""
    head = rows.of("head")
    at = np.array([float(t.batch) for t in head])
    seconds = monotone(np.array([t.seconds for t in head]))
    sampler = rows.of("sampler")
    if sampler and not rows.on_cpu:
        sizes = [float(t.batch) for t in sampler]
        seconds = seconds + np.interp(at, sizes, monotone(np.array([t.seconds for t in sampler])))
    return at, seconds


def _host(rows: EngineRows, notes: list[str]) -> HostLine:
    """Fit the host's line to schedule + build + loop (+ sync on a CPU, where it waits for nobody)."""
    from scipy.optimize import nnls

    ops = [op for op in HOST if op != "host_launch" and (rows.on_cpu or op != "host_sync")]
    tables = [{t.batch: t.seconds for t in rows.of(op)} for op in ops]
    sizes = sorted(set.intersection(*(set(table) for table in tables)))
    words = ", ".join(op.removeprefix("host_") for op in ops)
    if not sizes:
        notes.append("host terms were not measured: taken as none")
        return HostLine(0.0, 0.0, 1.0, "not measured", "no host_* rows in the timings")
    if not rows.on_cpu:
        notes.append("host_sync left out: on a GPU it holds the wait for the device")
    total = np.array([sum(table[size] for table in tables) for size in sizes])
    terms = np.stack([np.ones(len(sizes)), np.array(sizes, dtype=np.float64)], axis=1)
    found, _ = nnls(terms / total[:, None], np.ones(len(sizes)))
    error = float(np.mean(np.abs(terms @ found / total - 1)))
    where = f"{words} in steps of {', '.join(map(str, sizes))} decodes of the engine's own loop"
    return HostLine(float(found[0]), float(found[1]), error, "measured", where)


def _links(rows: EngineRows) -> list[Link]:
    """Fit latency and bandwidth of copies in each direction, by relative error."""
    from scipy.optimize import nnls

    links = []
    for op in ("copy_out", "copy_in"):
        found = rows.of(op)
        if len(found) < 2:
            continue
        moved = np.array([float(t.m * t.n) for t in found])
        seconds = np.array([t.seconds for t in found])
        terms = np.stack([np.ones(len(found)), moved], axis=1) / seconds[:, None]
        (latency, per_byte), _ = nnls(terms, np.ones(len(found)))
        if per_byte > 0:
            links.append(Link(op, float(latency), 1 / float(per_byte)))
    return links


def _sizes(rows: EngineRows, notes: list[str]) -> list[int]:
    """Return what a step's tokens are padded to: the graphs' sizes, then the engine's own ladder."""
    settings = rows.settings
    graphs = sorted({t.m for t in rows.of("graph_step")})
    ladder = list(settings.padded_to)
    if ladder and settings.padded_beyond:
        ladder += range(ladder[-1] + settings.padded_beyond, MAX_TOKENS + 1, settings.padded_beyond)
    if not graphs and not ladder:
        notes.append("no settings beside the timings say what steps are padded to: taken as not at all")
        return list(UNPADDED)
    if graphs:
        notes.append(f"decodes replay CUDA graphs of up to {graphs[-1]} rows")
    above = [size for size in ladder if not graphs or size > graphs[-1]]
    return [*graphs, *above] if len(graphs) + len(above) > 1 else graph_sizes(max(graphs))


def _tell_launch(rows: EngineRows, shortest: float, notes: list[str]) -> None:
    """Say what an eager step takes to launch, and whether that is longer than its kernels may take."""
    launch = max((t.seconds for t in rows.of("host_launch")), default=0.0)
    if launch > shortest:
        notes.append(
            f"a step without a graph (mixed ones among them) takes {launch * 1e3:.1f} ms to launch, the "
            f"smallest one's kernels {shortest * 1e3:.1f} ms: small steps without a graph are priced too low"
        )
