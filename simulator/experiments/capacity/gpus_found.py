"""All candidates' fewest GPUs, and which of them wins."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.config.build import Machine, Policies
from simulator.config.scenario import Scenario
from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.replications import Replications

BY_PRICE, BY_GPUS = "cheapest", "fewest GPUs"


@dataclass
class Fewest:
    """The candidates' answers, in the order given."""

    base: Scenario
    answers: dict[str, FleetAnswer]
    replications: Replications
    num_replications: int
    target: float
    max_gpus: int
    num_draws: int
    policies: dict[str, Policies] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def rule(self) -> str:
        """What decides: the price of an hour where every candidate that meets has one, else the GPUs."""
        prices = [each.price for each in self.answers.values() if each.replicas is not None]
        return BY_PRICE if prices and None not in prices else BY_GPUS

    @property
    def why_rule(self) -> str:
        """Say why that decides."""
        if self.rule == BY_PRICE:
            return "all have a price (hardware.price_per_gpu_hour), so that of an hour decides, then the GPUs"
        priced = [name for name, each in self.answers.items() if each.price is not None]
        lack = "not all have" if priced else "none has"
        return f"{lack} a price (hardware.price_per_gpu_hour), so the number of GPUs decides"

    @property
    def best(self) -> list[str]:
        """The winner and whoever is exactly as good, in the order given; empty if nobody meets."""
        keys = {name: self._key(each) for name, each in self.answers.items() if each.replicas is not None}
        least = min(keys.values(), default=None)
        return [name for name, key in keys.items() if key == least]

    @property
    def winner(self) -> str | None:
        return next(iter(self.best), None)

    def _key(self, answer: FleetAnswer) -> tuple[float, int]:
        gpus = answer.gpus or 0
        return (round(answer.price or 0.0, 9) if self.rule == BY_PRICE else 0.0), gpus

    @property
    def same_load(self) -> bool:
        """Whether all candidates serve the same requests."""
        first, *others = (each.loads.base.workload for each in self.answers.values())
        return all(each == first for each in others)

    @property
    def one_price(self) -> bool:
        """Whether GPUs of several kinds all have the same price, as varying hardware.gpu alone gives."""
        kinds = {each.loads.base.hardware.gpu for each in self.answers.values()}
        prices = {each.loads.base.hardware.price_per_gpu_hour for each in self.answers.values()}
        return len(kinds) > 1 and len(prices) == 1 and None not in prices
