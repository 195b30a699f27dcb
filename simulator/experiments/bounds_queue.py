"""The least mean latency of requests that share one GPU: the best order that one machine allows.

A step takes at least the sum of the least prices of what it computes (`bounds_work.priced`). So whatever a
policy does is also a schedule of one machine that divides its time at will among the requests that have
arrived, and each needs at least so many seconds of it. On such a machine the sum of completion times is least
if the request with the shortest remaining work always goes first (SRPT: Schrage, Operations Research 1968).
Prompt blocks that other requests have too are left out, since another one may compute them.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from simulator.experiments.bounds_prices import Prices
from simulator.experiments.bounds_work import Demand, Limits, priced
from simulator.latency.base import Floats


def least_means(demand: Demand, prices: Prices, limits: Limits) -> dict[str, float]:
    """Return lower bounds on the mean "ttft" and "e2el" (s, at the server) of requests that arrive at
    `demand.earliest`; to a first token only the prompt's work counts."""
    first = replace(demand, num_output=np.ones_like(demand.num_output))
    found = {}
    for metric, each in (("ttft", first), ("e2el", demand)):
        seconds = priced(each, prices, limits)
        found[metric] = float((srpt_ends(demand.earliest, seconds) - demand.earliest).mean())
    return found


def srpt_ends(arrival: Floats, seconds: Floats) -> Floats:
    """Return when each job ends on one machine that always does the one with the least work left.

    >>> srpt_ends(np.array([0.0, 1.0, 1.0]), np.array([4.0, 1.0, 2.0])).tolist()
    [7.0, 2.0, 4.0]
    """
    order = np.argsort(arrival, kind="stable").tolist()
    at, work = arrival.tolist(), seconds.tolist()
    ends = np.zeros(len(order))
    left: list[tuple[float, int]] = []
    now = 0.0
    for i, upto in zip(order, [*(at[i] for i in order[1:]), np.inf], strict=True):
        now = max(now, at[i])
        heapq.heappush(left, (work[i], i))
        while left and now < upto:
            rest, job = left[0]
            if now + rest <= upto:
                heapq.heappop(left)
                now += rest
                ends[job] = now
            else:
                heapq.heapreplace(left, (rest - (upto - now), job))
                now = upto
    return ends
