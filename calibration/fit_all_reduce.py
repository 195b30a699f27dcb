"""Fit all-reduces: vLLM's custom kernel in its two algorithms, and NCCL for what is too large for it.

Each is latency + bytes / bandwidth, by relative error. Which rows are whose follows vLLM's kernel
(csrc/custom_all_reduce.cuh: two GPUs and small messages in one shot) and the rows themselves, in which the
custom kernel ends below 4 MiB (the time trebles there). Another source's large messages are the second
opinion. Left out: PCIe, more than one server, all-reduce fused with the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.timings import Timing
from simulator.latency.all_reduce import CUSTOM_BELOW, AllReduce, Line
from simulator.latency.base import Floats

ONE_SHOT_BELOW = {4: 512 * 2**10, 8: 256 * 2**10}
"""Bytes; vLLM, csrc/custom_all_reduce.cuh. Two GPUs always take one shot."""

FEWEST = 4  # sizes on each side of the custom kernel's limit, without which no group is fitted


class AllReduceFit(NamedTuple):
    """One group's fit. `opinions`: by other source, the mean of fitted / theirs - 1 over large messages."""

    fitted: AllReduce
    residual: float  # mean absolute relative error on the rows fitted
    opinions: dict[str, float]


def fit_all_reduces(timings: Sequence[Timing], source: str) -> list[AllReduceFit]:
    """Fit every group size that a source measured on both sides of the custom kernel's limit."""
    rows = [t for t in timings if t.op == "all_reduce"]
    found = []
    for gpus in sorted({t.n for t in rows if t.source == source}):
        size, _ = _arrays(rows, source, gpus)
        small = int((size < CUSTOM_BELOW).sum())
        if min(small, len(size) - small) >= FEWEST:
            found.append(_fit(rows, source, gpus))
    return found


def _fit(rows: Sequence[Timing], source: str, gpus: int) -> AllReduceFit:
    size, seconds = _arrays(rows, source, gpus)
    custom = size < CUSTOM_BELOW
    first = custom & (size < ONE_SHOT_BELOW.get(gpus, CUSTOM_BELOW))
    second = custom & ~first
    one_shot = _line(size[first], seconds[first])
    two_shot = _line(size[second], seconds[second]) if second.sum() > 1 else one_shot
    fitted = AllReduce(gpus, one_shot, two_shot, _line(size[~custom], seconds[~custom]), 0.0, source)
    residual = float(np.mean(np.abs(fitted.seconds(size) / seconds - 1)))
    opinions = {}
    for other in sorted({t.source for t in rows if t.n == gpus} - {source}):
        theirs, measured = _arrays(rows, other, gpus)
        large = (theirs >= CUSTOM_BELOW) & (theirs <= size[-1])
        if large.sum() >= FEWEST:
            ratios = fitted.seconds(theirs[large]) / measured[large]
            opinions[other] = float(np.mean(ratios) - 1)
    error = max([residual, *(abs(value) for value in opinions.values())])
    return AllReduceFit(fitted._replace(error=error), residual, opinions)


def _arrays(rows: Sequence[Timing], source: str, gpus: int) -> tuple[Floats, Floats]:
    pairs = sorted((float(t.m), t.seconds) for t in rows if t.source == source and t.n == gpus)
    size, seconds = np.array(pairs).reshape(-1, 2).T
    return size, seconds


def _line(size: Floats, seconds: Floats) -> Line:
    """Fit latency and bandwidth by a robust loss on the log error."""
    from scipy.optimize import least_squares

    def at(logs: Floats) -> Line:
        latency, bandwidth = np.exp(logs).tolist()
        return Line(latency, bandwidth)

    first = np.log([seconds[0], size[-1] / seconds[-1]])
    solved = least_squares(
        lambda x: np.log(at(x).seconds(size) / seconds), first, loss="soft_l1", f_scale=0.1
    )
    return at(solved.x)
