"""Which completions to leave out because the server was still filling up.

MSER-5 (White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation",
WSC 2000): cut where the standard error of what remains is smallest, over means of batches of five, within
the first half.
"""

from __future__ import annotations

import numpy as np

from simulator.metrics.tables import Floats

WarmUp = str | float | dict[str, int]


def num_warmup(rule: WarmUp, series: Floats) -> int:
    """Return how many of the first observations to drop.

    `rule` is "none", "auto" (MSER-5), a fraction below 1, or {"requests": n}. `series` are the
    observations in order of completion.
    """
    n = len(series)
    if rule == "none":
        return 0
    if rule == "auto":
        return mser5(series)
    if isinstance(rule, dict):
        return min(n, rule["requests"])
    if not 0 <= float(rule) < 1:
        raise ValueError(f"warmup must be none, auto, a share below 1 or {{requests: n}}, got {rule}")
    return int(float(rule) * n + 1e-9)


def mser5(series: Floats, batch: int = 5) -> int:
    """Return the MSER-5 truncation point, a multiple of `batch`; 0 for series too short to judge."""
    num_batches = len(series) // batch
    if num_batches < 10:
        return 0
    means = (
        np.asarray(series[: num_batches * batch], dtype=np.float64).reshape(num_batches, batch).mean(axis=1)
    )
    means -= means[-1]  # else rounding alone decides where all are equal
    kept = np.arange(num_batches, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    spread = (squares - sums**2 / kept) / kept**2
    return int(np.argmin(spread[: num_batches // 2])) * batch
