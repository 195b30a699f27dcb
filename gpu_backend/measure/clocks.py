"""What a GPU does beside the work: clock, power, temperature, and why it runs slower than it could.

From nvidia-ml-py where it is installed, else from nvidia-smi, else nothing. Clocks are read, never set.
Untested on hardware.
"""

from __future__ import annotations

import csv
import subprocess
import time
from contextlib import suppress
from typing import Any  # pynvml has no types

import torch

SMI_FIELDS = ("clocks.sm", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")
NAMES = ("sm_mhz", "power_w", "temperature_c", "throttle")
SMI_SECONDS = 5.0  # between two calls of nvidia-smi, a process each

Reading = dict[str, float | str]


class Clocks:
    """Reads one device. An empty reading means that nothing can tell, as on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if self._is_cuda else ""
        self._nvml: Any = None
        self._handle: Any = None
        if self._is_cuda:
            self._nvml, self._handle = _nvml(self._uuid)
        self._last: tuple[float, Reading] | None = None

    def read(self) -> Reading:
        """Return sm_mhz, power_w, temperature_c and throttle (NVIDIA's bits of reasons, in hexadecimal)."""
        if not self._is_cuda:
            return {}
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                return self._ask()
        now = time.monotonic()
        if self._last is None or now - self._last[0] > SMI_SECONDS:
            self._last = now, _smi(self._uuid)
        return self._last[1]

    def _ask(self) -> Reading:
        nvml, handle = self._nvml, self._handle
        values = (
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )
        return dict(zip(NAMES, values, strict=True))


def _nvml(uuid: str) -> tuple[Any, Any]:
    """Return nvidia-ml-py and the device's handle, found by UUID since CUDA may number otherwise."""
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None, None


def _smi(uuid: str) -> Reading:
    query = ["nvidia-smi", "-i", uuid, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in next(csv.reader([text]), [])]
    found: Reading = {}
    for name, value in zip(NAMES, values, strict=False):
        with suppress(ValueError):
            found[name] = value if name == "throttle" else float(value)
    return found
