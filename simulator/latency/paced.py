"""A latency model whose every step takes a factor longer: how much timing error would change an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import Features, Floats, LatencyModel


@dataclass(frozen=True)
class Paced:
    """A `LatencyModel`: another one's times, each multiplied by `factor` > 0."""

    inner: LatencyModel
    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < float("inf"):
            raise ValueError(f"factor must be > 0 and finite, got {self.factor}")

    @property
    def name(self) -> str:
        return f"{self.inner.name} x {self.factor:g}"

    @property
    def provenance(self) -> str:
        return f"{self.inner.provenance}; every step x {self.factor:g}"

    @property
    def error(self) -> float | None:
        return self.inner.error

    def step_time(self, step: Features) -> float:
        """Predict one step, in seconds."""
        return self.inner.step_time(step) * self.factor

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps that follow each other."""
        return self.inner.decode_times(step, k) * self.factor

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Say which steps lie outside the measured range."""
        return self.inner.extrapolated(steps)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> Paced:
        """Return the model of a GPU with this many times the peaks, paced alike."""
        return replace(self, inner=self.inner.scaled(flops, bandwidth))

    def overlapped(self) -> Paced:
        """Return the model in which the host works beside the GPU."""
        return replace(self, inner=self.inner.overlapped())
