"""The section `cluster.disaggregation` of a scenario: two pools of replicas and the link between them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from simulator.cluster.serve_disaggregated import LEASE
from simulator.config.key_types import Count, NonNegative, Positive, Section
from simulator.specs.links import DEFAULT_LATENCY, LINE_RATES, NVLINK

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
        "prefill",
        description="who gives the first token: prefill as in DistServe, decode under vLLM's proxies",
    )
    lease_s: Positive = Field(LEASE, description="most that a prefill replica keeps blocks nobody fetches")
    prefill_router: str = "least_outstanding"
    decode_router: str = "least_kv"
