"""Kinds of replicas: how many, and what differs from the scenario's keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from simulator.config.checking import validate
from simulator.config.key_types import Count, Section
from simulator.errors import ConfigError

MAX_REPLICAS = 4096
MAY_DIFFER = ("hardware.", "parallel.", "kv.", "scheduler.", "latency.")
"""Where the keys lie that kinds of replicas may have of their own .."""
ALIKE = (
    *("kv.block_size", "kv.enable_prefix_caching", "kv.eviction"),
    *("scheduler.batching", "scheduler.order", "scheduler.victim", "scheduler.admission"),
)
""".. but for these: policies, and what the hashes of prompts depend on."""


class ReplicaSection(Section):
    count: Annotated[Count, Field(le=MAX_REPLICAS)] = 1
    set: dict[str, Any] = Field({})  # dotted keys of the scenario that differ for these replicas

    @field_validator("set")
    @classmethod
    def _may_differ(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not key.startswith(MAY_DIFFER) or key in ALIKE:
                raise ValueError(
                    f"{key!r:.80} is the same for all replicas; hardware, parallel, latency, memory and the "
                    "scheduler's limits may differ"
                )
        return value


def kind_of(value: object, i: int) -> ReplicaSection:
    """Check the i-th of a list of kinds; ConfigError says what is wrong with it."""
    if isinstance(value, ReplicaSection):
        return value
    if not isinstance(value, dict):
        raise ConfigError(f"kind {i}: must be a mapping such as {{count: 2, set: {{..}}}}, got {value!r:.80}")
    return validate(ReplicaSection, value, f"kind {i}")
