"""The range in which something was measured, and which steps lie outside it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import Floats
from simulator.latency.mixed import Mixed


class Reach(NamedTuple):
    """The measured range. Beyond it a step is marked as extrapolated, never refused."""

    tokens: float
    sampled: float
    prefill_kv: float  # longest context of a prefill
    batch: Floats
    kv: Floats  # longest mean KV measured at each of `batch`

    def outside(self, steps: dict[str, NDArray[np.generic]], mixed: Mixed | None) -> NDArray[np.bool_]:
        """Say which steps lie beyond; those that prefill beyond `mixed` too, where it was measured."""
        tokens, sampled, batch, longest, decode_kv = (
            np.asarray(steps[name], dtype=np.float64)
            for name in ("num_tokens", "num_sampled", "num_decodes", "prefill_kv_max", "decode_kv")
        )
        mean_kv = decode_kv / np.maximum(batch, 1)
        upper = np.minimum(np.searchsorted(self.batch, batch), len(self.batch) - 1)
        found: NDArray[np.bool_] = (
            (tokens > self.tokens)
            | (sampled > self.sampled)
            | (longest > self.prefill_kv)
            | (batch > self.batch[-1])
            | (mean_kv > self.kv[upper])
        )
        if mixed is not None:
            chunk = np.asarray(steps["prefill_tokens"], dtype=np.float64)
            work = np.asarray(steps["prefill_work"], dtype=np.float64)
            prefix = work / np.maximum(chunk, 1) - chunk / 2
            found |= (chunk > 0) & mixed.outside(chunk, prefix, batch, mean_kv)
        return found
