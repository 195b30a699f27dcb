"""Links between servers, or GPUs of one, by name: what their wires carry at most.

Rates are line rates of one direction in bytes/s: a data sheet's Gb/s over 8, a bus's GT/s times its lanes and
its coding. What software reaches is less; a scenario may say how much less, and never more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from simulator.errors import ConfigError, suggest
from simulator.specs.hardware import Hardware

LINE_RATES = {
    "eth-25g": 25e9 / 8,  # IEEE 802.3by
    "eth-100g": 100e9 / 8,  # IEEE 802.3bj
    "ib-200g": 200e9 / 8,  # InfiniBand HDR 4x, NVIDIA ConnectX-6 data sheet
    "ib-400g": 400e9 / 8,  # InfiniBand NDR 4x, NVIDIA ConnectX-7 data sheet
    "pcie4": 16e9 * 16 * 128 / 130 / 8,  # x16, 16 GT/s a lane, 128b/130b: PCI-SIG, PCIe base 4.0
    "pcie5": 32e9 * 16 * 128 / 130 / 8,  # x16, 32 GT/s a lane: PCI-SIG, PCIe base 5.0
}
NVLINK = "nvlink"
"""The GPU's own NVLink (`Hardware.nvlink`), all its links together."""
FASTEST = 900e9
"""No link between GPUs carries more a direction: NVLink 5, 1.8 TB/s in both (Blackwell data sheet)."""
DEFAULT_LATENCY = 10e-6
"""s a transfer: an assumption, of the order of an RDMA read set up by software."""


@dataclass(frozen=True, slots=True)
class Link:
    """What one side of a replica sends or receives: bytes/s, and s that every transfer takes besides."""

    bandwidth: float
    latency: float = DEFAULT_LATENCY

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and 0 <= self.latency < math.inf):
            raise ValueError(
                f"a link's bandwidth must be > 0 and its latency finite and >= 0, "
                f"got {self.bandwidth}, {self.latency}"
            )

    def seconds(self, num_bytes: float) -> float:
        """Return what a transfer takes on an idle link.

        >>> round(Link(LINE_RATES["ib-400g"], 0.0).seconds(4096 * 131072), 6)
        0.010737
        """
        return self.latency + num_bytes / self.bandwidth


def line_rate(name: str, gpus: Iterable[Hardware], where: str) -> float:
    """Return a named link's bytes/s between these GPUs; ConfigError for an unknown one, or one they lack."""
    known = (*LINE_RATES, NVLINK)
    if name not in known:
        raise ConfigError(f"{where}: {name[:60]!r} is unknown{suggest(name, known)}")
    if name != NVLINK:
        return LINE_RATES[name]
    rates = []
    for gpu in gpus:
        if gpu.nvlink is None:
            raise ConfigError(f"{where}: nvlink, but {gpu.name} has none")
        rates.append(gpu.nvlink)
    return min(rates)
