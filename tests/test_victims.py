"""Victim rules that ask for prices: what is remembered is what would be computed."""

from __future__ import annotations

from typing import Any

from simulator.api import simulate
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import Features, StepFeatures
from simulator.request import Sequence
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.context import Context
from simulator.schedulers.preemption import cheapest_to_recompute

TIGHT: dict[str, Any] = {
    "schema": 1,
    "name": "tight",
    "kv": {"num_gpu_blocks_override": 150},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 20},
        "lengths": {"kind": "exponential", "prompt": 200, "output": 200},
        "num_requests": 60,
    },
}


class Counting:
    """A latency that takes a second a token and a quarter for each it attends to, and counts its prices."""

    asked = 0

    def step_time(self, step: Features) -> float:
        self.asked += 1
        return step.num_tokens + 0.25 * step.prefill_kv_max


def test_a_price_is_that_of_a_step_and_is_asked_for_once() -> None:
    latency = Counting()
    scheduler = Chunked(BlockManager(100, 16), latency=latency)  # type: ignore[arg-type]  # prices steps alone
    chunks = [(10, 0), (10, 32), (3, 0)]
    prices = [scheduler.ctx.prefill_time(n, start) for n, start in chunks]
    assert prices == [latency.step_time(StepFeatures.prefill([chunk])) for chunk in chunks]
    assert len(set(prices)) == 3
    before = latency.asked
    assert [scheduler.ctx.prefill_time(n, start) for n, start in chunks] == prices
    assert latency.asked == before


def test_the_cheapest_victim_is_the_one_that_prices_computed_anew_name() -> None:
    def anew(seq: Sequence, ctx: Context) -> Any:
        shared = ctx.shared_tokens(seq)
        rest = max(1, seq.num_computed - shared)
        return (-ctx.step_time(StepFeatures.prefill([(rest, shared)])), seq.order)

    one, other = (
        simulate(TIGHT, victim=victim, bottleneck=False) for victim in (cheapest_to_recompute, anew)
    )
    assert one.summary["servetwin"]["num_preemptions"] > 20
    assert one.decisions.equals(other.decisions)
