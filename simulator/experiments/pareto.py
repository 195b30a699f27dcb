"""The Pareto front: points that no other equals in every objective and beats in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.metrics.summary import Bools
from simulator.metrics.tables import Floats


def front(values: Floats, maximize: Sequence[bool]) -> Bools:
    """Return the mask of the non-dominated rows of (points, objectives); equal rows stay together.

    A row with NaN is not on the front and dominates nothing.

    >>> front(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 9.0]]), [False, True]).tolist()
    [True, False, True]
    """
    costs = np.where(np.asarray(maximize, dtype=bool), -values, values)
    mask = np.zeros(len(costs), dtype=bool)
    left = np.flatnonzero(~np.isnan(costs).any(axis=1))
    left = left[np.lexsort(costs[left].T[::-1])]  # what dominates a row comes before it
    while len(left):
        best = costs[left[0]]
        equal = (costs[left] == best).all(axis=1)
        mask[left[equal]] = True
        left = left[(costs[left] < best).any(axis=1)]
    return mask
