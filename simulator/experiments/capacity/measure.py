"""What a run at one rate tells about capacity, as counts that can be added over replications.

The base of every share is the injected requests, so that a request which is rejected, given up or still
waiting is one that missed. Whether a server keeps up is seen in its queue, not in its latencies: a finite
run always drains, and a generous SLO may be met by all of a queue that grows without end. `growth` is how
many more requests wait for their first token when the last request is sent than when the middle one was, as
a share of those sent between: 0 on average of a stable server, 1 - capacity / rate of an overloaded one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.config.run import Run
from simulator.config.tenants import slo_of
from simulator.experiments.jobs import Values
from simulator.metrics.summary import SLOS, latencies, meets_slo
from simulator.metrics.tables import RequestTable

RANKS = (50, 90, 99)
MEASURED = ("ttft", "tpot")


def measure(run: Run) -> Values:
    """Return counts, spans and the mean stay (s), percentiles (ms); what has no value is absent."""
    requests = run.requests
    kept = latencies(requests, run.scenario.run.warmup)
    slo = slo_of(run.scenario, requests.tenant)
    good = meets_slo(kept, slo)
    middle = len(requests) // 2
    found: Values = {
        "injected": len(requests) - _dropped(run),
        "good": float(good.sum()),
        "late": len(requests) - middle,
        "late_good": float((kept.rows[good] >= middle).sum()),
        "growth": growth(requests),
        "span": sent(requests).last,
        "duration": kept.window[1] - kept.window[0],
        "output_tokens": float(requests.num_output[kept.rows].sum()),
        "num_steps": len(run.steps),
        "stay": _mean(kept.e2el),
    }
    for name in SLOS:
        if name in slo:
            found[f"within_{name}"] = float(meets_slo(kept, {name: slo[name]}).sum())
    for name in MEASURED:
        values = getattr(kept, name)
        values = values[~np.isnan(values)]
        if len(values):
            found |= {f"{name}_p{rank}": 1e3 * float(np.percentile(values, rank)) for rank in RANKS}
            found[f"{name}_least"] = 1e3 * float(values.min())
    return found


class Sent(NamedTuple):
    """When clients wanted to send, sorted (s), and when each of these requests left the queue (s)."""

    wanted: np.ndarray
    left: np.ndarray

    @property
    def last(self) -> float:
        """Seconds until the last one was sent."""
        return float(self.wanted[-1]) if len(self.wanted) else 0.0


def sent(requests: RequestTable) -> Sent:
    """Return who wanted to be served when, a wait at the client for a free connection included."""
    wanted = requests.arrival - requests.client_queue
    left = np.where(np.isnan(requests.first_token), requests.finish, requests.first_token)
    order = np.argsort(wanted, kind="stable")
    return Sent(wanted[order], np.nan_to_num(left[order], nan=np.inf))


def growth(requests: RequestTable) -> float:
    """Return by how much the queue grew over the second half, as a share of the requests sent in it."""
    when = sent(requests)
    num, middle = len(requests), len(requests) // 2
    if num - middle < 2 or when.wanted[-1] <= when.wanted[middle]:  # nothing is sent after the middle
        return 0.0
    ends = [int((when.left[: row + 1] > when.wanted[row]).sum()) for row in (middle, num - 1)]
    return (ends[1] - ends[0]) / (num - 1 - middle)


def _mean(values: np.ndarray) -> float:
    """Return the mean of what is no NaN; 0 of nothing."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _dropped(run: Run) -> int:
    dropped = run.own["warmup_dropped"]
    assert isinstance(dropped, int)
    return dropped
