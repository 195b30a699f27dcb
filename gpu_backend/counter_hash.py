"""Random bits that are a function of their counters: no state, so no order of calls to keep.

A counter-based generator (Salmon et al., SC 2011) with the output function of SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014, figure 17) as its hash: whoever asks for the draw of (seed, position, token) gets the same
bits in any batch, on the CPU and on CUDA. A key owns the stream mix(key + i * GAMMA) for i = 1, 2, ..., which
is SplitMix64 started at the key. Two keys' first 2**17 draws overlap with a chance of 2**-46.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Hashes = NDArray[np.uint64]

GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd
STAGES = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # (shift right, multiply by)


def mix(z: Hashes) -> Hashes:
    """Return SplitMix64's output function of each 64-bit integer: a bijection without visible pattern."""
    for shift, factor in STAGES:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z


def fold(*parts: int | Hashes) -> Hashes:
    """Return one key for each tuple of integers 0 .. 2**64 - 1, (n,): arrays broadcast, and order counts."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = mix(key + np.uint64(GAMMA)) ^ np.asarray(part, np.uint64)
    return mix(key + np.uint64(GAMMA))


def draws(keys: Hashes, count: int) -> Hashes:
    """Return the first `count` draws of each key, (keys, count)."""
    return mix(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA))


def to_device(keys: Hashes, device: torch.device) -> Tensor:
    """Return the keys as a tensor, the same bits as int64."""
    return torch.from_numpy(keys.view(np.int64)).to(device)


def uniforms(keys: Tensor, count: int) -> Tensor:
    """Return the first `count` draws of each key as float32 in (0, 1), (keys, count).

    The 53 highest bits count, so a draw near 0 keeps 24 significant bits; none is 0 or 1.
    """
    steps = torch.arange(1, count + 1, device=keys.device) * _signed(GAMMA)
    z = keys[:, None] + steps
    for shift, factor in STAGES:
        z ^= _shift_right(z, shift)
        z *= _signed(factor)
    z = _shift_right(z, 11)
    return z.to(torch.float32).mul_(2.0**-53).add_(2.0**-54).clamp_(max=1 - 2.0**-24)


def _shift_right(z: Tensor, by: int) -> Tensor:
    """Shift zeros in from the left, where int64 would shift in the sign."""
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    """Return the int64 that has these 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits
