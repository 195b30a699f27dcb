"""Which attention runs where: names to backends."""

from __future__ import annotations

import importlib.util

import torch

from gpu_backend.attention.base import AttentionBackend
from simulator.errors import ConfigError, suggest

NAMES = ["auto", "sdpa", "triton", "varlen"]


def choose_attention(
    name: str, device: torch.device, *, block_size: int = 16, dtype: torch.dtype = torch.bfloat16
) -> AttentionBackend:
    """Return the backend of this name; auto is triton on CUDA and sdpa elsewhere.

    Raises ConfigError, in one line, for an unknown name and for what cannot run here.
    """
    if name not in NAMES:
        raise ConfigError(f"attention: {name!r} is unknown{suggest(name, NAMES)}")
    if name == "auto":
        name = "triton" if device.type == "cuda" else "sdpa"
    if name == "triton":
        if device.type != "cuda":
            raise ConfigError(f"attention: triton needs a CUDA device, got {device.type}; sdpa runs anywhere")
        if importlib.util.find_spec("triton") is None:
            raise ConfigError("attention: triton is not installed; `pip install triton`, or choose sdpa")
        from gpu_backend.attention.triton_paged import TritonPaged

        return TritonPaged()
    if name == "varlen":
        from gpu_backend.attention.varlen import TorchVarlenPaged, why_unavailable

        reason = why_unavailable(device, block_size, dtype)
        if reason is not None:
            raise ConfigError(f"attention: varlen cannot run on {device.type}: {reason}; choose auto")
        return TorchVarlenPaged()
    from gpu_backend.attention.sdpa import SdpaGather

    return SdpaGather()
