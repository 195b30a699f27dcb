"""The pages themselves: KV tensors on the device, and blocks of them in the memories below.

Device pages are (layers, 2, num_blocks, block_size, kv_heads, head_dim); the block after the last usable one
is a dummy that padding rows write to. Below the device a block of all layers is one contiguous piece, so that
it is one copy: (layers, 2, block_size, kv_heads, head_dim), pinned where the device is CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

STAGED_BYTES = 1 << 27
"""What a copy gathers on the device at a time: 64 blocks of an 8B model, some ms of PCIe."""


class KvTensors:
    """KV pages of one model on one device. `num_blocks` are the usable ones."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.dummy_block = num_blocks
        shape = (num_layers, 2, num_blocks + 1, block_size, num_kv_heads, head_dim)
        self.pages = torch.zeros(shape, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self.pages]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one layer's pages of K and of V, each (num_blocks + 1, block_size, kv_heads, head_dim)."""
        return self._layers[index]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks within the device: what copy-on-write needs."""
        self.pages[:, :, list(targets)] = self.pages[:, :, list(sources)]

    def copy_out(self, blocks: Sequence[int]) -> Tensor:
        """Copy blocks to host memory: (blocks, layers, 2, block_size, kv_heads, head_dim); they are there."""
        layers, two, _, *block = self.pages.shape
        shape = (len(blocks), layers, two, *block)
        host = torch.empty(shape, dtype=self.pages.dtype, pin_memory=self.pages.is_cuda)
        for part, index in self._parts(blocks):
            host[part].copy_(self.pages[:, :, index].permute(2, 0, 1, 3, 4, 5), non_blocking=True)
        if self.pages.is_cuda:
            torch.cuda.current_stream(self.pages.device).synchronize()
        return host

    def copy_in(self, pieces: Sequence[Tensor], blocks: Sequence[int]) -> None:
        """Copy blocks that `copy_out` made, one tensor each, to blocks of the device.

        On CUDA the device may still be at it, in line with its other work; pinned memory waits for that.
        """
        for part, index in self._parts(blocks):
            sources = pieces[part]
            staged = self.pages.new_empty((len(sources), *sources[0].shape))
            for target, source in zip(staged, sources, strict=True):
                target.copy_(source, non_blocking=True)
            self.pages[:, :, index] = staged.permute(1, 2, 0, 3, 4, 5)

    def _parts(self, blocks: Sequence[int]) -> Iterator[tuple[slice, Tensor]]:
        """Cut a list of blocks, so that copies need little memory beside the pages; with each's index."""
        index = torch.tensor(blocks, dtype=torch.int64)
        if self.pages.is_cuda:
            index = index.pin_memory().to(self.pages.device, non_blocking=True)
        block_bytes = self.pages[:, :, 0].numel() * self.pages.itemsize
        step = max(1, STAGED_BYTES // block_bytes)
        for first in range(0, len(blocks), step):
            part = slice(first, first + step)
            yield part, index[part]
