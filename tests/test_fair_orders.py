"""Fair orders: what tenants are served while all of them have work waiting."""

from __future__ import annotations

import pytest

from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.request import Request, Sequence
from simulator.schedulers import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.fairness import DeficitRoundRobin, VirtualCounters
from simulator.schedulers.orders import ORDERS, Order

FAIR = {name: order for name, order in ORDERS.items() if hasattr(order, "served")}


def load(per_tenant: dict[str, int], prompt: int = 64, output: int = 8) -> list[Request]:
    """All at once: so many requests of each tenant, the tenants one after the other."""
    return [
        Request(f"{tenant}{i}", 0.0, prompt, output, output, tenant=tenant)
        for tenant, n in per_tenant.items()
        for i in range(n)
    ]


def service_at(requests: list[Request], order: Order, horizon: float, **settings: object) -> dict[str, int]:
    """Tokens computed per tenant until the horizon."""
    scheduler: Scheduler = Chunked(
        BlockManager(400, 16),
        order=order,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        **settings,  # type: ignore[arg-type]
    )
    serve(requests, scheduler, LinearModel(0.25), horizon=horizon, check_invariants=True)
    return {tenant: scheduler.ctx.service(tenant) for tenant in sorted({r.tenant for r in requests})}


def test_fcfs_serves_whoever_came_first_alone() -> None:
    assert service_at(load({"loud": 40, "meek": 10}), ORDERS["fcfs"], 15.0)["meek"] == 0


@pytest.mark.parametrize("name", FAIR)
def test_tenants_with_work_waiting_get_equal_service(name: str) -> None:
    found = service_at(load({"loud": 80, "meek": 40}), ORDERS[name], 30.0)
    assert found["meek"] > 1000
    assert abs(found["loud"] - found["meek"]) <= 2048, "a quantum apart at most"


@pytest.mark.parametrize("name", FAIR)
def test_a_tenant_of_weight_three_gets_three_times_the_service(name: str) -> None:
    found = service_at(load({"a": 300, "b": 300}), ORDERS[name], 150.0, weights={"a": 3.0, "b": 1.0})
    assert abs(found["a"] / 3 - found["b"]) <= DeficitRoundRobin.quantum, "a round apart at most"
    assert found["b"] > 1.5 * DeficitRoundRobin.quantum


@pytest.mark.parametrize("name", FAIR)
def test_inside_a_tenant_it_is_first_come_first_served(name: str) -> None:
    rows = [("a", 400), ("a", 100), ("b", 10), ("b", 300), ("a", 10), ("b", 20), ("a", 200)]
    requests = [Request(f"r{i}", 0.0, n, 1, 1, tenant=tenant) for i, (tenant, n) in enumerate(rows)]
    scheduler = Chunked(BlockManager(400, 16), order=ORDERS[name], max_num_seqs=1)
    table = serve(requests, scheduler, LinearModel(0.25)).recorder.request_table(requests)
    for tenant in ("a", "b"):
        finish = [table.finish[i] for i, r in enumerate(requests) if r.tenant == tenant]
        assert finish == sorted(finish)


@pytest.mark.parametrize("name", FAIR)
def test_what_a_tenant_did_not_use_is_not_saved_up(name: str) -> None:
    """`late` comes when `early` has been served for long: from then on they take turns."""
    requests = load({"early": 120})
    requests += [Request(f"late{i}", 30.0, 64, 8, 8, tenant="late") for i in range(60)]
    before = service_at(requests, ORDERS[name], 30.0)
    after = service_at(requests, ORDERS[name], 60.0)
    gained = {tenant: after[tenant] - before[tenant] for tenant in after}
    assert before["early"] > 2000
    assert gained["late"] / gained["early"] == pytest.approx(1.0, rel=0.5)
    assert gained["early"] > 0


def test_virtual_counters_charge_a_prompt_token_once_and_an_output_token_twice() -> None:
    order = VirtualCounters()
    scheduler = Chunked(BlockManager(100, 16), order=order, weights={"t": 2.0})
    counters = scheduler.waiting.order
    assert isinstance(counters, VirtualCounters)
    assert counters is not order, "a run has counters of its own"
    seq = Sequence("r", 20, 4, tenant="t")
    scheduler.add(seq)
    batch = scheduler.schedule(0.0)
    assert counters.key(seq, scheduler.ctx)[0] == 20 / 2
    assert batch.num_tokens == 20
    scheduler.schedule(1.0)
    assert counters.key(seq, scheduler.ctx)[0] == (20 + 2) / 2


def test_a_tenant_that_comes_back_goes_before_its_equals() -> None:
    requests = [Request(f"loud{i}", 0.0, 64, 8, 8, tenant="loud") for i in range(6)]
    requests.append(Request("meek", 1.0, 64, 8, 8, tenant="meek"))
    scheduler = Chunked(BlockManager(400, 16), order=VirtualCounters, max_num_seqs=1)
    table = serve(requests, scheduler, LinearModel(0.25)).recorder.request_table(requests)
    served = [table.id[i] for i in sorted(range(7), key=lambda i: table.finish[i])]
    assert served == ["loud0", "meek", "loud1", "loud2", "loud3", "loud4", "loud5"]


def test_deficit_round_robin_serves_a_quantum_a_turn() -> None:
    """Quantum 128, prompts of 64 and one output each: two requests of a tenant, then two of the other."""

    class Small(DeficitRoundRobin):
        quantum = 128

    requests = load({"a": 4, "b": 4}, prompt=64, output=1)
    scheduler = Chunked(BlockManager(400, 16), order=Small, max_num_seqs=1)
    table = serve(requests, scheduler, LinearModel(0.25)).recorder.request_table(requests)
    served = sorted(range(8), key=lambda i: table.finish[i])
    assert [requests[i].tenant for i in served] == ["a", "a", "b", "b", "a", "a", "b", "b"]


def test_skipped_steps_are_charged_too() -> None:
    requests = [Request("a0", 0.0, 16, 100, 100, tenant="a"), Request("b0", 40.0, 16, 2, 2, tenant="b")]
    counters = []
    for skip in (True, False):
        scheduler = Chunked(BlockManager(100, 16), order=VirtualCounters)
        served = serve(requests, scheduler, LinearModel(0.25), skip=skip)
        order = scheduler.waiting.order
        assert isinstance(order, VirtualCounters)
        counters.append(dict(order._counters))
        assert served.recorder.num_skipped > 0 or not skip
    assert counters[0] == counters[1]
    assert counters[0]["a"] == 16 + 2 * 99
