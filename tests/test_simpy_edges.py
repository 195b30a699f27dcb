"""DE-04: what happens at one and the same moment, or at the horizon, follows stated rules."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.metrics.tables import COMPLETED, UNFINISHED
from simulator.workload.workload import Workload

ONE_SECOND_A_STEP = load_scenario("tiny-cpu").with_(
    **{
        "latency": {"kind": "linear", "profile": None, "coefficients": {"constant": 1.0}},
        "kv.num_gpu_blocks_override": 200,
        "scheduler.async_scheduling": False,
    }
)


def serve(scenario: Scenario, arrivals: list[float], output: int, ids: list[str] | None = None) -> Run:
    n = len(arrivals)
    tokens = np.full(n, output)
    workload = Workload(np.array(arrivals), np.full(n, 8), tokens, max_tokens=tokens, ids=ids)
    return run_scenario(scenario, workload=workload)


@pytest.mark.parametrize(
    ("horizon", "status"), [(10.0, COMPLETED), (np.nextafter(10.0, 0.0), UNFINISHED), (10.5, COMPLETED)]
)
def test_de_04_what_ends_at_the_horizon_counts(horizon: float, status: int) -> None:
    """A request of ten tokens, one a second, ends at exactly 10 s; plain SimPy's until=10 would lose it."""
    run = serve(ONE_SECOND_A_STEP.with_(**{"run.horizon_s": float(horizon)}), [0.0], 10)
    assert run.requests.status.tolist() == [status]
    if status == COMPLETED:
        assert run.requests.finish.tolist() == [10.0]


def test_de_04_requests_of_one_stamp_keep_the_order_of_the_file() -> None:
    scenario = ONE_SECOND_A_STEP.with_(**{"scheduler.max_num_seqs": 1})
    run = serve(scenario, [2.0, 2.0, 2.0], 2, ids=["C", "A", "B"])
    assert run.requests.id == ["C", "A", "B"]
    assert run.requests.scheduled.tolist() == [2.0, 4.0, 6.0]


def test_de_04_no_queue_of_simpy_is_waited_on() -> None:
    """An interrupted Store.get() swallows the next item. The engine's queue is its own, so there is none."""
    engine = Path(__file__).parents[1] / "simulator" / "engine"
    stores = {"Store", "PriorityStore", "FilterStore", "Container", "Resource", "PreemptiveResource"}
    used = {
        node.attr
        for path in engine.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not used & stores
