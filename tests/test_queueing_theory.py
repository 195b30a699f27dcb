"""The engine as a single server: M/M/1, M/D/1 and Little's law.

One seat, one output token and a time per prompt token make the engine a queue with one server whose service
time is proportional to the prompt: exponential prompts give M/M/1, equal ones M/D/1. Prompts are whole,
10,000 tokens on average, so that rounding up adds 0.005 % to the mean service time.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from engine_runs import observe, scenarios
from hypothesis import given, settings
from numpy.typing import NDArray
from scipy import stats

from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.request import Request
from simulator.schedulers.chunked import Chunked

SERVICE = 1.0  # seconds, mean
MEAN_PROMPT = 10_000
LOAD = 0.7  # arrivals a second times SERVICE
CONFIDENCE = 0.999  # two-sided t-interval over replications

Floats = NDArray[np.float64]


def waits(exponential: bool, n: int, seed: int) -> Floats:
    """Serve n Poisson arrivals one at a time and return how long each waited for its seat, in seconds."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(SERVICE / LOAD, n))
    prompts = np.ceil(rng.exponential(MEAN_PROMPT, n)) if exponential else np.full(n, MEAN_PROMPT)
    requests = [
        Request(str(i), arrival, int(prompt), 1, 1)
        for i, (arrival, prompt) in enumerate(zip(arrivals.tolist(), prompts.tolist(), strict=True))
    ]
    scheduler = Chunked(
        BlockManager(20_000, 16, enable_prefix_caching=False),
        max_num_seqs=1,
        max_num_batched_tokens=200_000,
        max_model_len=1_000_000,
    )
    latency = LinearModel(constant=0.0, per_token=SERVICE / MEAN_PROMPT)
    table = serve(requests, scheduler, latency).recorder.request_table(requests)
    return table.scheduled - table.arrival


def interval(exponential: bool, replications: int, n: int) -> tuple[float, float]:
    """Return the confidence interval of the mean wait; the first tenth of each replication is warm-up."""
    means = [waits(exponential, n, seed)[n // 10 :].mean() for seed in range(replications)]
    low, high = stats.t.interval(CONFIDENCE, replications - 1, loc=np.mean(means), scale=stats.sem(means))
    return float(low), float(high)


QUEUES = {"M/M/1": (True, LOAD * SERVICE / (1 - LOAD)), "M/D/1": (False, LOAD * SERVICE / (1 - LOAD) / 2)}


@pytest.mark.parametrize("n", [4_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", QUEUES)
def test_mean_wait_matches_theory(name: str, n: int) -> None:
    """Seeds 0..19; the interval is 18 % of the mean wide with 4,000 requests each."""
    exponential, expected = QUEUES[name]
    low, high = interval(exponential, replications=20, n=n)
    assert low < expected < high
    assert high - low < 0.25 * expected


def test_waits_of_mm1_are_zero_with_one_minus_load_and_exponential_beyond() -> None:
    """P(W > t) = load * exp(-(1 - load) t / SERVICE)."""
    sample = np.concatenate([waits(True, 1000, seed)[100:] for seed in range(8)])
    for t in (0.0, 1.0, 3.0, 6.0):
        assert (sample > t).mean() == pytest.approx(LOAD * np.exp(-(1 - LOAD) * t / SERVICE), abs=0.06)


@given(scenarios(aborts=False))
@settings(max_examples=100, deadline=None)
def test_littles_law_holds_in_every_run_that_ends_empty(scenario: dict[str, Any]) -> None:
    """L = lambda W: the area under the number in the system is the sum of the times spent there."""
    run = observe(**scenario)
    events = sorted((time, change) for time, change, _ in run.observer.events)
    area, present = 0.0, 0
    for (time, change), (later, _) in itertools.pairwise(events):
        present += change
        area += present * (later - time)
    served = np.isfinite(run.table.first_token)
    if served.any():
        length = events[-1][0] - events[0][0]
        spent = (run.table.finish - run.table.arrival)[served]
        rate = len(spent) / length
        assert area / length == pytest.approx(rate * spent.mean(), rel=1e-9)
    assert present + (events[-1][1] if events else 0) == 0
