"""What clients do besides sending: look something up first, and give up.

A retrieval step takes its time before the server sees the request: part of the latency that the user
feels, not of the server's TTFT. A client that gives up (a closed page, a better idea) does so however far
its request is; a server's own time limit is `Workload.timeout`. Left out: clients that try again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.errors import ConfigError

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

Delay = float | Mapping[str, Mapping[str, float]]
"""Seconds, or {lognormal: {mean: seconds, sigma: of the logarithm}}."""

HERE = "workload.pre_delay_s"


def with_pre_delay(workload: Workload, delay: Delay, rng: np.random.Generator) -> Workload:
    """See `Workload.with_pre_delay`."""
    n = len(workload)
    if not isinstance(delay, Mapping):
        return replace(workload, pre_delay=np.full(n, _seconds(HERE, delay)))
    law = delay.get("lognormal")
    if set(delay) != {"lognormal"} or not isinstance(law, Mapping) or set(law) != {"mean", "sigma"}:
        raise ConfigError(f"{HERE}: must be seconds or {{lognormal: {{mean, sigma}}}}, got {delay!r}")
    mean, sigma = _seconds(f"{HERE}.lognormal.mean", law["mean"]), law["sigma"]
    if not 0 <= sigma < float("inf"):
        raise ConfigError(f"{HERE}.lognormal.sigma: must be >= 0 and finite, got {sigma!r}")
    unit = rng.lognormal(-(sigma**2) / 2, sigma, n)  # of mean 1
    return replace(workload, pre_delay=mean * unit)


def with_cancel(workload: Workload, fraction: float, after_s: float, rng: np.random.Generator) -> Workload:
    """See `Workload.with_cancel`."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"workload.cancel.fraction: must be 0 to 1, got {fraction}")
    seconds = _seconds("workload.cancel.after_s", after_s)
    gives_up = rng.random(len(workload)) < fraction
    return replace(workload, cancel_after=np.where(gives_up, seconds, np.nan))


def _seconds(where: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{where}: must be seconds >= 0 and finite, got {value!r}")
    return float(value)
