"""The real thing behind the simulator's calls: a PyTorch engine driven by the same scheduler objects.

The only place that imports torch. On CUDA it validates the model of serving; on the CPU the same code serves
tests, teaching and the comparison of model and machine where there is no GPU.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_backend.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> object:
    """Load the engine when it is first asked for, and say what to install where PyTorch is missing."""
    if name != "Engine":
        raise AttributeError(f"module 'gpu_backend' has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("gpu_backend needs PyTorch: pip install 'servetwin[gpu]'", name="torch")
    from gpu_backend.engine import Engine

    return Engine
