"""Serve requests on a fleet, from the first arrival to the last answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from simulator.cluster.fleet import Fleet, Outage
from simulator.cluster.members import Member
from simulator.cluster.routers import Router, RouterContext
from simulator.cluster.scaling import Scaling
from simulator.engine.clients import OPEN_LOOP, ClientPlan, Clients, Progress
from simulator.engine.serve import make_replica, run_until
from simulator.engine.sleeping import Turn
from simulator.latency.base import LatencyModel
from simulator.metrics.request_log import RequestLog
from simulator.request import Request
from simulator.schedulers.base import Scheduler
from simulator.speculative import Acceptance


@dataclass(frozen=True)
class ReplicaKind:
    """What a replica of a fleet is made of; `make_scheduler` makes one with an empty pool each time."""

    name: str
    gpus: int
    make_scheduler: Callable[[], Scheduler]
    latency: LatencyModel
    async_scheduling: bool = False
    acceptance: Acceptance | None = None


@dataclass
class FleetServed:
    """A finished simulation of a fleet: requests, replicas as they were left, when the last ended (s)."""

    log: RequestLog
    members: list[Member]
    num_retried: int
    num_held: int
    end: float


def serve_fleet(
    requests: Sequence[Request],
    kinds: Sequence[ReplicaKind],
    router: Router | type,
    *,
    counts: Sequence[int] | None = None,
    plan: ClientPlan = OPEN_LOOP,
    rng: np.random.Generator,
    signal_delay: float = 0.0,
    retry: bool = True,
    outages: Iterable[Outage] = (),
    scaling: Scaling | None = None,
    horizon: float | None = None,
    progress: Progress | None = None,
    check_invariants: bool = False,
    skip: bool = True,
) -> FleetServed:
    """Run requests, given in order of arrival, on one replica of each kind, or `counts`, until all are done.

    `horizon` (s, inclusive) ends it earlier. A replica that an autoscaler starts is of the first kind.
    """
    env = simpy.Environment()
    log, turn = RequestLog(len(requests)), Turn()
    counts = [1] * len(kinds) if counts is None else counts
    made = [
        kind for kind, count in enumerate(counts) for _ in range(count)
    ]  # the kind of each replica so far
    num_replicas = len(made)

    def make_member(index: int, like: int, now: float) -> Member:
        if index >= num_replicas:
            made.append(made[like])
        kind = kinds[made[index]]
        replica = make_replica(
            env,
            kind.make_scheduler(),
            kind.latency,
            log,
            async_scheduling=kind.async_scheduling,
            acceptance=kind.acceptance,
            check_invariants=check_invariants,
            skip=skip,
            index=index,
            turn=turn,
        )
        return Member(index, kind.name, kind.gpus, replica, now, kind=made[index])

    fleet = Fleet(
        env,
        log,
        router() if isinstance(router, type) else router,
        RouterContext(rng, kinds[0].make_scheduler().kv.block_size),
        make_member,
        num_replicas,
        signal_delay=signal_delay,
        retry=retry,
        outages=outages,
        scaling=scaling,
    )
    Clients(env, fleet, requests, plan, progress)
    run_until(env, horizon, lambda: [member.replica.fault for member in fleet.members])
    fleet.close()
    for member in fleet.members:
        member.replica.scheduler.check()
    if progress is not None:
        progress(log.num_done, len(requests))
    over = np.array(log.finished_at)
    end = float(np.nanmax(over)) if log.num_done else float(env.now)
    return FleetServed(log, fleet.members, fleet.num_retried, fleet.num_held, end)
