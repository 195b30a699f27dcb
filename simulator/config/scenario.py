"""The scenario: everything that defines a run, checked when it is read.

One pydantic model a section; `servetwin init` writes out the keys. Nothing below this package sees them.
Keys keep vLLM's spelling and defaults where vLLM has them (0.33, API server on an A100).
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from simulator.config.checking import change_keys, validate
from simulator.config.cluster import ClusterSection
from simulator.config.key_types import (
    Count,
    Fraction,
    NonNegative,
    NonNegativeInt,
    Number,
    Positive,
    PositiveFraction,
    Section,
    Whole,
    check_names,
)
from simulator.config.model_section import ModelSection
from simulator.config.parallel import ParallelSection
from simulator.config.plain_yaml import dump_yaml
from simulator.config.speculative import SpeculativeSection
from simulator.config.tiers import TierSection
from simulator.config.workload_section import WorkloadSection


class HardwareSection(Section):
    gpu: str = Field("a100-80gb-sxm", description="see `servetwin list hardware`")
    price_per_gpu_hour: Positive | None = Field(
        None, description="any currency; gives cost per million tokens, in all and by tenant"
    )


class KvSection(Section):
    block_size: Annotated[Whole, Field(ge=1, le=4096)] = Field(16, description="tokens a block")
    gpu_memory_utilization: PositiveFraction = 0.92
    num_gpu_blocks_override: Count | None = Field(
        None, description="vLLM prints it at start-up; best given. Usable = it - 1 (null block)"
    )
    reserve_gib: NonNegative = Field(2.5, description="activations and CUDA graphs; an assumption")
    kv_cache_dtype: Literal["auto", "fp8", "int8"] = Field("auto", description="auto | fp8 | int8")
    enable_prefix_caching: bool = True
    eviction: str = Field(
        "lru", description="lru | fifo | lfu | gdsf | decay | sieve | s3fifo | slru | file.py:name"
    )
    tiers: list[TierSection] = Field(
        [],
        description="below the GPU, fastest first: "
        "[{name: host, capacity_gib: 64, bandwidth_gb_s: 25, latency_us: 10, offload: true}]",
    )

    @field_validator("tiers")
    @classmethod
    def _names_differ(cls, value: list[TierSection]) -> list[TierSection]:
        check_names(tier.name for tier in value)
        return value


class SchedulerSection(Section):
    batching: str = Field(
        "chunked", description="static | continuous | prefill_first | chunked | file.py:Class"
    )
    order: str = Field("fcfs", description="see `servetwin list policies`; or file.py:name")
    victim: str | None = Field(
        None, description="see `servetwin list policies`; or file.py:name; null = vLLM's"
    )
    admission: list[str | dict[str, Any]] = Field(
        [], description="rules in order, e.g. [reserve_output, {queue_limit: 500}]"
    )
    preemption: Literal["recompute", "swap", "auto"] = Field(
        "recompute", description="recompute | swap | auto; what becomes of a victim's KV; swap needs kv.tiers"
    )
    max_num_seqs: Count = 256
    max_num_batched_tokens: Count = 2048
    long_prefill_token_threshold: NonNegativeInt = Field(0, description="0 = off")
    scheduler_reserve_full_isl: bool = Field(True, description="admit only if the whole prompt fits now")
    watermark: Fraction = Field(0.0, description="share of blocks kept free")
    async_scheduling: bool = Field(False, description="vLLM's default is true: host time overlaps the GPU")
    min_batch: Count | Literal["realtime", "offline"] = Field(
        1, description="start when so many wait; static: realtime = 4 / 50 ms, offline = 16 / 200 ms"
    )
    max_wait_ms: NonNegative = Field(0, description="or when the oldest has waited so long")

    @model_validator(mode="after")
    def _budget_covers_seats(self) -> SchedulerSection:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be >= "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        return self


class LatencySection(Section):
    kind: Literal["profile", "roofline", "linear"] = "profile"
    profile: str | None = Field(None, description="path; null = shipped for gpu + model, else the roofline")
    coefficients: dict[str, NonNegative] | None = Field(None, description="for linear, in seconds")

    @model_validator(mode="after")
    def _coefficients_go_with_linear(self) -> LatencySection:
        if (self.kind == "linear") != (self.coefficients is not None):
            raise ValueError("coefficients are needed for kind: linear, and only there")
        if self.profile is not None and self.kind != "profile":
            raise ValueError("profile is used only by kind: profile")
        return self


class SloSection(Section):
    ttft_ms: Positive | None = 500
    tpot_ms: Positive | None = 50
    e2el_ms: Positive | None = None
    attainment: PositiveFraction = Field(0.99, description="share of injected requests")

    def seconds(self) -> dict[str, float]:
        """Return the limits that are set, in seconds by metric."""
        limits = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2el": self.e2el_ms}
        return {name: limit / 1e3 for name, limit in limits.items() if limit is not None}


class RunSection(Section):
    warmup: Literal["none", "auto"] | Fraction | dict[str, NonNegativeInt] = Field(
        "none", description="none | auto (MSER-5) | 0.1 | {requests: 50}"
    )
    horizon_s: Positive | None = None
    percentiles: list[Annotated[Number, Field(ge=0, le=100)]] = Field([50, 90, 95, 99])
    percentile_method: Literal["linear", "nearest"] = "linear"

    @field_validator("warmup", mode="wrap")
    @classmethod
    def _one_rule(cls, value: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            if not isinstance(value, dict) or value.keys() == {"requests"}:
                return check(value)
        except ValidationError:
            pass
        raise ValueError(
            f"must be none, auto, a share below 1 such as 0.1, or {{requests: 50}}, got {value!r:.80}"
        )


LATER_KEYS: dict[str, object] = {
    "model.accuracy": None,
    "parallel.pipeline_parallel_size": 1,
    "parallel.expert_parallel": False,
    "parallel.expert_skew": 0.0,
    "speculative.num_speculative_tokens_per_batch_size": None,
    "speculative.lookup_us": 0.0,
    "cluster": None,
}
"""Keys that came after runs had their names, with defaults: at these they do not count in a digest."""


def without_later_keys(data: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario's data without those of `LATER_KEYS` that are at their defaults."""
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for key, default in LATER_KEYS.items():
        section, _, name = key.rpartition(".")
        where = kept[section] if section else kept
        if isinstance(where, dict) and where.get(name, default) == default:
            where.pop(name, None)
    return kept


class Scenario(Section):
    """One run's definition. Immutable: `with_` makes changed copies."""

    schema_: Literal[1] = Field(1, alias="schema")
    name: Annotated[str, Field(min_length=1, max_length=200)] = "chat-a100"
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] = 0
    model: ModelSection = ModelSection()
    hardware: HardwareSection = HardwareSection()
    parallel: ParallelSection = ParallelSection()
    kv: KvSection = KvSection()
    scheduler: SchedulerSection = SchedulerSection()
    speculative: SpeculativeSection | None = Field(
        None, description="{method: ngram | draft_model, num_speculative_tokens: 3, acceptance: 0.7}"
    )
    latency: LatencySection = LatencySection()
    workload: WorkloadSection = WorkloadSection()
    slo: SloSection = SloSection()
    run: RunSection = RunSection()
    cluster: ClusterSection | None = Field(
        None, description="{replicas: 2, router: least_outstanding, signal_delay_s: 0.1}; null = one replica"
    )

    @field_validator("name")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError(f"must be one line of printable characters, got {value!r:.80}")
        return value

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers, in the order of the file."""
        return self.model_dump(by_alias=True)

    def with_(self, **changes: object) -> Scenario:
        """Return a copy with keys changed: `with_(**{"scheduler.max_num_seqs": 128})`.

        ConfigError names an unknown key and the nearest known one.
        """
        return validate(Scenario, change_keys(Scenario, self.to_dict(), changes), self.name)

    def to_yaml(self) -> str:
        """Return the scenario as a file that `load_scenario` reads back."""
        return dump_yaml(self.to_dict())

    def digest(self) -> str:
        """Return 8 hex digits that differ when anything about the run differs."""
        text = json.dumps(without_later_keys(self.to_dict()), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]
