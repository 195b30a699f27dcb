"""Simulate what a measured run asked for: its requests at their arrival times, on its engine's arguments.

What the run does not say is taken from the scenario defaults and noted. Left out: the client's own time, the
network, and (de)tokenisation, which are in client-side measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibration.measured import MeasuredRun
from calibration.validate import scenario_of as validation_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.latency.base import Floats, LatencyModel
from simulator.metrics.tables import RequestTable, StepTable

DEFAULT_GPU = "a100-80gb-sxm"


class Times(NamedTuple):
    """Latencies in seconds, one entry a request in order of arrival; NaN where it has none."""

    ttft: Floats
    tpot: Floats
    e2e: Floats


def scenario_of(run: MeasuredRun, changes: Mapping[str, object]) -> Scenario:
    """Return the scenario of a measured run; `changes` by the user come last. ConfigError names a bad key."""
    model = changes.get("model.name")
    if isinstance(model, str):
        run = replace(run, engine=run.engine | {"model": model})
    gpu = str(changes.get("hardware.gpu", DEFAULT_GPU))
    return validation_scenario(run, gpu)[0].with_(**changes)


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
    times = Times(requests.first_token - requests.arrival, decoding / gaps, e2e)
    return Rerun(times, requests, served.steps)


def measured_times(run: MeasuredRun) -> Times:
    """Return what was measured, in the same form."""
    return Times(run.ttft, run.tpot, run.e2e)


def open_over_time(begin: Floats, end: Floats, ranks: list[float]) -> Floats:
    """Return percentiles, weighted by time, of how many intervals are open while any is.

    >>> open_over_time(np.array([0.0, 1.0]), np.array([4.0, 2.0]), [50, 90]).tolist()
    [1.0, 2.0]
    """
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.concatenate([np.ones(len(begin)), -np.ones(len(end))])[order])[:-1]
    held = np.diff(times[order])
    busy = (count > 0) & (held > 0)
    by_count = np.argsort(count[busy], kind="stable")
    share = np.cumsum(held[busy][by_count]) / max(held[busy].sum(), 1e-12)
    at = np.searchsorted(share, np.array(ranks) / 100)
    return np.asarray(count[busy][by_count][np.minimum(at, len(share) - 1)])
