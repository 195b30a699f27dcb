"""A server without a KV cache: every token computes its whole context again.

A step that decodes n sequences is priced by the model underneath as a prefill of n prompts, each as long as
the mean context: what the KV cache saves is then arithmetic, not a factor from elsewhere. Exact for one
sequence; among unequal contexts attention's square is underestimated. Left out: memory, which is counted as
if the KV were kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import Features, Floats, LatencyModel, StepFeatures
from simulator.latency.uncertainty import drawn, error_terms


@dataclass(frozen=True)
class Recomputing:
    """The latency model `inner` without a KV cache; chunks of a prompt cost what they cost there."""

    inner: LatencyModel

    @property
    def name(self) -> str:
        return f"{self.inner.name}, no KV cache"

    @property
    def provenance(self) -> str:
        return f"{self.inner.provenance}; no KV cache: each token is priced as a prefill of its context"

    @property
    def error(self) -> float | None:
        return self.inner.error

    @property
    def error_terms(self) -> dict[str, float]:
        return error_terms(self.inner)

    def drawn(self, deviates: Mapping[str, float]) -> Recomputing:
        return Recomputing(drawn(self.inner, deviates))

    def step_time(self, step: Features) -> float:
        return self.inner.step_time(_recomputed(step))

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps one by one: contexts grow by a token a step."""
        n, kv = step.num_decodes, step.decode_kv
        later = (StepFeatures(n, n, n, n, kv + i * n, step.decode_kv_max + i) for i in range(k))
        return np.array([self.step_time(each) for each in later])

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Mark every step: no server was measured that works like this."""
        return np.ones(len(next(iter(steps.values()))), np.bool_)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> Recomputing:
        return Recomputing(self.inner.scaled(flops, bandwidth))

    def overlapped(self) -> Recomputing:
        return Recomputing(self.inner.overlapped())


def _recomputed(step: Features) -> StepFeatures:
    """Turn decodes into prefills of their contexts, beside the step's own chunks."""
    n, kv = step.num_decodes, step.decode_kv
    work = step.prefill_work + (kv * (kv / n) / 2 if n else 0.0)
    longest = max(step.prefill_kv_max, step.decode_kv_max)
    tokens = kv + step.prefill_tokens
    return StepFeatures(tokens, step.num_seqs, step.num_sampled, 0, 0, 0, tokens, work, longest)
