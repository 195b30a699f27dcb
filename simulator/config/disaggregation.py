"""The section `cluster.disaggregation`, and the two pools and the link that it describes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import Field, field_validator

from simulator.cluster.routers import ROUTERS, PrefixAffinity, Router
from simulator.cluster.serve import ReplicaKind
from simulator.cluster.serve_disaggregated import LEASE
from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine, build_scheduler
from simulator.config.key_types import Count, NonNegative, Positive, Section
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.specs.hardware import Hardware
from simulator.specs.links import DEFAULT_LATENCY, FASTEST, LINE_RATES, NVLINK, Link, line_rate

WHERE = "cluster.disaggregation"
LINKS = ", ".join((NVLINK, *LINE_RATES))
MOST_REPLICAS = 1024  # a guard against typing errors: more than anybody simulates on one core


class PoolSection(Section):
    """Replicas of one pool; what is null is the scenario's own."""

    count: Count = Field(1, le=MOST_REPLICAS, description="replicas")
    gpu: str | None = Field(None, description="null = hardware.gpu")
    tensor_parallel_size: Literal[1, 2, 4, 8] | None = Field(None, description="null = parallel's")
    max_num_seqs: Count | None = Field(None, description="null = scheduler's")
    max_num_batched_tokens: Count | None = Field(None, description="null = scheduler's")
    num_gpu_blocks_override: Count | None = Field(None, description="null = kv's")

    @field_validator("tensor_parallel_size", mode="before")
    @classmethod
    def _no_flag(cls, value: object) -> object:
        if isinstance(value, bool | float):  # equal to 1 in Python, not in a file
            raise ValueError(f"must be 1, 2, 4 or 8, got {value}")
        return value


class LinkSection(Section):
    name: str | None = Field(None, description=f"{LINKS}; null = a wire of your own")
    bandwidth_gb_s: Positive | None = Field(
        None, description="1e9 bytes/s (not bits) that a replica sends or receives; null = the line rate"
    )
    latency_us: NonNegative = Field(DEFAULT_LATENCY * 1e6, description="of each transfer")


class DisaggregationSection(Section):
    prefill: PoolSection = PoolSection()
    decode: PoolSection = PoolSection()
    link: str | LinkSection = Field(
        "ib-400g", description=f"{LINKS} | {{bandwidth_gb_s: 40, latency_us: 10}}"
    )
    layerwise: bool = Field(False, strict=True, description="send each layer as soon as it is computed")
    first_token: Literal["prefill", "decode"] = Field(
        "prefill", description="who gives the first token: DistServe, SGLang: prefill; vLLM's proxies: decode"
    )
    lease_s: Positive = Field(LEASE, description="most that a prefill replica keeps blocks nobody fetches")
    prefill_router: str = "least_outstanding"
    decode_router: str = "least_kv"


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
