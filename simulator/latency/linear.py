"""A step's time as a straight line in its sums: five numbers anyone can check by hand.

Vidur, DistServe and the "affine" rows of latency tables use this form. It fits a decode iteration of an
8B model on an A100 within 3 %, and cannot follow tile edges or the bend between memory- and compute-bound
prefill: for those use `profile`. Left out: graph padding, the head's own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import Features, Floats


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Price a step by coefficients in seconds.

    gpu = constant + per_token * rows + per_kv_token * (context read by decodes)
                   + per_prefill_work * (sum of s * (kv + s / 2)), never under `floor`;
    host = host + per_seq * sequences; the step is their sum, or the longer one when they overlap.
    `constant` may be negative, as a fit through large sizes gives it; `floor` then keeps time moving.

    >>> from simulator.latency.base import StepFeatures
    >>> LinearModel(constant=0.010, per_kv_token=1e-6).step_time(StepFeatures.decode([1000, 3000]))
    0.014
    """

    constant: float
    per_token: float = 0.0
    per_seq: float = 0.0
    per_kv_token: float = 0.0
    per_prefill_work: float = 0.0
    host: float = 0.0
    floor: float = 1e-6
    overlap: bool = False
    name: str = "linear"
    provenance: str = "linear coefficients given by the user"
    error: float | None = None

    def __post_init__(self) -> None:
        for f in fields(self)[:7]:
            value = getattr(self, f.name)
            if not abs(value) < float("inf"):
                raise ValueError(f"{f.name} must be finite, got {value}")
            if value < 0 and f.name != "constant":
                raise ValueError(f"{f.name} must be >= 0, got {value}")
        if self.floor <= 0:
            raise ValueError(f"floor must be > 0, got {self.floor}")

    def step_time(self, step: Features) -> float:
        """Predict one step, in seconds."""
        gpu = self.constant + self.per_token * step.num_tokens + self.per_prefill_work * step.prefill_work
        gpu += self.per_kv_token * step.decode_kv
        if gpu < self.floor:
            gpu = self.floor
        host = self.host + self.per_seq * step.num_seqs
        return (gpu if gpu > host else host) if self.overlap else gpu + host

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps that follow each other; the same operations in the same order."""
        kv = step.decode_kv + step.num_decodes * np.arange(k)
        gpu = self.constant + self.per_token * step.num_tokens + self.per_prefill_work * step.prefill_work
        times: Floats = np.maximum(gpu + self.per_kv_token * kv, self.floor)
        host = self.host + self.per_seq * step.num_seqs
        return np.maximum(times, host) if self.overlap else times + host

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Mark nothing: a line given by hand has no measured range."""
        return np.zeros(len(steps["num_tokens"]), dtype=np.bool_)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> LinearModel:
        """Return the line on another GPU.

        FLOP/s moves `per_token` and `per_prefill_work`; bandwidth moves `constant` (the weights that
        every step reads) and `per_kv_token`; `host`, `per_seq` and `floor` stay.
        """
        return replace(
            self,
            constant=self.constant / bandwidth,
            per_kv_token=self.per_kv_token / bandwidth,
            per_token=self.per_token / flops,
            per_prefill_work=self.per_prefill_work / flops,
            provenance=f"{self.provenance}; scaled: FLOP/s x {flops:g}, bandwidth x {bandwidth:g}",
        )

    def overlapped(self) -> LinearModel:
        """Return the model of an engine that prepares the next step while the GPU runs this one."""
        return replace(self, overlap=True)
