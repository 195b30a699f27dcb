"""The scenario's own load, for any number of replicas, and how long it must last.

A run starts on empty servers, and what is sent during the first stays of requests in the server meets an
easier load than the rest; a queue that grows needs time to show in latencies (`length`). So at the answer a
run has at least `STAYS` mean stays of a request, and what `length` asks for. Runs of a closed loop, whose
queue is bounded, need only the first; of `all_at_once` the number of requests is the load itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.config.scenario import Scenario
from simulator.experiments.capacity.length import longest_limit
from simulator.experiments.capacity.loads import Loads
from simulator.experiments.capacity.point import TOLERANCE, Point
from simulator.experiments.replications import FEWEST_REQUESTS, Replications
from simulator.workload.workload import Workload

STAYS = 20
"""Mean stays of a request that the sending of a run lasts: an empty start touches one in so many requests."""


@dataclass
class FleetLoads:
    """The same requests for any number of replicas, `num` replications of them."""

    base: Scenario
    max_model_len: int
    replications: Replications
    num: int

    def scenario(self, replicas: float) -> Scenario:
        """Return the scenario with so many replicas; a run of it is replication 0, if requests are drawn."""
        return self.base.with_(**{"cluster.replicas": int(replicas)})

    def replica(self, rate: float, index: int) -> Scenario:
        """Return a number of replicas (what `rate` is here) with a replication's seed."""
        return self.replications.scenario(self.scenario(rate), index)

    def workload(self, rate: float, index: int) -> Workload:
        """Return the requests of a replication, the same for any number of replicas."""
        return self.replications.workload(self.base, self.max_model_len, index)

    def words(self, point: Point) -> str:
        """Name the load; `point` is a run of it."""
        section = self.base.workload
        kind = None if section.trace is not None else section.arrivals.get("kind")
        if kind == "closed_loop":
            return f"{section.arrivals.get('clients')} clients"
        if kind == "all_at_once":
            return f"{section.num_requests:,} requests at once"
        loads = Loads(self.base, self.max_model_len, self.replications, self.num)
        if loads.takes_rate and math.isfinite(float(section.arrivals.get("rate", math.inf))):
            return f"{loads.own_rate:.4g} {loads.unit}"
        offered = point.of("injected", "span")
        return "the load" if offered is None else f"{offered.value:.4g} requests/s"


def may_be_longer(scenario: Scenario) -> bool:
    """Whether more requests make a run longer, and not the load higher."""
    return scenario.workload.trace is not None or scenario.workload.arrivals.get("kind") != "all_at_once"


def wanted_requests(scenario: Scenario, at: Point | None, target: float) -> int:
    """Return how many requests a run at the answer should have."""
    offered = None if at is None else at.of("injected", "span")
    if at is None or offered is None or not may_be_longer(scenario):
        return FEWEST_REQUESTS
    stay = at.mean("stay")
    wanted = STAYS * offered.value * (0.0 if stay is None else stay.value)
    if scenario.workload.trace is not None or scenario.workload.arrivals.get("kind") != "closed_loop":
        wanted = max(wanted, longest_limit(scenario) * offered.value / (TOLERANCE * target))
    return max(FEWEST_REQUESTS, math.ceil(wanted))
