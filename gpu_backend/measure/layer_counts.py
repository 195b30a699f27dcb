"""How many layers of a model are timed: two and four, or two and all where a CPU can hold them."""

from __future__ import annotations

import torch

from gpu_backend.decoder_config import DecoderConfig

LAYERS = (2, 4)
"""Layer counts that are timed. What all layers take is extrapolated from them."""

WHOLE_BYTES = 1 << 30  # of weights, up to which a CPU times all layers instead: nothing is extrapolated


def layer_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Return the bytes of one layer's matrices."""
    queries, keys, values = config.qkv_sizes
    return config.hidden_size * (2 * queries + keys + values + 3 * config.intermediate_size) * dtype.itemsize


def timed_layers(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
    """Return the layer counts that are timed here, few and many.

    A CPU's times scatter, and all layers extrapolated from two and four scatter three times as much.
    """
    size = config.num_layers * layer_bytes(config, dtype)
    if device.type == "cpu" and config.num_layers > LAYERS[0] and size <= WHOLE_BYTES:
        return LAYERS[0], config.num_layers
    return LAYERS
