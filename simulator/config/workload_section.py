"""The section `workload` of a scenario: who sends what and when."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from simulator.config.key_types import (
    Count,
    NonNegative,
    Number,
    Positive,
    Section,
    Whole,
    check_names,
)
from simulator.errors import suggest
from simulator.workload.predictor import MAX_SIGMA

SLO_KEYS = ("ttft_ms", "tpot_ms", "e2el_ms")


class SessionsSection(Section):
    replay: Literal["think", "timestamp", "scaled"] = Field(
        "think", description="next turn at completion + think time | as recorded | recorded times scaled"
    )
    think_cap_s: Positive | None = 60
    time_scale: Positive = Field(1.0, description="scaled: factor on the recorded server times")


class CancelSection(Section):
    fraction: Annotated[float, Field(ge=0, le=1)]
    after_s: NonNegative


class PredictedLenSection(Section):
    sigma: Annotated[Number, Field(ge=0, le=MAX_SIGMA)]


class TenantSection(Section):
    name: Annotated[str, Field(min_length=1)]
    share: NonNegative | None = None  # null: an equal part
    weight: Annotated[Number, Field(ge=1e-6, le=1e6)] = 1.0  # service is divided by it
    priority: Annotated[Whole, Field(ge=-(2**31), lt=2**31)] | None = None  # null: the trace's, else 0
    slo: dict[str, Positive | None] | None = None  # those named replace the scenario's; a null lifts it

    @field_validator("slo", mode="before")
    @classmethod
    def _known_limits(cls, value: object) -> object:
        for key in value if isinstance(value, dict) else ():
            if key not in SLO_KEYS:
                raise ValueError(f"unknown key {key!r:.80}{suggest(key, SLO_KEYS)}")
        return value


class WorkloadSection(Section):
    trace: str | None = Field(None, description="file; else arrivals and lengths are drawn")
    format: str = "auto"
    columns: dict[str, str] | None = Field(
        None, description="{arrival: ts, prompt: in_tok, output: out_tok, tenant: user}"
    )
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="never guessed")
    start_s: NonNegative = 0
    duration_s: Positive | None = None
    limit: Count | None = None
    rate_scale: Positive = 1.0
    spread_ms: NonNegative = Field(0, description="spread coarse time stamps; Mooncake: 3000")
    arrivals: dict[str, Any] = Field({"kind": "profile", "name": "azure-conv"})
    lengths: dict[str, Any] = Field({"kind": "table", "name": "azure-conv"})
    max_concurrency: Count | None = Field(None, description="the client keeps at most so many under way")
    max_tokens: Count | None = Field(
        None, description="what the client asks for; null = the trace's column, else 2048"
    )
    num_requests: Count = 2000
    sessions: SessionsSection | None = Field(
        None, description="{replay: think, think_cap_s: 60}; null = that, where the load has sessions"
    )
    timeout_s: Positive | None = None
    pre_delay_s: NonNegative | dict[str, Any] | None = Field(
        None, description="{lognormal: {mean: 0.2, sigma: 0.5}}: before the server, in E2E and not in TTFT"
    )
    tenants: Annotated[list[TenantSection], Field(min_length=1)] | None = Field(
        None,
        description="[{name: a, share: 0.7, weight: 1, priority: 0, slo: {ttft_ms: 200}}, {name: b, ..}]",
    )
    cancel: CancelSection | None = Field(None, description="{fraction: 0.05, after_s: 10}")
    predicted_len: PredictedLenSection | None = Field(
        None, description="{sigma: 0.3}: policies see output x exp(sigma N(0, 1)); null = they see nothing"
    )

    @model_validator(mode="after")
    def _one_limit_on_concurrency(self) -> WorkloadSection:
        if self.max_concurrency is not None and self.arrivals.get("kind") == "closed_loop":
            raise ValueError("max_concurrency: the clients of arrivals.kind: closed_loop bound it already")
        return self

    @field_validator("tenants")
    @classmethod
    def _names_differ(cls, value: list[TenantSection] | None) -> list[TenantSection] | None:
        check_names(tenant.name for tenant in value or ())
        return value

    @field_validator("arrivals", "lengths")
    @classmethod
    def _finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise ValueError(
                f"numbers must be finite (kind: all_at_once needs no rate), got {value}"
            ) from None
        return value
