"""Which attention runs where: names to backends."""

from __future__ import annotations

import torch

from gpu_backend.attention.base import AttentionBackend
from gpu_backend.attention.sdpa import SdpaGather
from simulator.errors import ConfigError, suggest

NAMES = ["auto", "sdpa"]


def choose_attention(name: str, device: torch.device) -> AttentionBackend:
    """Return the backend of this name. Raises ConfigError, in one line, for an unknown name."""
    if name not in NAMES:
        raise ConfigError(f"attention: {name!r} is unknown{suggest(name, NAMES)}")
    return SdpaGather()
