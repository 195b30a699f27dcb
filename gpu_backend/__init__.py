"""The real thing behind the simulator's calls: a PyTorch engine driven by the same scheduler objects.

The only place that imports torch. On CUDA it validates the model of serving; on the CPU the same code serves
tests, teaching and the comparison of model and machine where there is no GPU.

    from gpu_backend import Engine

    Engine("tiny-cpu", device="cpu", clock="predicted").replay()
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_backend.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> object:
    """Load torch when the engine is first asked for: the command's help needs none. Say if it is missing."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("gpu_backend needs PyTorch: pip install 'servetwin[gpu]'", name="torch")
    from gpu_backend.engine import Engine

    return Engine
