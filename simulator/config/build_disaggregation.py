"""What a scenario's disaggregation is made of: two pools of replicas and the link between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from simulator.cluster.routers import ROUTERS, PrefixAffinity, Router
from simulator.cluster.serve import ReplicaKind
from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine, build_scheduler
from simulator.config.disaggregation import DisaggregationSection, LinkSection, PoolSection
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.specs.hardware import Hardware
from simulator.specs.links import FASTEST, Link, line_rate

WHERE = "cluster.disaggregation"


@dataclass(frozen=True)
class Pools:
    """What a scenario's disaggregation is made of; pass it on to `serve_disaggregated`."""

    prefill: list[ReplicaKind]
    decode: list[ReplicaKind]
    machines: tuple[Machine, Machine]  # of a prefill and of a decode replica
    link: Link
    block_bytes: int  # useful ones, of all ranks together
    num_layers: int | None  # where layers are sent as they are computed
    routers: tuple[Router | type[PrefixAffinity], Router | type[PrefixAffinity]]

    @property
    def num_gpus(self) -> int:
        """GPUs of both pools."""
        return sum(kind.gpus for kind in (*self.prefill, *self.decode))


def build_pools(scenario: Scenario, keys: DisaggregationSection, policies: Policies = NO_POLICIES) -> Pools:
    """Make both pools and the link of a scenario; ConfigError names the key that does not fit."""
    if scenario.speculative is not None:
        raise ConfigError(f"{WHERE}: must be null under speculative, whose drafts it does not know")
    pools = [_pool(scenario, keys.prefill, policies), _pool(scenario, keys.decode, policies)]
    (prefill, one), (decode, other) = pools
    model, dtype = one.model, scenario.kv.kv_cache_dtype
    return Pools(
        prefill,
        decode,
        (one, other),
        build_link(keys.link, one.hardware, other.hardware),
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


def _pool(scenario: Scenario, keys: PoolSection, policies: Policies) -> tuple[list[ReplicaKind], Machine]:
    """Return a pool's replicas, all alike, and what they run on."""
    changes = {
        "hardware.gpu": keys.gpu,
        "parallel.tensor_parallel_size": keys.tensor_parallel_size,
        "scheduler.max_num_seqs": keys.max_num_seqs,
        "scheduler.max_num_batched_tokens": keys.max_num_batched_tokens,
        "kv.num_gpu_blocks_override": keys.num_gpu_blocks_override,
    }
    own = scenario.with_(**{key: value for key, value in changes.items() if value is not None})
    machine = build_machine(own)
    kind = ReplicaKind(
        machine.hardware.name,
        own.parallel.tensor_parallel_size,
        partial(build_scheduler, own, machine, policies),
        machine.latency,
        own.scheduler.async_scheduling,
    )
    return [kind] * keys.count, machine


def _router(name: str, key: str) -> Router | type[PrefixAffinity]:
    if name not in ROUTERS:
        raise ConfigError(f"{WHERE}.{key}: unknown {name!r:.80}{suggest(name, ROUTERS)}")
    return ROUTERS[name]
