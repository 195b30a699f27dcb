"""Time a fleet: CPU seconds a request of routing and serving, over the number of replicas and of requests."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.config.build import build_machine
from simulator.config.build_workload import build_workload
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario

RESULTS = Path(__file__).parent / "results_fleet.json"
CHAT_RATE, AGENT_RATE = 6.0, 0.002  # requests/s and sessions/s a replica: about what one can serve in time
WORKS = {  # replicas, requests
    "chat": [(1, 25_000), (8, 25_000), (64, 50_000), (64, 200_000)],
    "agents": [(1, 2_000), (8, 10_000), (64, 50_000)],
}


def scenario(work: str, replicas: int, requests: int) -> Scenario:
    """Return a fleet under a load that grows with it: chats with prompts of their own, or sessions."""
    base, rate = (
        (load_scenario("chat-a100"), CHAT_RATE)
        if work == "chat"
        else (load_scenario("agentic-a100"), AGENT_RATE)
    )
    return base.with_(
        **{
            "cluster": {"replicas": replicas, "router": "prefix_affinity"},
            "workload.arrivals": {"kind": "poisson", "rate": rate * replicas},
            "workload.num_requests": requests,
        }
    )


def measure(work: str, replicas: int, requests: int) -> dict[str, float]:
    """Serve one load; the requests are made before."""
    chosen = scenario(work, replicas, requests)
    machine = build_machine(chosen)
    workload = build_workload(chosen, machine.max_model_len)
    before = time.process_time()
    run = run_scenario(chosen, machine=machine, workload=workload)
    taken = time.process_time() - before
    own = run.own
    return {
        "replicas": replicas,
        "requests": requests,
        "cpu_s": taken,
        "us_per_request": 1e6 * taken / requests,
        "steps_per_request": len(run.steps) / requests,
        "prefix_hit_rate": float(str(own["prefix_hit_rate"] or 0.0)),
        "imbalance": float(str(own["imbalance"])),
    }


_rows: list[dict[str, float | str]] = []


@pytest.mark.parametrize(
    ("work", "replicas", "requests"), [(w, *size) for w, each in WORKS.items() for size in each]
)
def test_fleet(work: str, replicas: int, requests: int, benchmark: BenchmarkFixture) -> None:
    found: list[dict[str, float]] = []
    benchmark.pedantic(lambda: found.append(measure(work, replicas, requests)), rounds=1)
    benchmark.extra_info.update(found[0])
    _rows.append({"work": work, **found[0]})


def test_print_table() -> None:
    names = list(_rows[0])
    print("\n" + "".join(f"{name:>18}" for name in names))
    for row in _rows:
        print("".join(f"{each:>18}" if isinstance(each, str) else f"{each:>18,.2f}" for each in row.values()))
    RESULTS.write_text(json.dumps(_rows, indent=1) + "\n")
