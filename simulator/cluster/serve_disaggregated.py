"""Serve requests on a prefill pool and a decode pool, from the first arrival to the last answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import simpy

from simulator.cluster.disaggregation import Disaggregated
from simulator.cluster.fleet import Outage
from simulator.cluster.members import Member
from simulator.cluster.pool import Pool
from simulator.cluster.routers import Router, RouterContext, least_kv, least_outstanding
from simulator.cluster.serve import FleetServed, ReplicaKind
from simulator.cluster.wires import Transfer, Wires
from simulator.engine.clients import OPEN_LOOP, ClientPlan, Clients, Progress
from simulator.engine.pooled import DecodeReplica, PrefillReplica
from simulator.engine.replica import Replica
from simulator.engine.serve import put_together, run_until
from simulator.engine.sleeping import Turn
from simulator.kv.remote import connect
from simulator.metrics.request_log import RequestLog
from simulator.request import Request
from simulator.specs.links import Link

LEASE = 480.0
"""s that parked blocks wait for whoever fetches them: vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


@dataclass
class DisaggregatedServed(FleetServed):
    """A finished simulation; `members` are those of both pools, as they began."""

    prefill: list[Member]
    decode: list[Member]
    transfers: list[Transfer]  # that have ended, in that order
    num_called_off: int
    num_expired: int  # leases


def serve_disaggregated(
    requests: Sequence[Request],
    prefill_kinds: Sequence[ReplicaKind],
    decode_kinds: Sequence[ReplicaKind],
    link: Link,
    *,
    block_bytes: int,
    rng: np.random.Generator,
    prefill_router: Router | type = least_outstanding,
    decode_router: Router | type = least_kv,
    num_layers: int | None = None,
    first_token: Literal["prefill", "decode"] = "prefill",
    lease: float = LEASE,
    plan: ClientPlan = OPEN_LOOP,
    signal_delay: float = 0.0,
    retry: bool = True,
    outages: Iterable[Outage] = (),
    horizon: float | None = None,
    progress: Progress | None = None,
    check_invariants: bool = False,
    skip: bool = True,
) -> DisaggregatedServed:
    """Run requests, given in order of arrival, on one replica for each kind, until all are done.

    `block_bytes` are the useful bytes of a KV block, of all ranks together. `num_layers` says that layers are
    sent as they are computed. The first token is the prefill replica's, or sampled once more by the decode
    replica, as under vLLM's proxies. `outages` count the prefill replicas first. `lease` (s) ends what waits
    too long to be fetched, `horizon` (s, inclusive) the whole run.
    """
    kinds = [*prefill_kinds, *decode_kinds]
    _check(kinds, block_bytes)
    env, log, turn = simpy.Environment(), RequestLog(len(requests)), Turn()
    made: list[int] = []  # the kind of each replica so far

    def make_member(index: int, like: int, now: float) -> Member:
        made.append(made[like] if index >= len(kinds) else index)
        kind = kinds[made[index]]
        half = PrefillReplica if made[index] < len(prefill_kinds) else DecodeReplica
        scheduler = kind.make_scheduler()
        if half is DecodeReplica:
            connect(scheduler.kv)
        replica: Replica = put_together(
            half,
            env,
            scheduler,
            kind.latency,
            log,
            async_scheduling=kind.async_scheduling,
            check_invariants=check_invariants,
            skip=skip,
            index=index,
            turn=turn,
        )
        return Member(index, kind.name, kind.gpus, replica, now, kind=int(made[index] >= len(prefill_kinds)))

    block_size = kinds[0].make_scheduler().kv.block_size
    streams = rng.spawn(2)
    server = Disaggregated(
        env,
        log,
        (
            _pool(prefill_router, streams[0], block_size, signal_delay),
            _pool(decode_router, streams[1], block_size, signal_delay),
        ),
        make_member,
        (len(prefill_kinds), len(decode_kinds)),
        wires := Wires(env, link, num_layers),
        block_bytes,
        lease=lease,
        early=first_token == "prefill",
        signal_delay=signal_delay,
        retry=retry,
        outages=outages,
    )
    Clients(env, server, requests, plan, progress)
    run_until(env, horizon, lambda: [member.replica.fault for member in server.members])
    for member in server.members:
        member.replica.close()
        member.replica.scheduler.check()
    if progress is not None:
        progress(log.num_done, len(requests))
    return DisaggregatedServed(
        log,
        server.members,
        server.num_retried,
        server.prefill.num_held + server.decode.num_held,
        float(np.nanmax(np.array(log.finished_at))) if log.num_done else float(env.now),
        prefill=server.prefill.members,
        decode=server.decode.members,
        transfers=wires.done,
        num_called_off=wires.num_called_off,
        num_expired=server.leases.num_expired,
    )


def _check(kinds: Sequence[ReplicaKind], block_bytes: int) -> None:
    """Raise ValueError unless what one pool computes fits the other one."""
    if block_bytes < 1:
        raise ValueError(f"block_bytes must be >= 1, got {block_bytes}")
    made = [kind.make_scheduler() for kind in kinds]
    for name, found in (
        ("block_size", {each.kv.block_size for each in made}),
        ("max_model_len", {each.max_model_len for each in made}),
    ):
        if len(found) > 1:
            raise ValueError(f"{name} must be the same in both pools, got {sorted(found)}")


def _pool(router: Router | type, rng: np.random.Generator, block_size: int, signal_delay: float) -> Pool:
    made = router() if isinstance(router, type) else router
    return Pool(made, RouterContext(rng, block_size), signal_delay)
