"""CUDA graphs for steps that only decode: one launch in place of some hundred.

A step's decodes are padded to the next size of vLLM's ladder, and the graph captured at that size is replayed
on buffers that never move. Sizes are captured from the largest down and share one memory pool, since only one
replays at a time. A graph ends with the hidden states: logits of all sizes, of which each would keep its own,
are 2 GiB at 256 sequences and 128k tokens. Its block tables are as wide as the longest sequence, so that it
serves any context. Untested on hardware; the padding and the buffers are tested on the CPU, where "replaying"
computes again.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_backend.attention.base import AttentionBackend, AttentionInputs
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.model import Decoder

SIZES: tuple[int, ...] = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Numbers of decodes that are captured, vLLM 0.33's ladder; a larger step runs eagerly."""
WARM_UPS = 3


def sizes_for(max_num_seqs: int) -> tuple[int, ...]:
    """Return the sizes that steps of up to so many decodes are padded to.

    >>> sizes_for(3), sizes_for(9)
    ((1, 2, 4), (1, 2, 4, 8, 16))
    """
    return SIZES[: bisect.bisect_left(SIZES, min(max_num_seqs, SIZES[-1])) + 1]


Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Takes a computation; returns what repeats it on the same buffers and gives the same result tensor."""


class DecodeGraphs:
    """Captured decode steps of a model, at rising `sizes`. `width`: blocks of the longest sequence."""

    def __init__(
        self,
        decoder: Decoder,
        kv: KvTensors,
        attention: AttentionBackend,
        *,
        sizes: tuple[int, ...],
        width: int,
        capture: Capture | None = None,
    ) -> None:
        self.sizes = sizes
        self._decoder, self._kv, self._attention = decoder, kv, attention
        device, largest = kv.pages.device, self.sizes[-1]
        self._numbers = torch.zeros((4, largest), dtype=torch.int64, device=device)
        self._lens = torch.ones(largest, dtype=torch.int32, device=device)
        self._tables = torch.full((largest, width), kv.dummy_block, dtype=torch.int32, device=device)
        self._fill(0)
        capture = capture or _CudaCapture(device)
        self._replays = {size: capture(self._computation(size)) for size in reversed(self.sizes)}

    def fits(self, num_decodes: int) -> bool:
        """Say whether a graph is large enough."""
        return num_decodes <= self.sizes[-1]

    def run(self, numbers: NDArray[np.int64], tables: NDArray[np.int32]) -> Tensor:
        """Return the hidden states of n decodes, (n, hidden); the tensor is overwritten by the next call.

        `numbers` are their token ids, positions, slots and contexts, (4, n); `tables` (n, blocks).
        """
        n = numbers.shape[1]
        size = self.sizes[bisect.bisect_left(self.sizes, n)]
        self._numbers[:, :n].copy_(_staged(numbers, self._numbers.device), non_blocking=True)
        self._tables[:n, : tables.shape[1]].copy_(_staged(tables, self._tables.device), non_blocking=True)
        self._fill(n, size)
        return self._replays[size]()[:n]

    def _fill(self, first: int, size: int | None = None) -> None:
        """Let the rows from `first` on be padding: they read and write the dummy block."""
        rest = slice(first, size)
        self._numbers[:2, rest] = 0
        self._numbers[2, rest] = self._kv.dummy_block * self._kv.block_size
        self._numbers[3, rest] = 1
        self._tables[rest] = self._kv.dummy_block

    def _computation(self, size: int) -> Callable[[], Tensor]:
        ids, positions, slots, contexts = self._numbers[:, :size]
        lens, nothing = self._lens[:size], self._lens[:0]
        inputs = AttentionInputs(
            slots=slots,
            num_decodes=size,
            decode_tables=self._tables[:size],
            decode_lens=lens,
            decode_contexts=[self._tables.shape[1] * self._kv.block_size] * size,
            chunks=[],
            chunk_tables=self._tables[:0],
            chunk_starts=torch.zeros(1, dtype=torch.int32, device=slots.device),
            chunk_lens=nothing,
        )

        def compute() -> Tensor:
            lens.copy_(contexts)
            return self._decoder.forward(ids, positions, self._kv, inputs, self._attention)

        return compute


class _CudaCapture:
    """Captures computations into graphs that share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own gap

    def __call__(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # One stream for all: what cuBLAS and the allocator keep for a stream is kept once.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):  # kernels are compiled and chosen before they are captured
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            hidden = compute()

        def replay() -> Tensor:
            graph.replay()
            return hidden

        return replay


def _staged(array: NDArray[np.generic], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory() if device.type == "cuda" else tensor
