"""The pages themselves: KV tensors on the device, and blocks of them in the memories below.

Device pages are (layers, 2, num_blocks, block_size, kv_heads, head_dim); the block after the last usable one
is a dummy that padding rows write to. Below the device a block of all layers is one contiguous piece, so that
it is one copy: (layers, 2, block_size, kv_heads, head_dim), pinned where the device is CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
        """Copy blocks to host memory: (blocks, layers, 2, block_size, kv_heads, head_dim)."""
        staged = self.pages[:, :, list(blocks)].permute(2, 0, 1, 3, 4, 5)
        pinned = torch.empty(staged.shape, dtype=staged.dtype, pin_memory=self.pages.is_cuda)
        return pinned.copy_(staged)

    def copy_in(self, pieces: Sequence[Tensor], blocks: Sequence[int]) -> None:
        """Copy blocks that `copy_out` made, one tensor each, to blocks of the device."""
        staged = torch.stack(list(pieces)).to(self.pages.device)
        self.pages[:, :, list(blocks)] = staged.permute(1, 2, 0, 3, 4, 5)
