"""The hypervolume of a front: how much of the space of objectives it dominates (Zitzler and Thiele, 1999)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.experiments.pareto import pareto_front
from simulator.metrics.tables import Floats


def hypervolume(costs: Floats, worst: Floats) -> float:
    """Return the volume between points (rows, less is better) and a corner that is worse in everything.

    Slices along the last objective (While et al., "A Faster Algorithm for Calculating Hypervolume", IEEE
    Transactions on Evolutionary Computation 10(1), 2006): quick for up to four objectives.

    >>> hypervolume(np.array([[1.0, 3.0], [2.0, 1.0]]), np.array([4.0, 4.0]))
    7.0
    """
    costs = costs[(costs < worst).all(axis=1)]
    if not len(costs):
        return 0.0
    costs = np.unique(costs[pareto_front(-costs)], axis=0)
    if costs.shape[1] == 1:
        return float(worst[0] - costs.min())
    costs = costs[np.argsort(costs[:, -1], kind="stable")]
    depths = np.diff(np.append(costs[:, -1], worst[-1]))
    return float(
        sum(
            depth * hypervolume(costs[: i + 1, :-1], worst[:-1])
            for i, depth in enumerate(depths.tolist())
            if depth > 0
        )
    )


def trace(costs: Floats, numbers: Sequence[int], count: int) -> Floats:
    """Return for each of `count` trials the share of the last volume that the trials so far dominate.

    `costs` has a row per feasible trial, `numbers` says which trials these are. Each objective counts from
    the best to the worst of them.
    """
    best, worst = costs.min(axis=0), costs.max(axis=0)
    scaled = (costs - best) / np.where(worst > best, worst - best, 1.0)
    corner = np.full(costs.shape[1], 1.0 + CORNER)
    whole = hypervolume(scaled, corner)
    shares = np.zeros(count)
    kept = scaled[:0]
    volume = 0.0
    for number, row in zip(numbers, scaled, strict=True):
        if not len(kept) or not (kept <= row).all(axis=1).any():
            kept = np.vstack([kept[~(row <= kept).all(axis=1)], row])
            volume = hypervolume(kept, corner) / whole
        shares[number:] = volume
    return shares


CORNER = 0.1
"""How far beyond the worst the corner lies, as a share of the span: the ends of the front then count too."""
