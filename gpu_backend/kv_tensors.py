"""The pages themselves: KV tensors on the device, and pools of blocks in the memories below it.

Device pages are (layers, 2, num_blocks, block_size, kv_heads, head_dim); the block after the last usable one
is a dummy that padding rows write to. In a tier below, a block of all layers is one contiguous piece, so
that it is one copy: (blocks, layers, 2, block_size, kv_heads, head_dim), pinned where the device is CUDA.
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

    def host_pool(self, num_blocks: int) -> Tensor:
        """Return memory of a tier below for this many blocks."""
        layers, _, _, *block = self.pages.shape
        return torch.zeros(
            (num_blocks, layers, 2, *block), dtype=self.pages.dtype, pin_memory=self.pages.is_cuda
        )

    def copy_out(self, blocks: Sequence[int], pool: Tensor, places: Sequence[int]) -> None:
        """Copy device blocks to places of a host pool."""
        staged = self.pages[:, :, list(blocks)].permute(2, 0, 1, 3, 4, 5)
        pool[list(places)] = staged.to(pool.device)

    def copy_in(self, pool: Tensor, places: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy places of a host pool to device blocks."""
        staged = pool[list(places)].to(self.pages.device)
        self.pages[:, :, list(blocks)] = staged.permute(1, 2, 0, 3, 4, 5)
