"""Simulate what a measured run asked for: its requests at their arrival times, on its engine's arguments.

What the run does not say is taken from the scenario defaults and noted. Left out: the client's own time, the
network, and (de)tokenisation, which are in client-side measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from calibration.measured import MeasuredRun
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.latency.base import Floats, LatencyModel
from simulator.metrics.tables import RequestTable, StepTable

KEYS = {  # what a measured run knows of its engine, and the scenario key of each
    "model": "model.name",
    "max_model_len": "model.max_model_len",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "async_scheduling": "scheduler.async_scheduling",
    "num_gpu_blocks": "kv.num_gpu_blocks_override",
    "block_size": "kv.block_size",
    "gpu_memory_utilization": "kv.gpu_memory_utilization",
    "enable_prefix_caching": "kv.enable_prefix_caching",
}
BASE = {"workload.timeout_s": None, "slo.ttft_ms": None, "slo.tpot_ms": None, "model.max_model_len": None}


class Times(NamedTuple):
    """Latencies in seconds, one entry a request in order of arrival; NaN where it has none.

    `batch` is the mean number of sequences that decoded beside a request, itself included.
    """

    ttft: Floats
    tpot: Floats
    e2e: Floats
    batch: Floats


def scenario_of(run: MeasuredRun, changes: Mapping[str, object]) -> Scenario:
    """Return the scenario of a measured run; `changes` by the user come last. ConfigError names a bad key."""
    known = {KEYS[name]: value for name, value in run.engine.items() if name in KEYS and value is not None}
    return load_scenario("chat-a100").with_(**{"name": run.name, **BASE, **known, **changes})


class Rerun(NamedTuple):
    """A simulated run: latencies by request, and the tables behind them."""

    times: Times
    requests: RequestTable
    steps: StepTable


def simulated(run: MeasuredRun, scenario: Scenario, latency: LatencyModel) -> Rerun:
    """Simulate the run's requests; ConfigError if any of them does not complete."""
    served = run_scenario(scenario, workload=run.requests(), latency=latency)
    requests = served.requests
    done = np.isfinite(requests.finish) & np.isfinite(requests.first_token)
    if not done.all() or len(done) != len(run):
        at = int(np.argmin(done))
        raise ConfigError(
            f"{run.source}: request {at} ({run.num_prompt[at]} + {run.num_output[at]} tokens) did not "
            f"complete in the simulation: {requests.reason[at] or 'unfinished'}; are max_model_len and "
            "the number of KV blocks those of the server?"
        )
    gaps = np.where(requests.num_output > 1, requests.num_output - 1, np.nan)
    decoding = requests.finish - requests.first_token
    e2e = requests.finish - requests.arrival
    batch = concurrency(requests.first_token, requests.finish)
    times = Times(requests.first_token - requests.arrival, decoding / gaps, e2e, batch)
    return Rerun(times, requests, served.steps)


def measured_times(run: MeasuredRun) -> Times:
    """Return what was measured, in the same form."""
    batch = concurrency(run.arrival + run.ttft, run.arrival + run.e2e)
    return Times(run.ttft, run.tpot, run.e2e, batch)


def concurrency(begin: Floats, end: Floats) -> Floats:
    """Return how many intervals are open on average while each is; 1 for one alone.

    >>> concurrency(np.array([0.0, 1.0]), np.array([2.0, 2.0])).tolist()
    [1.5, 2.0]
    """
    shared = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
    span = np.maximum(end - begin, 1e-9)
    beside = np.maximum(shared, 0.0)
    np.fill_diagonal(beside, span)
    return np.asarray(beside.sum(axis=1) / span)
