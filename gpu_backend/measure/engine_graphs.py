"""The engine's own CUDA graphs on the layers that are measured: a decode step as a replay runs it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_backend.graphs import Capture, DecodeGraphs
from gpu_backend.measure.bench import Bench, Unit
from gpu_backend.measure.points import Point

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Of the ladder, the sizes that are measured: a graph between two of them is priced in between."""


class EngineGraphs:
    """Graphs of a bench's first layers, captured when first asked for. Implements `session.Graphs`."""

    def __init__(self, bench: Bench, *, capture: Capture | None = None) -> None:
        most = min(SIZES[-1], bench.kv.dummy_block)
        self.sizes = tuple(size for size in SIZES if size <= most)
        self._bench = bench
        self._capture = capture
        self._made: dict[int, DecodeGraphs] = {}

    @classmethod
    def of(cls, bench: Bench) -> EngineGraphs | None:
        """Return the graphs that an engine on this device would replay; None where it replays none."""
        return cls(bench) if bench.device.type == "cuda" and bench.attention.name == "triton" else None

    def unit(self, point: Point, layers: int) -> Unit:
        """Return what replays a decode step once, with inputs copied before and logits made after."""
        numbers, tables = self.inputs(point)
        graphs, head = self.graphs(layers), self._bench.decoder.head
        return lambda: head(graphs.run(numbers, tables))

    def graphs(self, layers: int) -> DecodeGraphs:
        """Return the graphs of the first layers."""
        made = self._made.get(layers)
        if made is None:
            bench = self._bench
            longest = min(bench.config.max_model_len, bench.most_kv)
            made = self._made[layers] = DecodeGraphs(
                bench.first(layers),
                bench.kv,
                bench.attention,
                sizes=self.sizes,
                width=-(-longest // bench.block_size),
                capture=self._capture,
            )
        return made

    def inputs(self, point: Point) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the numbers and tables of a point's decodes, as `DecodeGraphs.run` takes them."""
        positions, inputs = self._bench.inputs(point)
        ids = np.arange(len(positions), dtype=np.int64) % self._bench.config.vocab_size
        slots, lens = inputs.slots.cpu().numpy(), inputs.decode_lens.cpu().numpy()
        numbers = np.stack([ids, positions.cpu().numpy(), slots, lens.astype(np.int64)])
        return numbers, inputs.decode_tables.cpu().numpy()
