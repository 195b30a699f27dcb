"""What serves a scenario: one replica, or a fleet of them behind a router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol

import numpy as np

from simulator.cluster.fleet import Outage
from simulator.cluster.scaling import AUTOSCALERS, Scaling
from simulator.cluster.serve import ReplicaKind, serve_fleet
from simulator.config.axes import AXES
from simulator.config.build import Machine, Policies
from simulator.config.build_scheduler import build_router, build_scheduler
from simulator.config.cluster import AutoscalerSection, replica_scenarios
from simulator.config.pools import Pools, build_pools
from simulator.config.scenario import Scenario
from simulator.config.served import ServedRun
from simulator.config.speculative import build_acceptance
from simulator.engine.clients import ClientPlan, Progress
from simulator.engine.observer import Observer
from simulator.engine.serve import MakeExecutor, serve
from simulator.errors import ConfigError
from simulator.latency.base import LatencyModel
from simulator.request import Request
from simulator.schedulers import Scheduler

Timing = Callable[[LatencyModel, int], LatencyModel]
"""Makes the latency model that steps follow from the one that policies know, and its kind of replica."""
_STREAM = 8  # of the seed; the workload and speculation use those below


class Server(Protocol):
    """Serves one run."""

    def serve(
        self,
        requests: Sequence[Request],
        plan: ClientPlan,
        *,
        observers: Sequence[Observer] = (),
        progress: Progress | None = None,
        check_invariants: bool = False,
        make_executor: MakeExecutor | None = None,
    ) -> ServedRun: ...


def one_replica(scenario: Scenario, what: str) -> None:
    """Raise ConfigError for a cluster, of which `what` is not to be had."""
    if scenario.cluster is not None:
        raise ConfigError(f"cluster: must be null for {what}, which know one replica")


def make_server(
    scenario: Scenario, machine: Machine, policies: Policies, timing: Timing | None = None
) -> Server:
    """Build what a scenario runs on; ConfigError for policies and limits that do not fit."""
    if scenario.cluster is None:
        return Alone(scenario, machine, build_scheduler(scenario, machine, policies), timing)
    build_router(scenario, policies)
    kinds = _kinds(scenario, machine, policies, timing)
    for _, kind in kinds:
        kind.make_scheduler()
    keys = scenario.cluster.disaggregation
    pools = None if keys is None else build_pools(scenario, keys, machine.kinds, kinds)
    return Cluster(scenario, machine, policies, kinds, pools)


@dataclass(frozen=True)
class Alone:
    """One replica."""

    scenario: Scenario
    machine: Machine
    scheduler: Scheduler
    timing: Timing | None

    def serve(
        self,
        requests: Sequence[Request],
        plan: ClientPlan,
        *,
        observers: Sequence[Observer] = (),
        progress: Progress | None = None,
        check_invariants: bool = False,
        make_executor: MakeExecutor | None = None,
    ) -> ServedRun:
        scenario, latency = self.scenario, self.machine.latency
        served = serve(
            requests,
            self.scheduler,
            latency if self.timing is None else self.timing(latency, 0),
            plan=plan,
            async_scheduling=scenario.scheduler.async_scheduling,
            horizon=scenario.run.horizon_s,
            acceptance=build_acceptance(scenario.speculative, scenario.seed),
            observers=observers,
            progress=progress,
            check_invariants=check_invariants,
            make_executor=make_executor,
        )
        return ServedRun.alone(served, self.machine)


@dataclass(frozen=True)
class Cluster:
    """A fleet; `kinds` are its kinds of replicas with how many there are at the start."""

    scenario: Scenario
    machine: Machine
    policies: Policies
    kinds: list[tuple[int, ReplicaKind]]
    pools: Pools | None = None  # under disaggregation

    def serve(
        self,
        requests: Sequence[Request],
        plan: ClientPlan,
        *,
        observers: Sequence[Observer] = (),
        progress: Progress | None = None,
        check_invariants: bool = False,
        make_executor: MakeExecutor | None = None,
    ) -> ServedRun:
        if observers or make_executor is not None:
            one_replica(self.scenario, "decisions and real engines")
        keys = self.scenario.cluster
        assert keys is not None, "it is a cluster"
        rng = np.random.default_rng(np.random.SeedSequence(self.scenario.seed, spawn_key=(_STREAM,)))
        if self.pools is not None:
            return self.pools.serve(requests, plan, rng, progress=progress, check_invariants=check_invariants)
        served = serve_fleet(
            requests,
            [kind for _, kind in self.kinds],
            build_router(self.scenario, self.policies),
            counts=[count for count, _ in self.kinds],
            plan=plan,
            rng=rng,
            signal_delay=keys.signal_delay_s,
            retry=keys.retry,
            outages=[Outage(each.replica, each.at_s, each.back_s) for each in keys.outages],
            scaling=None if keys.autoscaler is None else _scaling(keys.autoscaler),
            horizon=self.scenario.run.horizon_s,
            progress=progress,
            check_invariants=check_invariants,
        )
        return ServedRun.by_fleet(served, list(self.machine.kinds))


def _kinds(
    scenario: Scenario, machine: Machine, policies: Policies, timing: Timing | None
) -> list[tuple[int, ReplicaKind]]:
    found: list[tuple[int, ReplicaKind]] = []
    acceptance = build_acceptance(scenario.speculative, scenario.seed)
    for (count, each), its in zip(replica_scenarios(scenario), machine.kinds, strict=True):
        kind = ReplicaKind(
            its.hardware.name,
            each.parallel.num_gpus,
            partial(_own_scheduler, each, its, policies),
            its.latency if timing is None else timing(its.latency, len(found)),
            each.scheduler.async_scheduling,
            acceptance,
        )
        found.append((count, kind))
    return found


def _own_scheduler(scenario: Scenario, machine: Machine, policies: Policies) -> Scheduler:
    """Make one replica's scheduler; policies that are objects with a state are copied for it."""
    names = {axis.name for axis in AXES.values()} & {each.name for each in fields(policies)}
    own = {name: deepcopy(getattr(policies, name)) for name in names}
    return build_scheduler(scenario, machine, replace(policies, **own))


def _scaling(keys: AutoscalerSection) -> Scaling:
    return Scaling(
        AUTOSCALERS[keys.kind](keys.target, keys.scale_down),
        most=keys.max_replicas,
        least=keys.min_replicas,
        interval=keys.interval_s,
        start_delay=keys.start_delay_s,
    )
