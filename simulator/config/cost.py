"""What a scenario's GPUs cost."""

from __future__ import annotations

from simulator.config.cluster import replica_scenarios
from simulator.config.scenario import Scenario

HOUR = 3600.0


def all_gpus(scenario: Scenario) -> int:
    """Return the GPUs of all replicas that there are at the start."""
    return sum(count * each.parallel.num_gpus for count, each in replica_scenarios(scenario))


def price_per_hour(scenario: Scenario) -> float | None:
    """Return the price of an hour of all GPUs that there are at the start, None if one has no price."""
    total = 0.0
    for count, each in replica_scenarios(scenario):
        if each.hardware.price_per_gpu_hour is None:
            return None
        total += count * each.parallel.num_gpus * each.hardware.price_per_gpu_hour
    return total


def cost_per_million(
    scenario: Scenario, summary: dict[str, object], price: float | None = None
) -> float | None:
    """Return what a million output tokens cost, None without price or tokens.

    The GPUs cost `price` an hour, by default that of all there are at the start.
    """
    if price is None:
        price = price_per_hour(scenario)
    speed = summary["output_throughput"]
    if price is None or not isinstance(speed, float) or not speed:
        return None
    return price / HOUR / speed * 1e6
