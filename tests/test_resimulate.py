"""A recorded run simulated again at its own times: with the same policies every decision is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_runs import TINY, measured, saved, simulated

from simulator.batch import Batch
from simulator.config.build_workload import build_workload
from simulator.config.loading import load_scenario
from simulator.config.run import Run
from simulator.decode_group import DecodeGroup
from simulator.engine.oracle import SimulatedExecutor
from simulator.engine.recorded import RecordedExecutor
from simulator.errors import InputError
from simulator.experiments.diff import figures
from simulator.experiments.resimulate import addend, pin, resimulate
from simulator.experiments.run_folder import SavedRun, load_run, save_run
from simulator.metrics.tables import RequestTable
from simulator.schedulers import BATCHING
from simulator.schedulers.orders import ORDERS

BUSY = {"workload.arrivals.rate": 6.0, "kv.num_gpu_blocks_override": 40}
HOST = {"name": "host", "capacity_gib": 1, "bandwidth_gb_s": 0.01, "latency_us": 10, "offload": True}
LOADS: dict[str, dict[str, Any]] = {
    "static batch": {"scheduler.batching": "static", "scheduler.min_batch": 6, "scheduler.max_wait_ms": 800},
    "collect": {"scheduler.batching": "continuous", "scheduler.min_batch": 6, "scheduler.max_wait_ms": 800},
    "asynchronous": {"scheduler.async_scheduling": True},
    "timeouts": {"workload.timeout_s": 2.0},
    "cancels": {"workload.cancel": {"fraction": 0.3, "after_s": 1.0}},
    "pre-delay": {"workload.pre_delay_s": {"lognormal": {"mean": 0.2, "sigma": 0.8}}},
    "horizon": {"run.horizon_s": 8.0},
    "shed": {"scheduler.admission": [{"queue_limit": 3}], "workload.arrivals.rate": 10.0},
    "swap": {"scheduler.preemption": "swap", "kv.tiers": [HOST]},
    "cut at max_tokens": {"workload.max_tokens": 12},
}
COLUMNS = ("arrival", "scheduled", "first_token", "finish", "status", "num_output", "num_cached", "pre_delay")


def rows(table: RequestTable) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(-1.0 if x != x else float(x) for x in row)
        for name, *row in zip(table.id, *(getattr(table, each) for each in COLUMNS), strict=True)
    }


def numbers(run: SavedRun | Run) -> dict[str, float]:
    return {name: value for name, value in figures(run.summary).items() if isinstance(value, int | float)}


def assert_same(recorded: SavedRun, again: Run, *, exact: bool = True) -> None:
    assert again.log is not None
    assert recorded.steps is not None
    assert again.log.lines == recorded.decisions
    assert np.array_equal(again.steps.end, recorded.steps.end)
    assert again.requests.reason == recorded.requests.reason
    old, new = rows(recorded.requests), rows(again.requests)
    assert old.keys() == new.keys()
    if exact:
        assert new == old
        assert numbers(again) == numbers(recorded)
    for name, row in old.items():
        assert new[name] == pytest.approx(row, abs=1e-9)
    for name, value in numbers(recorded).items():
        assert numbers(again)[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("batching", BATCHING)
def test_the_same_policies_decide_the_same_at_measured_times(batching: str, tmp_path: Path) -> None:
    run = measured(TINY.with_(**BUSY | {"scheduler.batching": batching}))
    save_run(run, tmp_path, logs=("steps", "decisions"), report=False)
    again = resimulate(tmp_path)
    assert_same(load_run(tmp_path), again)
    assert run.log is not None
    plain = simulated(run.scenario).log
    assert plain is not None
    assert plain.lines != run.log.lines, "else the times would not have mattered"
    assert again.own["resimulated"]["told"] == []  # type: ignore[index]


@pytest.mark.parametrize("load", LOADS)
def test_everything_that_happens_to_a_request_is_pinned(load: str) -> None:
    run = measured(TINY.with_(**BUSY | LOADS[load]))
    assert_same(saved(run), resimulate(saved(run)))


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_order_serves_the_same(order: str) -> None:
    run = measured(TINY.with_(**BUSY | {"scheduler.order": order}))
    assert_same(saved(run), resimulate(saved(run)))


@pytest.mark.parametrize(
    "changes",
    [
        {"workload.arrivals": {"kind": "closed_loop", "clients": 7, "think_s": 0.1}},
        {
            "workload.arrivals": {"kind": "closed_loop", "clients": 9, "think_s": 0},
            "workload.lengths": {"kind": "constant", "prompt": 64, "output": 20},
        },
        {"workload.max_concurrency": 5},
    ],
)
def test_closed_loops_become_open_arrivals_as_recorded(changes: dict[str, Any]) -> None:
    run = measured(TINY.with_(**BUSY | changes))
    again = resimulate(saved(run))
    assert_same(saved(run), again, exact=False)
    assert again.workload.closed_loop is None


def test_sessions_become_open_arrivals_as_recorded() -> None:
    scenario = load_scenario("agentic-a100").with_(**{"workload.num_requests": 25})
    run = measured(scenario)
    assert run.workload.follows is not None
    assert run.own["prefix_hit_rate"]
    again = resimulate(saved(run))
    assert_same(saved(run), again, exact=False)
    assert again.workload.follows is None


def test_a_slower_link_in_the_model_is_not_a_decision() -> None:
    run = measured(TINY.with_(**BUSY | LOADS["swap"]))
    assert run.own["fetched_tokens"]
    slow = run.scenario.with_(**{"kv.tiers": [HOST | {"bandwidth_gb_s": 0.001}]})
    again = resimulate(saved(run), slow)
    assert again.log is not None
    assert run.log is not None
    assert [line["chunks"] for line in again.log.lines] == [line["chunks"] for line in run.log.lines]
    assert np.array_equal(again.requests.finish, run.requests.finish)
    assert np.allclose(again.steps.stall, run.steps.stall)


def test_one_block_less_decides_otherwise() -> None:
    run = measured(TINY.with_(**BUSY))
    fewer = run.scenario.with_(**{"kv.num_gpu_blocks_override": 39})
    again = resimulate(saved(run), fewer)
    reach = again.own["resimulated"]
    assert isinstance(reach, dict)
    assert 0 <= reach["last_alike"] < len(run.steps) - 1
    assert reach["num_played"] + reach["num_predicted"] == len(again.steps)
    assert again.summary["median_e2el_ms"] != run.summary["median_e2el_ms"]
    assert reach["told"][0].startswith(f"after step {reach['last_alike']} the steps are unlike")
    alike = slice(0, reach["last_alike"] + 1)
    assert np.array_equal(again.steps.end[alike], run.steps.end[alike])
    recorded = {round(float(s), 9) for s in run.steps.end - run.steps.start}
    taken = [round(float(s), 9) in recorded for s in again.steps.end - again.steps.start]
    assert sum(taken) == reach["num_played"], "durations of the record are played on"


def test_steps_beyond_the_record_take_what_the_model_predicts() -> None:
    run = saved(measured())
    assert run.steps is not None
    for name in run.steps.__slots__:
        setattr(run.steps, name, getattr(run.steps, name)[:100])
    again = resimulate(run)
    reach = again.own["resimulated"]
    assert isinstance(reach, dict)
    assert (reach["last_alike"], reach["num_unlike"], reach["num_played"]) == (99, 0, 100)
    assert reach["first_predicted"] == 100
    assert reach["num_predicted"] == len(again.steps) - 100
    assert reach["told"] == [
        f"no recorded duration was left for {reach['num_predicted']:,} steps, after step 99 at "
        f"{again.steps.start[100]:.3f} s; they took what the latency model predicts"
    ]


def test_what_cannot_be_simulated_again_is_told() -> None:
    run = saved(measured())
    run.requests.num_prompt = run.requests.num_prompt + 1
    with pytest.raises(InputError, match=r"^requests.csv: request '0' of \d+ prompt tokens is not in the"):
        resimulate(run)
    run.steps = None
    with pytest.raises(
        InputError, match=r"^tiny-cpu: has no steps.csv; a run is re-simulated from --log all"
    ):
        resimulate(run)


def test_of_equal_moments_the_first_admitted_was_first() -> None:
    run = saved(measured(TINY.with_(**{"workload.arrivals": {"kind": "all_at_once"}})))
    assert run.decisions is not None
    for decision in run.decisions:
        decision["chunks"] = [
            ({"0": "1", "1": "0"}.get(name, name), n, at) for name, n, at in decision["chunks"]
        ]
    workload = build_workload(run.scenario, 512)
    pinned, _ = pin(run, workload)
    assert pinned.requests.ids[:3] == ["1", "0", "2"]
    assert pinned.num_prompt[:2].tolist() == workload.num_prompt[[1, 0]].tolist()


def test_a_step_ends_when_the_recorded_one_did_though_it_begins_later() -> None:
    run = measured()
    executor = RecordedExecutor(SimulatedExecutor(run.machine.latency, DecodeGroup(16)), run.steps)
    first = Batch(1000)
    first.num_tokens = first.prefill_tokens = int(run.steps.num_tokens[0])
    first.num_seqs, first.prefill_kv_max = 1, first.prefill_tokens
    first.prefill_work = float(run.steps.prefill_work[0])
    begin, end = float(run.steps.start[0]), float(run.steps.end[0])
    assert executor.end_of(first, (begin + end) / 2) == end


def test_moments_are_met_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for first, other in rng.uniform(0, [100.0, 1.0], (1000, 2)).tolist():
        assert addend(first + other, other) + other == first + other
