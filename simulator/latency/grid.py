"""Decode attention measured on a grid of (batch, KV length), laid out so that one batch is one polyline.

Interpolation is linear along both axes: leaving one measured KV out, linear errs by 4.5-9 % and log-log by
6-10 % with a bias (latency model, section 3.3). Left out: unequal lengths within a batch (+2-3 %).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.latency.base import Floats


class DecodeGrid(NamedTuple):
    """Decode attention of all layers: `seconds[i, j]` for `batch[i]` sequences of `kv[j]` tokens each."""

    batch: Floats
    kv: Floats
    seconds: Floats

    def rows(self, batches: ArrayLike) -> tuple[Floats, Floats, Floats]:
        """Return knots, seconds and slopes in the sum of KV, one row per batch; flat under the first knot.

        Between two measured batches, the mean of both at the same mean KV; past the largest, in
        proportion to the batch, which stays above the bytes it must read.
        """
        n = np.maximum(np.asarray(batches, dtype=np.float64), 1.0)
        inside = np.minimum(n, self.batch[-1])
        low = np.clip(np.searchsorted(self.batch, inside, side="right") - 1, 0, len(self.batch) - 2)
        weight = (inside - self.batch[low]) / (self.batch[low + 1] - self.batch[low])
        weight = np.maximum(weight, 0.0)[:, None]
        seconds = (1 - weight) * self.seconds[low] + weight * self.seconds[low + 1]
        seconds *= (n / inside)[:, None]
        knots = n[:, None] * self.kv[None, :]
        slopes = np.diff(seconds, axis=1) / np.diff(knots, axis=1)
        zero = np.zeros((len(n), 1))
        return (
            np.hstack([zero, knots]),
            np.hstack([seconds[:, :1], seconds]),
            np.hstack([zero, slopes, slopes[:, -1:]]),
        )
