"""The Pareto front: what nothing else beats in every respect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.tables import Floats


def pareto_front(values: Floats) -> NDArray[np.bool_]:
    """Mark the rows that no row beats; larger is better in every column (negate what should be small).

    A row beats another if it is as good in all columns and better in one. Equal rows stand or fall together;
    a row with a nan is on no front. Shape (n, columns) gives (n,).

    >>> pareto_front(np.array([[1.0, 3.0], [2.0, 2.0], [1.0, 2.0]])).tolist()
    [True, True, False]
    """
    known = np.flatnonzero(~np.isnan(values).any(axis=1))
    best_first = known[np.lexsort(-values[known].T)]
    front: list[int] = []
    for i in best_first:  # whoever beats i comes before it
        beaten = values[front] >= values[i]
        if not (beaten.all(axis=1) & (values[front] > values[i]).any(axis=1)).any():
            front.append(int(i))
    marks = np.zeros(len(values), dtype=bool)
    marks[front] = True
    return marks
