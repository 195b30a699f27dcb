"""How far a run is from the best possible: bounds on its makespan and latencies, and the order SRPT.

Bounds hold for every batching policy, order, victim and admission under the scenario's limits (seats, token
budget, KV blocks) that completes the requests which this run completed and preempts none of them more often;
what this cannot be shown for is left out or called a reference. SRPT (shortest remaining processing time,
Schrage, Operations Research 1968) is best for the mean on one machine whose work may be broken off at any
time (`bounds_queue` bounds by that); the run in this order breaks nothing off, so it is a reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.config.build_workload import client_plan
from simulator.config.run import Run, run_scenario
from simulator.config.server import one_replica
from simulator.errors import ConfigError
from simulator.experiments.bounds_alone import Alone, Prefixes, earliest_arrivals, places_limit
from simulator.experiments.bounds_prices import Prices, least_prices
from simulator.experiments.bounds_queue import least_means
from simulator.experiments.bounds_work import Demand, Limits, Peaks, least_steps, priced
from simulator.latency.base import Floats
from simulator.metrics.summary import Latencies, latencies
from simulator.metrics.tables import COMPLETED, Ints
from simulator.specs.ranks import rank_of

REFERENCE = "srpt_oracle"
"""The order of the reference run."""
ROUNDING = 1e-9
"""Relative error that sums of floating-point step times may have."""


class Limit(NamedTuple):
    """One lower bound on the makespan, in seconds from the first arrival, and why in words.

    `work` are the seconds of this resource that the requests take together, None where nothing adds up.
    """

    name: str
    seconds: float
    work: float | None
    why: str


@dataclass
class Served:
    """A run and, for its requests in `measured` and in that order, least latencies (s).

    `least_mean` bounds the mean "ttft" and "e2el" at the server by the GPU's time in the best order.
    """

    run: Run
    measured: Latencies
    alone: Alone | None
    least_mean: dict[str, float]

    @property
    def num_completed(self) -> int:
        return int((self.run.requests.status == COMPLETED).sum())

    @property
    def makespan(self) -> float:
        """From the first arrival to the last completion, s; no warm-up is dropped."""
        start, end = latencies(self.run.requests).window
        return end - start

    def least(self, metric: str) -> Floats:
        """Return least "ttft" or "e2el" of the measured requests, s."""
        assert self.alone is not None, "something completed and has a price"
        if metric == "ttft":
            return self.alone.ttft
        return self.alone.e2el + self.run.requests.pre_delay[self.measured.rows]


@dataclass
class Found:
    """What was found of a run; no limits if no request completed or its step times have no least prices.

    `num_steps` are least numbers of steps that sample a token, by what sets them.
    """

    own: Served
    reference: Served
    limits: tuple[Limit, ...]
    num_steps: dict[str, int]
    notes: tuple[str, ...]

    @property
    def binding(self) -> Limit | None:
        """The limit that says most."""
        return max(self.limits, key=lambda limit: limit.seconds, default=None)


def find_bounds(
    run: Run, *, reference: str = REFERENCE, progress: Callable[[int, int], None] | None = None
) -> Found:
    """Bound what any policy could have made of a run's requests; serve them once more in the reference order.

    ConfigError if requests share an id, by which rows of the result are found in the workload.
    """
    one_replica(run.scenario, "bounds")
    if run.scenario.speculative is not None:
        raise ConfigError("bounds: speculative must be null, for more than a token a step nothing is bounded")
    if run.scenario.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "bounds: parallel.pipeline_parallel_size must be 1, overlapping batches are not bounded"
        )
    notes = _notes(run)
    best = _Best.of(run)
    limits: tuple[Limit, ...] = ()
    num_steps: dict[str, int] = {}
    other = _in_order(run, reference, progress)
    if best is None:
        notes.append("the latency model is neither a profile nor a line, so its steps have no least prices")
    elif np.any(run.requests.status == COMPLETED):
        limits, num_steps = _limits(run, best)
        impossible = [each for each in limits if each.name in DATA_SHEET and _is_broken(run, each)]
        if impossible:
            limits = tuple(each for each in limits if each not in impossible)
            names = " and ".join(each.name for each in impossible)
            notes.append(f"step times are quicker than the GPU's data sheet allows: no limit by {names}")
    return Found(_served(run, best), _served(other, best), limits, num_steps, tuple(notes))


@dataclass
class _Best:
    """The least prices for a workload's requests, and what their prompts share."""

    prices: Prices
    decodes: Floats
    prefixes: Prefixes
    limits: Limits

    @classmethod
    def of(cls, run: Run) -> _Best | None:
        workload, kv, scheduler = run.workload, run.scenario.kv, run.scenario.scheduler
        longest = int((workload.num_prompt + workload.num_output).max(initial=1))
        longest = min(longest, run.machine.max_model_len)
        largest = max(scheduler.max_num_batched_tokens, longest)  # a policy may run one request whole
        seats = min(scheduler.max_num_seqs, max(len(workload), 1))
        prices = least_prices(run.machine.latency, largest, seats, longest)
        if prices is None:
            return None
        prefixes = Prefixes.of(workload, kv.block_size, kv.enable_prefix_caching)
        limits = Limits(scheduler.max_num_seqs, run.machine.kv.usable_blocks, kv.block_size, largest)
        return cls(prices, prices.decodes(longest, seats), prefixes, limits)

    def alone(self, run: Run, hit_blocks: Ints, rows: Ints) -> Alone:
        """Return least latencies of rows of the result; `hit_blocks` has an entry for each of them."""
        table = run.requests
        prompt = table.num_prompt[rows]
        cached = self.prefixes.hits(hit_blocks, prompt)
        return Alone.of(self.prices, self.decodes, cached, prompt, table.num_output[rows])

    def demand(self, run: Run, rows: Ints, earliest: Floats, known: Ints, shared: Ints) -> Demand:
        """Return what rows of the result need that find `known` blocks and share `shared` ones."""
        table = run.requests
        return Demand(
            earliest,
            table.num_prompt[rows],
            table.num_output[rows],
            known * self.limits.block_size,
            shared,
            table.num_preemptions[rows],
        )


def _served(run: Run, best: _Best | None) -> Served:
    measured = latencies(run.requests, run.scenario.run.warmup)
    if best is None or not len(measured.rows):
        return Served(run, measured, None, {})
    table, kept, row = run.requests, measured.rows, _rows(run)
    seen, shared = best.prefixes.seen(row)[row[kept]], best.prefixes.shared()[row[kept]]
    demand = best.demand(run, kept, table.arrival[kept], shared, shared)
    means = least_means(demand, best.prices, best.limits)
    return Served(run, measured, best.alone(run, seen, kept), means)


COMPUTE, MEMORY, PRICES, ARRIVALS, PLACES = "compute", "memory", "step times", "arrivals", "clients"
DATA_SHEET = (COMPUTE, MEMORY)


def _limits(run: Run, best: _Best) -> tuple[tuple[Limit, ...], dict[str, int]]:
    """Return the lower bounds on the makespan, and on the number of steps."""
    table, plan = run.requests, client_plan(run.scenario, run.workload)
    done = np.flatnonzero(table.status == COMPLETED)
    shared, row = best.prefixes.shared(), _rows(run)[done]
    at_server = np.zeros(len(run.workload))
    at_server[row] = best.alone(run, shared[row], done).e2el
    earliest = earliest_arrivals(run.workload, plan, at_server)
    seen = best.prefixes.seen(np.argsort(earliest, kind="stable"))
    by_arrival = np.argsort(earliest[row], kind="stable")
    done, row = done[by_arrival], row[by_arrival]
    demand = best.demand(run, done, earliest[row], seen[row], shared[row])
    limits, num_steps = _work_limits(run, best, demand)
    start = float(table.arrival.min())
    last = float((demand.earliest + best.alone(run, seen[row], done).e2el).max()) - start
    limits.append(Limit(ARRIVALS, last, None, "the request that ends last if each is alone"))
    places = places_limit(plan, at_server[row])
    if places is not None:
        limits.append(Limit(PLACES, places, None, f"{plan.max_concurrency} at a time, each request alone"))
    return tuple(limits), num_steps


def _work_limits(run: Run, best: _Best, demand: Demand) -> tuple[list[Limit], dict[str, int]]:
    """Return the limits by what work adds up to, and least numbers of steps."""
    machine, start = run.machine, float(run.requests.arrival.min())
    steps = least_steps(demand, best.limits)
    by = max(steps, key=lambda name: float(steps[name].sum()))
    rank = rank_of(machine.model, machine.kv.tensor_parallel_size)
    peaks = Peaks(machine.hardware, rank, run.scenario.kv.kv_cache_dtype)
    flops, bandwidth = f"{peaks.flops / 1e12:g} TFLOP/s", f"{peaks.hardware.hbm_bandwidth / 1e9:,.0f} GB/s"
    found = [
        (COMPUTE, peaks.compute(demand), f"data sheet: {flops}, every token once"),
        (MEMORY, peaks.memory(demand, steps[by]), f"data sheet: {bandwidth}, weights once a step ({by})"),
        (PRICES, priced(demand, best.prices, best.limits), f"least prices of {machine.latency.name}"),
    ]
    limits = [
        Limit(name, demand.last_end(seconds) - start, float(seconds.sum()), why)
        for name, seconds, why in found
        if seconds is not None
    ]
    return limits, {name: int(np.ceil(each.sum() * (1 - ROUNDING))) for name, each in steps.items()}


def _rows(run: Run) -> Ints:
    """Return the row of the workload that each row of the result is."""
    ids = run.workload.requests.ids
    place = {id: row for row, id in enumerate(ids)}
    if len(place) < len(ids):
        raise ConfigError("bounds: requests of the workload share an id; give each its own")
    return np.array([place[id] for id in run.requests.id], dtype=np.int64)


def _is_broken(run: Run, limit: Limit) -> bool:
    start, end = latencies(run.requests).window
    return limit.seconds > (end - start) * (1 + ROUNDING)


def _in_order(run: Run, order: str, progress: Callable[[int, int], None] | None) -> Run:
    """Serve the run's requests in another order, all else equal."""
    if run.scenario.scheduler.order == order and run.policies.order is None:
        return run
    return run_scenario(
        run.scenario.with_(**{"scheduler.order": order}),
        policies=replace(run.policies, order=None),
        machine=run.machine,
        workload=run.workload,
        progress=progress,
    )


def _notes(run: Run) -> list[str]:
    """Return what a reader must know of these bounds."""
    done, injected = int((run.requests.status == COMPLETED).sum()), len(run.requests)
    notes = []
    if done < injected:
        notes.append(
            f"{injected - done:,} of {injected:,} requests did not complete; the bounds are for those that "
            "did, and do not bind a policy that completes others"
        )
    plan = client_plan(run.scenario, run.workload)
    if plan.follows is not None or plan.max_concurrency is not None:
        notes.append(
            "requests wait for the answers to others: each counts from the earliest moment at which it can "
            "arrive, and its best cached prefix is that of the arrivals in this run"
        )
    return notes
