"""The section `cluster.disaggregation` of a scenario: two pools of replicas and the link between them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.cluster.serve_disaggregated import LEASE
from simulator.config.key_types import NonNegative, Positive, Section
from simulator.config.replicas import ReplicaSection
from simulator.specs.links import DEFAULT_LATENCY, LINE_RATES, NVLINK

LINKS = ", ".join((NVLINK, *LINE_RATES))


class LinkSection(Section):
    name: str | None = Field(None, description=f"{LINKS}; null = a wire of your own")
    bandwidth_gb_s: Positive | None = Field(
        None, description="1e9 bytes/s (not bits) that a replica sends or receives; null = the line rate"
    )
    latency_us: NonNegative = Field(DEFAULT_LATENCY * 1e6, description="of each transfer")


class DisaggregationSection(Section):
    prefill: ReplicaSection = ReplicaSection()
    decode: ReplicaSection = ReplicaSection()
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
