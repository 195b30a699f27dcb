"""What serves a disaggregated scenario: two pools of replicas and the link between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.cluster.fleet import Outage
from simulator.cluster.routers import ROUTERS, Router
from simulator.cluster.serve import ReplicaKind
from simulator.cluster.serve_disaggregated import serve_disaggregated
from simulator.config.build import Machine
from simulator.config.disaggregation import DisaggregationSection, LinkSection
from simulator.config.scenario import Scenario
from simulator.config.served import ServedRun
from simulator.engine.clients import ClientPlan, Progress
from simulator.errors import ConfigError, suggest
from simulator.request import Request
from simulator.specs.hardware import Hardware
from simulator.specs.links import FASTEST, Link, line_rate

WHERE = "cluster.disaggregation"


@dataclass(frozen=True)
class Pools:
    """The prefill and the decode pool of a scenario, each of one kind of replica."""

    scenario: Scenario
    machines: Sequence[Machine]  # of a prefill and of a decode replica
    prefill: list[ReplicaKind]
    decode: list[ReplicaKind]
    link: Link
    block_bytes: int  # useful ones, of all ranks together
    num_layers: int | None  # where layers are sent as they are computed
    routers: tuple[Router | type, Router | type]

    def serve(
        self,
        requests: Sequence[Request],
        plan: ClientPlan,
        rng: np.random.Generator,
        *,
        progress: Progress | None = None,
        check_invariants: bool = False,
    ) -> ServedRun:
        """Serve one run."""
        cluster = self.scenario.cluster
        assert cluster is not None, "it is a cluster"
        keys = cluster.disaggregation
        assert keys is not None, "it is of two pools"
        served = serve_disaggregated(
            requests,
            self.prefill,
            self.decode,
            self.link,
            block_bytes=self.block_bytes,
            rng=rng,
            prefill_router=self.routers[0],
            decode_router=self.routers[1],
            num_layers=self.num_layers,
            first_token=keys.first_token,
            lease=keys.lease_s,
            plan=plan,
            signal_delay=cluster.signal_delay_s,
            retry=cluster.retry,
            outages=[Outage(each.replica, each.at_s, each.back_s) for each in cluster.outages],
            horizon=self.scenario.run.horizon_s,
            progress=progress,
            check_invariants=check_invariants,
        )
        return ServedRun.by_fleet(served, list(self.machines))


def build_pools(
    scenario: Scenario,
    keys: DisaggregationSection,
    machines: Sequence[Machine],
    kinds: Sequence[tuple[int, ReplicaKind]],
) -> Pools:
    """Make both pools and the link of a scenario; ConfigError names the key that does not fit."""
    if scenario.speculative is not None:
        raise ConfigError(f"{WHERE}: must be null under speculative, whose drafts it does not know")
    if any(each.kv.pipeline_parallel_size > 1 for each in machines):
        raise ConfigError(f"{WHERE}: parallel.pipeline_parallel_size must be 1 in both pools")
    if any(kind.make_scheduler().keeps_finished for _, kind in kinds):
        raise ConfigError(f"{WHERE}: must be null under scheduler.batching static, which keeps its places")
    prefill, decode = machines
    (num_prefill, one), (num_decode, other) = kinds
    model, dtype = prefill.model, scenario.kv.kv_cache_dtype
    return Pools(
        scenario,
        machines,
        [one] * num_prefill,
        [other] * num_decode,
        build_link(keys.link, prefill.hardware, decode.hardware),
        block_bytes=model.kv_bytes_per_token(dtype) * scenario.kv.block_size,
        num_layers=model.num_layers if keys.layerwise else None,
        routers=(
            _router(keys.prefill_router, "prefill_router"),
            _router(keys.decode_router, "decode_router"),
        ),
    )


def build_link(keys: str | LinkSection, *gpus: Hardware) -> Link:
    """Return the link between two GPUs; ConfigError for one that is unknown or faster than its wire."""
    if isinstance(keys, str):
        return Link(line_rate(keys, gpus, f"{WHERE}.link"))
    latency = keys.latency_us / 1e6
    if keys.name is None and keys.bandwidth_gb_s is None:
        raise ConfigError(f"{WHERE}.link: needs a name or bandwidth_gb_s")
    rate, wire = FASTEST, "the fastest link between GPUs"
    if keys.name is not None:
        rate, wire = line_rate(keys.name, gpus, f"{WHERE}.link.name"), keys.name
    if keys.bandwidth_gb_s is None:
        return Link(rate, latency)
    asked = keys.bandwidth_gb_s * 1e9
    if asked > rate:
        raise ConfigError(
            f"{WHERE}.link.bandwidth_gb_s: must be <= {rate / 1e9:.4g} GB/s ({rate * 8 / 1e9:.4g} Gb/s), the "
            f"line rate of {wire}, got {keys.bandwidth_gb_s:g}"
        )
    return Link(asked, latency)


def _router(name: str, key: str) -> Router | type:
    if name not in ROUTERS:
        raise ConfigError(f"{WHERE}.{key}: unknown {name!r:.80}{suggest(name, ROUTERS)}")
    return ROUTERS[name]
