"""Serve a workload on one simulated replica: arrivals, rejections, timeouts, the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import simpy

from simulator.engine.decisions import DecisionLog
from simulator.engine.oracle import SimulatedExecutor
from simulator.engine.replica import Replica
from simulator.kv.prefix import PrivateIds
from simulator.latency.base import LatencyModel
from simulator.metrics.recorder import Recorder
from simulator.request import Request, Sequence
from simulator.schedulers.base import Scheduler

Progress = Callable[[int, int], None]
"""Called with (requests done, requests in all) now and then."""


class Served(NamedTuple):
    """A finished simulation: what was recorded, and the scheduler as it was left."""

    recorder: Recorder
    scheduler: Scheduler
    log: DecisionLog | None


def why_rejected(request: Request, scheduler: Scheduler) -> str | None:
    """Say why a request could never be served, None if it can."""
    if request.num_prompt >= scheduler.max_model_len:
        return "prompt >= max_model_len"
    length = request.num_prompt + min(request.num_output, request.max_tokens)
    rows = min(length, scheduler.max_model_len) - 1
    if scheduler.kv.blocks_for(rows) > scheduler.kv.pool.num_blocks:
        return "needs more KV blocks than there are"
    return None


def serve(
    requests: Iterable[Request],
    num_requests: int,
    scheduler: Scheduler,
    latency: LatencyModel,
    *,
    async_scheduling: bool = False,
    horizon: float | None = None,
    log: DecisionLog | None = None,
    progress: Progress | None = None,
    check_invariants: bool = False,
) -> Served:
    """Run requests, given in order of arrival, until all are done or the horizon (s, inclusive) is over."""
    env = simpy.Environment()
    recorder = Recorder(num_requests)
    executor = SimulatedExecutor(env, latency, scheduler.decodes)
    replica = Replica(
        env,
        scheduler,
        executor,
        recorder,
        async_scheduling=async_scheduling,
        log=log,
        check_invariants=check_invariants,
    )
    env.process(_arrive(env, replica, requests, progress, num_requests))
    env.run() if horizon is None else env.run(until=math.nextafter(horizon, math.inf))
    replica.close()
    scheduler.check()
    if progress is not None:
        progress(recorder.num_done, num_requests)
    return Served(recorder, scheduler, log)


def _arrive(
    env: simpy.Environment,
    replica: Replica,
    requests: Iterable[Request],
    progress: Progress | None,
    num_requests: int,
) -> Generator[simpy.events.Event, None, None]:
    private = PrivateIds()
    scheduler, recorder = replica.scheduler, replica.recorder
    every = max(1, num_requests // 200)
    for index, request in enumerate(requests):
        yield from _wait_until(env, request.arrival)
        reason = why_rejected(request, scheduler)
        if reason is not None:
            recorder.rejected(index, request.arrival, reason)
            continue
        seq = make_sequence(index, request, scheduler, private)
        replica.executor.tell(seq, request.num_output)
        replica.submit(seq)
        if request.timeout is not None:
            _abort_after(request.timeout, replica, seq)
        if progress is not None and index % every == 0:
            progress(recorder.num_done, num_requests)


def _abort_after(seconds: float, replica: Replica, seq: Sequence) -> None:
    callbacks = replica.env.timeout(seconds).callbacks
    assert callbacks is not None, "a new timeout has not been processed"
    callbacks.append(lambda _: replica.abort(seq))


def _wait_until(env: simpy.Environment, moment: float) -> Generator[simpy.events.Event, None, None]:
    """Let time pass until exactly `moment`: now + (moment - now) may miss it by a rounding."""
    while env.now < moment:
        delay = moment - env.now
        yield env.timeout(delay if env.now + delay <= moment else math.nextafter(delay, 0.0))


def make_sequence(index: int, request: Request, scheduler: Scheduler, private: PrivateIds) -> Sequence:
    """Make what the engine may know of a request: everything but the true output length."""
    ranges, shared = [], 0
    if scheduler.kv.enable_prefix_caching:
        ranges = list(request.block_hashes)
        shared = sum(hi - lo for lo, hi in ranges)
        longest = min(request.num_prompt + request.max_tokens, scheduler.max_model_len)
        rest = scheduler.kv.blocks_for(longest) - shared
        if rest > 0:
            ranges.append(private.take(rest))
    return Sequence(
        request.id,
        request.num_prompt,
        request.max_tokens,
        index=index,
        arrival=request.arrival,
        priority=request.priority,
        tenant=request.tenant,
        deadline=None if request.timeout is None else request.arrival + request.timeout,
        hash_ranges=ranges,
        hash_private_from=shared,
    )
