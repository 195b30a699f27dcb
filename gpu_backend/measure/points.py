"""Which points are measured: the grid of the latency model, section 4, in the order of their worth.

On CUDA the model's own: total tokens at powers of two and 1.5 times those, and just behind each tile edge,
where a matrix product jumps by up to 40 %; decodes over (batch, KV); chunks over prefixes; and mixed batches,
which nobody publishes and which are not the sum of their parts. On the CPU the runner pads tokens to a
ladder, so only its sizes occur, and the grid is what a minute allows. Left out: sizes in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product, zip_longest

import numpy as np

from gpu_backend.runner import LADDER

EDGES = (64, 128, 192, 256, 384, 512, 768, 1024)  # tile edges, tokens: latency model, section 3.2
SPREAD = 0.8  # of the logarithm of a skewed batch's lengths


@dataclass(frozen=True, slots=True)
class Point:
    """A thing to time: `decodes` are contexts, `chunks` are (tokens, context), `m` counts what else is.

    Contexts count the step's own tokens. `m`: tokens of dense and embedding, rows of head and sampler, blocks
    of copies, decodes of host terms.
    """

    op: str
    decodes: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    m: int = 0

    @property
    def tokens(self) -> int:
        """Rows that the point computes."""
        return self.m or len(self.decodes) + sum(tokens for tokens, _ in self.chunks)

    @property
    def kv(self) -> int:
        """Tokens that are read from pages."""
        return sum(self.decodes) + sum(context for _, context in self.chunks)


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes of one kind of device. `most_kv` and `longest` bound what a batch and a sequence may read."""

    dense: tuple[int, ...]
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    chunks: tuple[int, ...]
    prefixes: tuple[int, ...]
    mixed: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # tokens, decodes, KV of each decode
    rows: tuple[int, ...]
    running: tuple[int, ...]
    copies: tuple[int, ...] = (1, 4, 16, 64, 256)
    num_skewed: int = 10


CUDA = Grid(
    dense=tuple(sorted({size for i in range(14) for size in (2**i, 3 * 2**i // 2) if size <= 8192})),
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    lengths=(128, 512, 1024, 2048, 4096, 8192, 16384),
    chunks=(64, 256, 512, 1024, 2048, 4096, 8192),
    prefixes=(0, 1024, 4096, 8192, 16384),
    mixed=((32, 128, 512, 1024, 2048), (4, 16, 64, 128, 256), (256, 1024, 4096)),
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    running=(1, 16, 64, 128),
)
CPU = Grid(
    dense=tuple(size for size in LADDER if size <= 192 or size in (224, 256, 320, 384, 512)),
    batches=(1, 4, 8, 16),
    lengths=(32, 128, 256, 512),
    chunks=(16, 32, 64, 96, 256),
    prefixes=(0, 96, 256),
    mixed=((16, 48, 84), (2, 6, 12), (64, 256)),
    rows=(1, 4, 8, 16),
    running=(1, 4, 12),
    num_skewed=4,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Points of one kind that are measured together and written at once, the most worthy first."""

    name: str
    points: tuple[Point, ...]


def groups(grid: Grid, *, most_kv: int, longest: int, edges: bool, graphs: Iterable[int] = ()) -> list[Group]:
    """List what to measure, the most valuable first; what is dropped for want of time is at the end.

    Half the points of a kind come in a first pass over all kinds, so that a short run has some of each.
    """
    made = {name: [*points] for name, points in _kinds(grid, longest, edges, graphs)}
    fits = {name: [p for p in points if p.kv <= most_kv] for name, points in made.items()}
    first = [Group(name, tuple(points[: -(-len(points) // 2)])) for name, points in fits.items()]
    rest = [Group(f"{name}, rest", tuple(points[-(-len(points) // 2) :])) for name, points in fits.items()]
    return [group for group in (*first, *rest) if group.points]


def _kinds(
    grid: Grid, longest: int, edges: bool, graphs: Iterable[int]
) -> Iterator[tuple[str, Iterable[Point]]]:
    lengths = _within(grid.lengths, longest)
    yield "mixed batches", _mixed(grid, longest)
    yield "dense, by tokens", [Point("dense", m=m) for m in sorted(grid.dense, key=_is_between)]
    decodes = [Point("decode_attention", (kv,) * b) for b, kv in product(grid.batches, lengths)]
    yield "decode attention", decodes[::2] + decodes[1::2]
    chunks = product(grid.chunks, grid.prefixes)
    prefills = [Point("prefill_attention", (), ((s, s + p),)) for s, p in chunks if s + p <= longest]
    yield "chunks over prefixes", prefills[::2] + prefills[1::2]
    yield "head", [Point("head", m=rows) for rows in grid.rows]
    yield "host", [Point("host", m=running) for running in grid.running]
    yield "whole steps", _steps(grid, longest)
    yield "graph sizes", [Point("graph_step", (min(longest, 1024),) * size, m=size) for size in graphs]
    if edges:
        yield "behind tile edges", [Point("dense", m=edge + 1) for edge in EDGES]
    yield "skewed decodes", list(_skewed(grid, longest))
    yield "sampler", [Point("sampler", m=rows) for rows in grid.rows]
    yield "embedding", [Point("embedding", m=m) for m in grid.dense[::5]]
    yield "copies", [Point(op, m=m) for m in grid.copies for op in ("copy_out", "copy_in")]


def _is_between(size: int) -> bool:
    """Say whether a size is no power of two."""
    return size & (size - 1) > 0


def _mixed(grid: Grid, longest: int) -> list[Point]:
    """Cross chunk, decodes and their KV; prefix and number of chunks vary along, in random order."""
    tokens_in, batches, lengths = grid.mixed
    sizes = list(product(tokens_in, batches, _within(lengths, longest)))
    points = []
    for i in np.random.default_rng(0).permutation(len(sizes)).tolist():
        tokens, batch, kv = sizes[i]
        prefix = grid.prefixes[i % len(grid.prefixes)]
        parts = (tokens // 2, tokens - tokens // 2) if i % 4 == 3 else (tokens,)
        if prefix + tokens > longest:
            prefix = 0
        chunks = tuple((part, part + prefix) for part in parts if part + prefix <= longest)
        points.append(Point("mixed_attention", (kv,) * batch, chunks))
    return [point for point in points if point.chunks]


def _skewed(grid: Grid, longest: int) -> Iterator[Point]:
    """Draw decodes of unlike lengths: by turns one long among short ones, and log-normal ones."""
    rng = np.random.default_rng(1)
    short, typical, long = (min(grid.lengths[i], longest) for i in (0, len(grid.lengths) // 2, -1))
    for i in range(grid.num_skewed):
        batch = grid.batches[2 + i // 2 % (len(grid.batches) - 2)]
        drawn = np.exp(rng.normal(np.log(typical), SPREAD, batch)).astype(int).clip(1, long).tolist()
        yield Point("skewed_attention", tuple(drawn) if i % 2 else (long,) + (short,) * (batch - 1))


def _steps(grid: Grid, longest: int) -> list[Point]:
    """Choose whole steps, decodes and mixed by turns: they check what the parts add up to."""
    decodes = [(kv,) * b for kv in _within(grid.lengths, longest)[-1::-2] for b in grid.batches]
    tokens_in, batches, lengths = grid.mixed
    sizes = list(product(_within(tokens_in, longest), batches, _within(lengths, longest)))
    every = -(-len(sizes) // len(decodes))
    found = []
    for contexts, mixed in zip_longest(decodes, sizes[::every]):
        found.append(Point("step", contexts))
        if mixed is not None:
            tokens, n, kv = mixed
            found.append(Point("step", (kv,) * n, ((tokens, tokens),)))
    return found


def _within(sizes: Iterable[int], longest: int) -> list[int]:
    """Return the sizes, those beyond the longest cut to it."""
    return sorted({min(size, longest) for size in sizes})
