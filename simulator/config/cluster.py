"""The section `cluster` of a scenario: how many replicas, of which kinds, behind which router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator, model_validator

from simulator.config.disaggregation import DisaggregationSection
from simulator.config.key_types import Count, NonNegative, NonNegativeInt, Number, Positive, Section
from simulator.config.replicas import MAX_REPLICAS, ReplicaSection, kind_of
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from simulator.config.scenario import Scenario


class OutageSection(Section):
    replica: NonNegativeInt  # from 0, in the order of `replicas`
    at_s: NonNegative
    back_s: Positive | None = None  # null: never

    @model_validator(mode="after")
    def _back_after_it(self) -> OutageSection:
        if self.back_s is not None and self.back_s <= self.at_s:
            raise ValueError(f"back_s ({self.back_s:g}) must be later than at_s ({self.at_s:g})")
        return self


class AutoscalerSection(Section):
    kind: Literal["outstanding"] = "outstanding"
    target: Positive = 32  # requests under way a replica
    scale_down: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    min_replicas: Annotated[Count, Field(le=MAX_REPLICAS)] = 1
    max_replicas: Annotated[Count, Field(le=MAX_REPLICAS)]
    interval_s: Positive = 10
    start_delay_s: NonNegative = 60

    @model_validator(mode="after")
    def _least_below_most(self) -> AutoscalerSection:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas ({self.min_replicas}) must be <= max_replicas ({self.max_replicas})"
            )
        return self


class ClusterSection(Section):
    replicas: Annotated[Count, Field(le=MAX_REPLICAS)] | list[ReplicaSection] = 1
    router: str = "least_outstanding"
    signal_delay_s: NonNegative = 0
    retry: bool = True  # a request whose replica died starts over on another one
    outages: list[OutageSection] = Field([])
    autoscaler: AutoscalerSection | None = None
    disaggregation: DisaggregationSection | None = None

    @field_validator("replicas", mode="before")
    @classmethod
    def _number_or_kinds(cls, value: object) -> object:
        if isinstance(value, list):
            try:
                return [kind_of(each, i) for i, each in enumerate(value)]
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_REPLICAS:
            raise ValueError(
                f"must be a number from 1 to {MAX_REPLICAS}, or a list of kinds, got {value!r:.80}"
            )
        return value

    @property
    def kinds(self) -> list[ReplicaSection]:
        """The kinds of replicas, each with its count; under disaggregation those of its two pools."""
        if self.disaggregation is not None:
            return [self.disaggregation.prefill, self.disaggregation.decode]
        return [ReplicaSection(count=self.replicas)] if isinstance(self.replicas, int) else self.replicas

    @property
    def routers(self) -> tuple[str, ...]:
        """The router, or under disaggregation those of its two pools."""
        pools = self.disaggregation
        return (self.router,) if pools is None else (pools.prefill_router, pools.decode_router)

    @property
    def num_replicas(self) -> int:
        """Replicas at the start."""
        return sum(kind.count for kind in self.kinds)

    @model_validator(mode="after")
    def _parts_fit(self) -> ClusterSection:
        if self.disaggregation is not None:
            self._only_pools()
        n = self.num_replicas
        if not 1 <= n <= MAX_REPLICAS:
            raise ValueError(f"replicas: must be 1 to {MAX_REPLICAS} in all, got {n}")
        for outage in self.outages:
            if outage.replica >= n:
                raise ValueError(f"outages: replica {outage.replica} is none of 0 to {n - 1}")
        scaler = self.autoscaler
        if scaler is not None and not scaler.min_replicas <= n <= scaler.max_replicas:
            raise ValueError(
                f"replicas: must be min_replicas ({scaler.min_replicas}) to max_replicas "
                f"({scaler.max_replicas}) of the autoscaler, got {n}"
            )
        return self

    def _only_pools(self) -> None:
        if self.replicas != 1:
            raise ValueError("replicas: must be 1 under disaggregation, whose pools have counts of their own")
        if self.router != ClusterSection.model_fields["router"].default:
            raise ValueError("router: under disaggregation these are prefill_router and decode_router")
        if self.autoscaler is not None:
            raise ValueError("autoscaler: must be null under disaggregation, whose pools do not scale")


def replica_scenarios(scenario: Scenario) -> list[tuple[int, Scenario]]:
    """Return how many replicas of each kind there are, and what one of them is as a scenario of its own."""
    if scenario.cluster is None:
        return [(1, scenario)]
    alone: dict[str, object] = {"cluster": None}
    return [(kind.count, scenario.with_(**alone | kind.set)) for kind in scenario.cluster.kinds]
