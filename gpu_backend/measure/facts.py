"""What this machine is and what runs on it: the device, its driver, the libraries, the attention backends."""

from __future__ import annotations

import gc
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from gpu_backend.attention.choose import NAMES, choose_attention
from gpu_backend.device import choose_device, device_name
from simulator.errors import ConfigError
from simulator.specs import HARDWARE

LIBRARIES = ("servetwin", "torch", "triton", "safetensors", "nvidia-ml-py", "numpy")
DRIVER = Path("/proc/driver/nvidia/version")


def facts(device: torch.device) -> dict[str, object]:
    """Return what a reader of a measurement must know of the machine; None where there is no such thing."""
    is_cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if is_cuda else None
    return {
        "device": device.type,
        "name": device_name(device),
        "memory_bytes": properties.total_memory if properties else None,
        "capability": f"{properties.major}.{properties.minor}" if properties else None,
        "num_sms": properties.multi_processor_count if properties else None,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{name.replace("-", "_"): _version(name) for name in LIBRARIES},
        "attention": {name: why_not(name, device) for name in NAMES if name != "auto"},
        "cuda_misses": _cuda_misses(),
    }


def why_not(attention: str, device: torch.device) -> str | None:
    """Return why a backend cannot run on a device, None if it can."""
    try:
        choose_attention(attention, device)
    except ConfigError as error:
        return str(error).removeprefix("attention: ")
    return None


def hardware_of(device: torch.device) -> str | None:
    """Return the name of the device among the simulator's GPUs, None if it has none.

    The words of a name must all be in the device's, with its memory where a GPU comes in two sizes.
    """
    if device.type == "cpu":
        return "cpu-1core"
    memory = torch.cuda.get_device_properties(device).total_memory
    return hardware_named(torch.cuda.get_device_name(device), memory)


def device_label(device: torch.device, threads: int = 1) -> str:
    """Name a device as a file of timings does: the simulator's name for it, if it has one, before its own."""
    known = hardware_of(device) if device.type == "cuda" or threads == 1 else None
    return device_name(device) if known is None else f"{known}: {device_name(device)}"


def hardware_named(name: str, memory: int) -> str | None:
    """Find a GPU by CUDA's name for it and its memory (bytes).

    >>> hardware_named("NVIDIA A100-SXM4-80GB", 85_095_874_560)
    'a100-80gb-sxm'
    >>> hardware_named("NVIDIA H200", 150_000_000_000), hardware_named("Tesla T4", 15_000_000_000)
    ('h200', None)
    """
    words = re.split(r"[ -]+", name.lower())
    if "hbm3" in words and "h100" in words:
        words.append("sxm")
    fitting = []
    for gpu in HARDWARE.values():
        parts = [part for part in gpu.name.split("-") if not part.endswith("gb")]
        if all(any(word.startswith(part) for word in words) for part in parts):
            fitting.append((abs(gpu.memory - memory), gpu.name))
    return min(fitting)[1] if fitting else None


def release(device: torch.device) -> None:
    """Give back memory that PyTorch keeps for later: else it does not count as free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[0] if found else None


def _cuda_misses() -> str | None:
    try:
        choose_device("cuda")
    except ConfigError as error:
        return str(error)
    return None
