"""What is timed: a few layers of a model with random weights over random paged KV, a callable a point.

Two layer counts, each layer with weights and KV of its own, so that a replay of several layers finds its
weights cold in the L2 cache, as a whole model does; t(L) = fixed + L * layer gives all layers. Weights, KV
and queries are random, never zero: power draw, and so the clock, depends on the data. Block tables are drawn
without replacement, so that no block is read twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gpu_backend.attention.base import AttentionBackend, AttentionInputs, ChunkRows
from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.device import free_bytes
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.loader import random_decoder
from gpu_backend.measure.layer_counts import LAYERS, timed_layers
from gpu_backend.measure.points import Point
from gpu_backend.model import Decoder
from gpu_backend.sampling import SamplingParams, sample
from simulator.errors import ConfigError

MOST_KV = {"cuda": 1 << 19, "cpu": 1 << 13}  # tokens of KV that a batch reads at most
SPARE_BLOCKS = 512  # for last blocks that are not full, one a sequence
KV_SHARE = 0.5  # of the memory left over that pages may take
Unit = Callable[[], object]


@dataclass(slots=True)
class NoAttention:
    """Writes K and V and attends to nothing: what is left is the dense part. Results are old numbers."""

    inner: AttentionBackend
    out: Tensor  # (rows, heads, head_dim)
    name: str = "none"

    def write(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self.inner.write(k, v, keys, values, slots)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        return self.out[: len(q)]


@dataclass(slots=True)
class Watch:
    """A stopwatch on a part of a forward pass: for a device that works while one waits."""

    seconds: float = 0.0

    def timed(self, unit: Callable[[], Tensor]) -> Tensor:
        began = time.perf_counter()
        out = unit()
        self.seconds += time.perf_counter() - began
        return out


@dataclass(slots=True)
class Watched:
    """Attends as the backend within does, with a stopwatch on it."""

    inner: AttentionBackend
    watch: Watch
    name: str = "watched"

    def write(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self.inner.write(k, v, keys, values, slots)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        return self.watch.timed(
            lambda: self.inner.attend(q, keys, values, inputs, scale=scale, window=window)
        )


@dataclass(slots=True)
class InForward:
    """Attention or the head, timed where it runs: in a forward pass, whose weights fill the caches.

    Measured on one AVX512 core, 8 decodes of 128 tokens of the teaching model: attention 216 us a layer in a
    loop of its own, 275 in place; the head 1.8 ms and 2.7. On the CPU `watch` has what it took in the last
    call; elsewhere it is what `whole` takes more than `without`.
    """

    whole: Unit
    without: Unit
    watch: Watch

    def __call__(self) -> object:
        self.watch.seconds = 0.0
        return self.whole()


@dataclass(slots=True)
class Uncaptured:
    """Talks to the host, or is a graph already: no graph can hold it."""

    unit: Unit

    def __call__(self) -> object:
        return self.unit()


class Bench:
    """A model's first layers on a device, and a callable for each point. Random, the same for a seed."""

    def __init__(
        self,
        config: DecoderConfig,
        device: torch.device,
        dtype: torch.dtype,
        attention: AttentionBackend,
        *,
        block_size: int = 16,
        most_kv: int | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config  # of the whole model
        self.device = device
        self.dtype = dtype
        self.attention = attention
        self.block_size = block_size
        self.layers = timed_layers(config, device, dtype)
        most = max(*self.layers, *LAYERS)
        self.decoder = random_decoder(_of_layers(config, most), device, dtype, seed)
        per_token = 2 * most * config.num_kv_heads * config.head_dim * dtype.itemsize
        room = int(KV_SHARE * free_bytes(device)) // per_token
        self.most_kv = min(most_kv or MOST_KV[device.type], room) // block_size * block_size
        if self.most_kv < block_size:
            raise ConfigError(f"{device} has no memory left for a single KV block beside {most} layers")
        self.kv = self._pages(most, self.most_kv // block_size + SPARE_BLOCKS)
        self._rng = np.random.default_rng(seed)

    @property
    def kernels(self) -> str:
        """Name what computes, in the words of `Engine.kernels`."""
        return f"servetwin {self.attention.name}/{self.device.type}/{str(self.dtype).removeprefix('torch.')}"

    def unit(self, point: Point, layers: int) -> Unit:
        """Return what computes a point once, with so many layers where it has any."""
        if point.op in ("dense", "embedding"):
            return self._dense(point.m, layers if point.op == "dense" else 0)
        if point.op.endswith("_attention"):
            return self._attention(point, layers)
        if point.op == "step":
            return self._step(point, layers)
        if point.op == "head":
            return self._head(point.m, layers)
        if point.op == "sampler":
            logits = self._normal(point.m, self.config.vocab_size).float()
            greedy, positions = [SamplingParams()] * point.m, [1] * point.m
            return lambda: sample(logits, greedy, positions)
        if point.op in ("copy_out", "copy_in"):
            return self._copy(point)
        raise ValueError(f"no unit computes {point.op}")

    def first(self, layers: int) -> Decoder:
        """Return a decoder of the first layers only; none of them for what comes before the layers."""
        return replace(self.decoder, layers=self.decoder.layers[:layers])

    def inputs(self, point: Point) -> tuple[Tensor, AttentionInputs]:
        """Return positions and attention inputs of a batch on blocks drawn at random."""
        size = self.block_size
        spans = [(1, context) for context in point.decodes] + list(point.chunks)
        counts = [-(-context // size) for _, context in spans]
        blocks = self._rng.permutation(self.kv.dummy_block)[: sum(counts)].astype(np.int32)
        n, width = len(point.decodes), max(counts, default=1)
        tables = np.zeros((len(spans), width), dtype=np.int32)
        tables[np.arange(width) < np.array(counts)[:, None]] = blocks
        where = [np.arange(context - tokens, context) for tokens, context in spans]
        slots = [row[at // size] * size + at % size for row, at in zip(tables, where, strict=True)]
        starts = n + np.cumsum([0] + [tokens for tokens, _ in point.chunks])
        firsts = starts[:-1].tolist()
        chunks = [ChunkRows(f, *chunk) for f, chunk in zip(firsts, point.chunks, strict=True)]
        lens = np.array([context for _, context in spans], dtype=np.int32)
        inputs = AttentionInputs(
            slots=self._to_device(np.concatenate(slots).astype(np.int64)),
            num_decodes=n,
            decode_tables=self._table(tables[:n], counts[:n]),
            decode_lens=self._to_device(lens[:n]),
            decode_contexts=list(point.decodes),
            chunks=chunks,
            chunk_tables=self._table(tables[n:], counts[n:]),
            chunk_starts=self._to_device((starts - n).astype(np.int32)),
            chunk_lens=self._to_device(lens[n:]),
        )
        return self._to_device(np.concatenate(where).astype(np.int64)), inputs

    # Units.

    def _dense(self, tokens: int, layers: int) -> Callable[[], Tensor]:
        sequence = min(tokens, self.config.max_model_len)
        chunks = ((sequence, sequence),) * (tokens // sequence)
        rest = tokens - sequence * len(chunks)
        batch = Point("dense", (), (*chunks, *([(rest, rest)] if rest else [])))
        return self._forward(batch, layers, self._no_attention(tokens))

    def _no_attention(self, tokens: int) -> NoAttention:
        out = self._normal(tokens, self.config.num_heads, self.config.head_dim)
        return NoAttention(self.attention, out)

    def _forward(self, batch: Point, layers: int, attention: AttentionBackend) -> Callable[[], Tensor]:
        positions, inputs = self.inputs(batch)
        ids = self._to_device(self._rng.integers(0, self.config.vocab_size, batch.tokens))
        decoder = self.first(layers)
        # fresh inputs each time: a backend plans once a step
        return lambda: decoder.forward(ids, positions, self.kv, replace(inputs), attention)

    def _step(self, point: Point, layers: int) -> Unit:
        forward = self._forward(point, layers, self.attention)
        n = len(point.decodes)
        ends = n - 1 + np.cumsum([tokens for tokens, _ in point.chunks], dtype=np.int64)
        last = self._to_device(np.concatenate([np.arange(n), ends]))
        return self._capturable(lambda: self.decoder.head(forward()[last]).argmax(-1))

    def _attention(self, point: Point, layers: int) -> InForward:
        watch, is_cpu = Watch(), self.device.type == "cpu"
        whole = self._forward(point, layers, Watched(self.attention, watch) if is_cpu else self.attention)
        without = self._forward(point, layers, self._no_attention(point.tokens))
        return InForward(self._capturable(whole), without, watch)

    def _capturable(self, unit: Unit) -> Unit:
        """Mark what a backend that plans on the host has a part in."""
        return Uncaptured(unit) if self.attention.name == "sdpa" else unit

    def _head(self, rows: int, layers: int) -> InForward:
        watch, forward = Watch(), self._dense(rows, layers)
        return InForward(lambda: self._head_of(forward(), watch), forward, watch)

    def _head_of(self, hidden: Tensor, watch: Watch) -> Tensor:
        return watch.timed(lambda: self.decoder.head(hidden))

    def _copy(self, point: Point) -> Unit:
        blocks = self._rng.permutation(self._whole.dummy_block)[: point.m].tolist()
        if point.op == "copy_out":
            return Uncaptured(lambda: self._whole.copy_out(blocks))
        pieces = list(self._whole.copy_out(blocks))
        return Uncaptured(lambda: self._whole.copy_in(pieces, blocks))

    # Tensors.

    @cached_property
    def _whole(self) -> KvTensors:
        """Pages of all layers, for copies."""
        return self._pages(self.config.num_layers, 257)

    def _pages(self, layers: int, blocks: int) -> KvTensors:
        config, size = self.config, self.block_size
        heads, dim = config.num_kv_heads, config.head_dim
        kv = KvTensors(layers, blocks, size, heads, dim, dtype=self.dtype, device=self.device)
        kv.pages.normal_()
        return kv

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def _table(self, tables: np.ndarray, counts: list[int]) -> Tensor:
        return self._to_device(np.ascontiguousarray(tables[:, : max(counts, default=1)]))

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _of_layers(config: DecoderConfig, layers: int) -> DecoderConfig:
    """Return the model with so many layers, the first of it as often as needed."""
    sliding = [config.sliding_layers[i % config.num_layers] for i in range(layers) if config.sliding_layers]
    return replace(config, num_layers=layers, sliding_layers=tuple(sliding))
