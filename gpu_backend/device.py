"""The device that computes: which one, what is missing if it cannot be used, how much memory is left."""

from __future__ import annotations

import gc
import os
import platform
from pathlib import Path

import torch

from simulator.errors import ConfigError, suggest

DEVICES = ("auto", "cpu", "cuda")
GIB = 2**30


def choose_device(name: str = "auto") -> torch.device:
    """Return the device named; `auto` takes CUDA where there is any. ConfigError says what is missing."""
    kind, _, index = name.partition(":")
    if kind not in DEVICES or not (index == "" or (kind == "cuda" and index.isdigit())):
        raise ConfigError(f"--device {name[:40]!r}: unknown{suggest(kind, DEVICES)}")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"--device cuda: {_why_no_cuda()}; --device cpu runs the same engine on the CPU")
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    device = torch.device("cuda", int(index or 0))
    torch.cuda.set_device(device)  # Triton and graph capture take the current device
    return device


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA; install a CUDA build of torch"
    if not Path("/dev/nvidiactl").exists():
        return "there is no NVIDIA driver on this machine (no /dev/nvidiactl)"
    return f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}) finds no usable GPU; see nvidia-smi"


def device_name(device: torch.device) -> str:
    """Return what a device is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def free_bytes(device: torch.device) -> int:
    """Return how many bytes an allocation could take now.

    An engine that is gone may wait for the garbage collector, and what PyTorch has freed for the driver.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_room(num_bytes: int, device: torch.device, what: str, remedy: str) -> None:
    """Raise ConfigError unless `num_bytes` fit on the device."""
    free = free_bytes(device)
    if num_bytes > free:
        raise ConfigError(
            f"{what} need {num_bytes / GIB:.2f} GiB, and {device} has {free / GIB:.2f} GiB free: {remedy}"
        )
