"""Serve requests on one simulated replica, from the first arrival to the last answer."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import simpy

from simulator.engine.clients import OPEN_LOOP, ClientPlan, Clients, Progress
from simulator.engine.executor import Executor
from simulator.engine.fault import FirstFault
from simulator.engine.links import Links
from simulator.engine.observer import Observer
from simulator.engine.oracle import SimulatedExecutor
from simulator.engine.pipeline import Line, PipelinedReplica
from simulator.engine.replica import Replica
from simulator.engine.sleeping import Turn
from simulator.engine.speculating_oracle import SpeculatingExecutor
from simulator.latency.base import LatencyModel
from simulator.latency.pipeline import pipeline_of
from simulator.metrics.lanes import LaneRecorder
from simulator.metrics.recorder import Recorder
from simulator.metrics.request_log import RequestLog
from simulator.metrics.verifications import Verifications
from simulator.request import Request
from simulator.schedulers.base import Scheduler
from simulator.speculative import Acceptance


@contextmanager
def without_gc() -> Iterator[None]:
    """Leave memory to reference counts meanwhile: a run makes no cycles, and looking for them costs 10 %."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


SomeReplica = TypeVar("SomeReplica", bound=Replica)
MakeExecutor = Callable[[Scheduler, SimulatedExecutor], Executor]
"""Makes a real executor for a scheduler; it may ask the simulated one for the truth and for predictions."""


class Served(NamedTuple):
    """A finished simulation: what was recorded, the scheduler as it was left, and its pipeline's stages."""

    recorder: Recorder
    scheduler: Scheduler
    line: Line | None = None


def serve(
    requests: Sequence[Request],
    scheduler: Scheduler,
    latency: LatencyModel,
    *,
    plan: ClientPlan = OPEN_LOOP,
    async_scheduling: bool = False,
    horizon: float | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    check_invariants: bool = False,
    skip: bool = True,
    make_executor: MakeExecutor | None = None,
    acceptance: Acceptance | None = None,
) -> Served:
    """Run requests, given in order of arrival, until all are done or the horizon (s, inclusive) is over.

    With `make_executor` another one executes the batches: a real engine. A scheduler that speculates needs
    an `acceptance`, which says what becomes of its drafts.
    """
    env = simpy.Environment()
    replica: Replica = make_replica(
        env,
        scheduler,
        latency,
        RequestLog(len(requests)),
        async_scheduling=async_scheduling,
        observers=observers,
        check_invariants=check_invariants,
        skip=skip,
        make_executor=make_executor,
        acceptance=acceptance,
    )
    Clients(env, replica, requests, plan, progress)
    run_until(env, horizon, lambda: [replica.fault])
    replica.close()
    scheduler.check()
    if progress is not None:
        progress(replica.log.num_done, len(requests))
    return Served(replica.recorder, scheduler, line_of(replica))


def line_of(replica: Replica) -> Line | None:
    """Return the stages of a replica that is a pipeline."""
    return replica.executor.line if isinstance(replica, PipelinedReplica) else None


def make_replica(
    env: simpy.Environment,
    scheduler: Scheduler,
    latency: LatencyModel,
    log: RequestLog,
    *,
    async_scheduling: bool = False,
    observers: Sequence[Observer] = (),
    check_invariants: bool = False,
    skip: bool = True,
    index: int = 0,
    turn: Turn | None = None,
    make_executor: MakeExecutor | None = None,
    acceptance: Acceptance | None = None,
) -> Replica:
    """Put a scheduler, its executor and its records together; the arguments are those of `serve`.

    In a fleet a replica has an index, and shares the `turn` with the others.
    """
    pipeline = pipeline_of(latency)
    if pipeline is None:
        return put_together(
            Replica,
            env,
            scheduler,
            latency,
            log,
            async_scheduling=async_scheduling,
            observers=observers,
            check_invariants=check_invariants,
            skip=skip,
            index=index,
            turn=turn,
            make_executor=make_executor,
            acceptance=acceptance,
        )
    if async_scheduling or scheduler.speculation or scheduler.kv.tiers or scheduler.keeps_finished:
        raise ValueError("a pipeline knows no async_scheduling, speculation, tiers or static batches")
    replica = PipelinedReplica(
        env,
        scheduler,
        pipeline,
        LaneRecorder(log, scheduler.kv.pool.num_blocks),
        observers=observers,
        check_invariants=check_invariants,
        index=index,
        turn=turn,
    )
    _tell_policies(scheduler, pipeline, replica.executor)
    return replica


def put_together(
    make: type[SomeReplica],
    env: simpy.Environment,
    scheduler: Scheduler,
    latency: LatencyModel,
    log: RequestLog,
    *,
    async_scheduling: bool = False,
    observers: Sequence[Observer] = (),
    check_invariants: bool = False,
    skip: bool = True,
    index: int = 0,
    turn: Turn | None = None,
    make_executor: MakeExecutor | None = None,
    acceptance: Acceptance | None = None,
) -> SomeReplica:
    """Make a replica of a kind that has one batch under way, as `make_replica` does."""
    recorder = Recorder(log, scheduler.kv.pool.num_blocks)
    tiers = scheduler.kv.tiers
    links = None if tiers is None else Links(tiers)
    if scheduler.speculation is None:
        simulated = SimulatedExecutor(latency, scheduler.decodes, links)
    else:
        simulated = _speculating(scheduler, latency, links, acceptance, async_scheduling)
        recorder.verifications = Verifications()
    executor = simulated if make_executor is None else make_executor(scheduler, simulated)
    _tell_policies(scheduler, latency, executor)
    return make(
        env,
        scheduler,
        executor,
        recorder,
        async_scheduling=async_scheduling,
        observers=observers,
        check_invariants=check_invariants,
        skip=skip and make_executor is None,
        index=index,
        turn=turn,
    )


def _tell_policies(scheduler: Scheduler, latency: LatencyModel, executor: Executor) -> None:
    """Let policies know the price of steps, and the oracles among them the truth."""
    if scheduler.latency is None:
        scheduler.latency = latency
    policies = (scheduler.waiting.order, scheduler.victim, *scheduler.admission)
    if any(getattr(policy, "__name__", "").endswith("_oracle") for policy in policies):
        scheduler.ctx.open_oracle(executor.remaining)


def run_until(
    env: simpy.Environment, horizon: float | None, faults: Callable[[], Iterable[FirstFault]]
) -> None:
    """Run until nothing is left to happen, or the horizon (s, inclusive); raise the first fault as it was."""
    try:
        with without_gc():
            env.run() if horizon is None else env.run(until=math.nextafter(horizon, math.inf))
    except (Exception, SystemExit) as error:
        first = next((each.error for each in faults() if each.error is not None), None)
        if first is None or first is error:
            raise
        raise first from first.__cause__


def _speculating(
    scheduler: Scheduler,
    latency: LatencyModel,
    links: Links | None,
    acceptance: Acceptance | None,
    async_scheduling: bool,
) -> SimulatedExecutor:
    if acceptance is None or async_scheduling:
        raise ValueError("speculation needs an acceptance model, and knows no async_scheduling")
    return SpeculatingExecutor(latency, scheduler.decodes, links, acceptance)
