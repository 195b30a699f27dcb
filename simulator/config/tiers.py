"""The memory tiers below the GPU, as a scenario names them and as objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator

from simulator.config.key_types import NonNegative, Positive, Section
from simulator.errors import ConfigError
from simulator.kv.size import GIB
from simulator.kv.tiers import Tier, Tiers


class TierSection(Section):
    name: Annotated[str, Field(min_length=1, max_length=40)]
    capacity_gib: Positive
    bandwidth_gb_s: Positive  # 1e9 bytes/s, in each direction
    latency_us: NonNegative = 10
    offload: bool = True

    @field_validator("name")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError(f"must be one line of printable characters, got {value!r:.80}")
        return value


def build_tiers(sections: Sequence[TierSection], block_bytes: int) -> Tiers | None:
    """Return the tiers, None if there are none; ConfigError for one that holds no block."""
    tiers = []
    for i, keys in enumerate(sections):
        num_blocks = int(keys.capacity_gib * GIB) // block_bytes
        if num_blocks < 1:
            raise ConfigError(
                f"kv.tiers.{i}.capacity_gib: must hold a KV block of {block_bytes:,} bytes, "
                f"got {keys.capacity_gib:g}"
            )
        tiers.append(
            Tier(
                keys.name,
                num_blocks,
                block_bytes,
                bandwidth=keys.bandwidth_gb_s * 1e9,
                latency=keys.latency_us / 1e6,
                offload=keys.offload,
            )
        )
    return Tiers(tiers) if tiers else None
