"""When tokens came: inter-token latencies from step clocks and stints, of one replica or of several.

A stint is a request's first and last step on one replica between which it got a token in every step that
decoded. Gaps within stints come from the clock, weighted by the stints that span them; two kinds have values
of their own: from a stint's first token to its next decode, and between two stints of a request, which may
lie on two replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.tables import Floats, Ints


class Stints(NamedTuple):
    """One replica's: gaps of its clock with their weights, gaps after first tokens, and where stints lie.

    `request`, `began` and `ended` have a row a stint: whose, and when its first and last token came (s).
    """

    steady: Floats
    weights: Ints
    opening: Floats
    request: Ints
    began: Floats
    ended: Floats


def stints(ends: Floats, decoding: Ints, spans: Ints, counts: NDArray[np.bool_]) -> Stints:
    """Look at one replica's stints: `spans` are rows (request, first step, last step).

    `ends` are the ends of its steps, `decoding` how many until each decoded anything, itself included;
    `counts` says of each request whether it counts.
    """
    ticks = ends[np.diff(decoding, prepend=0) > 0]
    request, first, last = spans
    kept = np.flatnonzero(counts[request])
    kept = kept[np.argsort(request[kept], kind="stable")]
    request, first, last = request[kept], first[kept], last[kept]
    start, stop = decoding[first], decoding[last]  # the decodes of a stint: start..stop-1
    more = stop > start
    n = len(ticks) + 1
    change = np.bincount(start[more] + 1, minlength=n) - np.bincount(stop[more], minlength=n)
    weights = np.cumsum(change)[: len(ticks)]
    spanned = np.flatnonzero(weights)
    began = ends[first]
    ended = np.where(more, ticks[np.maximum(stop, 1) - 1], began) if len(ticks) else began
    steady = ticks[spanned] - ticks[spanned - 1]
    return Stints(steady, weights[spanned], ticks[start[more]] - began[more], request, began, ended)


def gaps(parts: Sequence[Stints]) -> tuple[Floats, Ints]:
    """Return inter-token latencies as values (s) and how often each occurs, of replicas together."""
    request, began, ended = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("request", "began", "ended")
    )
    if len(parts) > 1:
        order = np.lexsort((began, request))
        request, began, ended = request[order], began[order], ended[order]
    again = np.flatnonzero(request[1:] == request[:-1])
    lone = np.concatenate([*(part.opening for part in parts), began[again + 1] - ended[again]])
    values = np.concatenate([*(part.steady for part in parts), lone])
    weights = [*(part.weights for part in parts), np.ones(len(lone), np.int64)]
    return values, np.concatenate(weights)
