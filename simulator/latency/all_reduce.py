"""What a tensor-parallel group spends on communication: all-reduces in the layers, a gather of the logits.

Every layer sums its ranks' results twice (after attention and after the MLP) and the embedding once; all
are all-reduces of tokens * hidden size numbers (Megatron-LM, Shoeybi et al. 2019, section 3). Up to a limit
vLLM's own kernel runs, in one shot (every rank reads all others) or in two (reduce-scatter, all-gather),
whichever is the quicker; beyond it NCCL. Each is latency + bytes / bandwidth. The logits of sampled rows are
gathered by NCCL, which is half an all-reduce. Left out: fusion with the norms, overlap with computation,
more than one server, contention on the links.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.errors import ConfigError
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section
from simulator.specs.hardware import HARDWARE, Hardware
from simulator.specs.models import Model

CUSTOM_BELOW = 4 * 2**20
"""Bytes from which NCCL takes over from vLLM's kernel on A100, as AIConfigurator's vLLM rows show."""

NUMBER_BYTES = 2  # of an activation


class Line(NamedTuple):
    """latency + bytes / bandwidth; seconds and bytes/s."""

    latency: float
    bandwidth: float

    def seconds(self, num_bytes: ArrayLike) -> Floats:
        """Return the seconds of messages of this size."""
        return np.asarray(self.latency + np.asarray(num_bytes, dtype=np.float64) / self.bandwidth)


class AllReduce(NamedTuple):
    """All-reduces of one group of GPUs; `error` is the relative error of their level, for `draws`."""

    gpus: int
    one_shot: Line
    two_shot: Line
    nccl: Line
    error: float
    source: str
    has_custom: bool = True  # vLLM's kernel needs all GPUs linked by NVLink, or two

    def seconds(self, num_bytes: ArrayLike) -> Floats:
        """Return the seconds of one all-reduce of this many bytes."""
        size = np.asarray(num_bytes, dtype=np.float64)
        nccl = self.nccl.seconds(size)
        if not self.has_custom:
            return nccl
        custom = np.minimum(self.one_shot.seconds(size), self.two_shot.seconds(size))
        return np.where(size < CUSTOM_BELOW, custom, nccl)

    def gather(self, num_bytes: ArrayLike) -> Floats:
        """Return the seconds in which all ranks' parts, this many bytes together, reach every rank."""
        size = np.asarray(num_bytes, dtype=np.float64)
        return np.where(size > 0, self.nccl.seconds(size / 2), 0.0)


_SOURCE = "all-reduce of vLLM 0.14 on A100-SXM4 (AIConfigurator 095f58a)"
A100_SXM = {
    2: AllReduce(
        2, Line(5.053e-6, 99.95e9), Line(5.053e-6, 99.95e9), Line(45.54e-6, 97.74e9), 0.529, _SOURCE
    ),
    4: AllReduce(
        4, Line(5.293e-6, 27.77e9), Line(10.63e-6, 67.99e9), Line(62.20e-6, 72.57e9), 0.487, _SOURCE
    ),
    8: AllReduce(
        8, Line(5.791e-6, 11.78e9), Line(14.73e-6, 71.94e9), Line(71.22e-6, 63.27e9), 0.411, _SOURCE
    ),
}
"""What `calibrate fit` finds in AIConfigurator's table: off by 2-5 % on its rows; the error is how much
slower large messages are than in Vidur's NCCL on a DGX A100, the second opinion. Assumed elsewhere."""
GUESS = 0.5  # relative error of a level that nobody measured; assumed, as far as A100's sources disagree
A100_NVLINK = HARDWARE["a100-80gb-sxm"].nvlink or 0.0


class Communication(NamedTuple):
    """Seconds of all layers' all-reduces by tokens, and of the logits' gather by sampled rows."""

    dense: Floats
    head: Floats
    error: float
    source: str

    def times(self, factor: float) -> Communication:
        """Return this much longer communication."""
        return self._replace(dense=self.dense * factor, head=self.head * factor)


def communication(all_reduce: AllReduce, rank: Model, tokens: ArrayLike, rows: ArrayLike) -> Communication:
    """Lay out what a group of ranks communicates for each of `tokens` and of sampled `rows`."""
    computed = np.asarray(tokens, dtype=np.float64)
    layers = (2 * rank.num_layers + 1) * all_reduce.seconds(NUMBER_BYTES * rank.hidden_size * computed)
    vocabulary = rank.vocab_size * all_reduce.gpus
    logits = all_reduce.gather(NUMBER_BYTES * vocabulary * np.asarray(rows, dtype=np.float64))
    return Communication(layers, logits, all_reduce.error, all_reduce.source)


def all_reduce_of(file: Section, gpus: int) -> AllReduce | None:
    """Return the all-reduce that a profile measured for a group of so many GPUs, None if it did not."""
    groups = Section(file.fields.get("all_reduce", {}), f"{file.place}: all_reduce")
    if str(gpus) not in groups.fields:
        return None
    group = groups.section(str(gpus))
    one_shot, two_shot, nccl = (
        Line(group.number(f"{name}_us") * 1e-6, group.number(f"{name}_gb_s", 1e-3, 1e6) * 1e9)
        for name in ("one_shot", "two_shot", "nccl")
    )
    error, source = group.number("error", 0, 10), group.text("source")
    return AllReduce(gpus, one_shot, two_shot, nccl, error, source)


def estimated(hardware: Hardware, gpus: int) -> AllReduce:
    """Return A100's all-reduce with its bandwidths moved by the links' speed, NVLink's or PCIe's."""
    if gpus not in A100_SXM:
        known = ", ".join(str(n) for n in A100_SXM)
        raise ConfigError(f"parallel.tensor_parallel_size: {gpus} is not priced; one of 1, {known}")
    fitted = A100_SXM[gpus]
    if hardware.nvlink == A100_NVLINK:
        return fitted
    link, kind = (hardware.nvlink, "NVLink") if hardware.nvlink else (hardware.pcie, "PCIe")
    ratio = link / A100_NVLINK
    one_shot, two_shot, nccl = (
        line._replace(bandwidth=line.bandwidth * ratio)
        for line in (fitted.one_shot, fitted.two_shot, fitted.nccl)
    )
    source = f"all-reduce estimated: A100-SXM's, bandwidth x {ratio:.2g} for {kind}, not measured"
    has_custom = hardware.nvlink is not None or gpus == 2
    return AllReduce(gpus, one_shot, two_shot, nccl, max(fitted.error, GUESS), source, has_custom)
