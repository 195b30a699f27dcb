"""What popular articles compute of a run, beside what is right: metrics for a trial."""

from __future__ import annotations

import numpy as np

from simulator.config.run import Run
from simulator.experiments.jobs import Values, numbers
from simulator.metrics.tables import COMPLETED, RequestTable


def claimed(run: Run) -> Values:
    """Return the numbers of a run's summary and those below."""
    requests = run.requests
    longest = float(np.max((requests.finish - requests.arrival)[requests.status == COMPLETED]))
    return numbers(run) | {
        "throughput_by_longest": int(requests.num_output.sum()) / longest,
        "p99_by_int": p99_by_int(requests),
        "wait_in_batches": wait_in_batches(requests),
    }


def p99_by_int(requests: RequestTable) -> float:
    """Return the sorted latencies' element at int(0.99 n) over their 99th percentile (NumPy's linear)."""
    latency = np.sort((requests.finish - requests.arrival)[requests.status == COMPLETED])
    return float(latency[int(0.99 * len(latency))] / np.percentile(latency, 99))


def wait_in_batches(requests: RequestTable) -> float:
    """Return how long a request waits, over how long those that ran when it came still took; the median.

    1 is to wait until the last of them has ended. Requests that found nobody running are left out.
    """
    came, started, ended = requests.arrival, requests.scheduled, requests.finish
    runs = (started[None, :] < came[:, None]) & (ended[None, :] > came[:, None])
    last = np.where(runs, ended[None, :], -np.inf).max(axis=1)
    found = runs.any(axis=1) & ~np.isnan(started)
    return float(np.median(((started - came)[found]) / (last - came)[found])) if found.any() else 0.0
