"""The section `cluster`: a fleet as one run, its replicas in the summary, and what cannot be asked of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin

from simulator import ROUTERS, ConfigError, bounds, compare, load_run, load_scenario, simulate
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.metrics.summary import counts
from simulator.metrics.tables import StepTable, merged, of_replica

BASE = load_scenario("tiny-cpu").with_(
    **{
        "workload.num_requests": 120,
        "workload.arrivals": {"kind": "poisson", "rate": 40.0},
        "hardware.price_per_gpu_hour": 3.6,
    }
)
TWO_KINDS = [
    {"count": 2},
    {"count": 1, "set": {"scheduler.max_num_seqs": 4, "kv.num_gpu_blocks_override": 90}},
]


def cluster(**keys: Any) -> Scenario:
    return BASE.with_(cluster=keys)


def run(**keys: Any) -> Run:
    return run_scenario(cluster(**keys), check_invariants=True)


def test_a_cluster_of_one_is_the_run_without_it() -> None:
    alone, one = run_scenario(BASE), run(replicas=1)
    own, theirs = dict(alone.own), dict(one.own)
    extra = set(theirs) - set(own)
    assert extra == {
        "router",
        "num_replicas",
        "num_retried",
        "num_held",
        "gpu_seconds",
        "imbalance",
        "replicas",
    }
    other = {"scenario", "is_stepped", "num_skipped_steps", "skipped_decode_share"}
    assert {key: theirs[key] for key in own.keys() - other} == {key: own[key] for key in own.keys() - other}
    assert {**one.summary, "servetwin": 0} == {**alone.summary, "servetwin": 0}


@pytest.mark.parametrize("router", ROUTERS)
def test_the_parts_add_up(router: str) -> None:
    made = run(replicas=TWO_KINDS, router=router)
    replicas: Any = made.own["replicas"]
    assert sum(each["requests"] for each in replicas) == 120
    assert sum(each["output_tokens"] for each in replicas) == made.requests.num_output.sum()
    assert counts(made.requests)["completed"] == 120
    assert made.own["num_steps"] == len(made.steps)
    assert int(made.gaps[1].sum()) == int((made.requests.num_output - 1).sum())
    assert (
        made.own["usable_blocks"]
        == sum(m.kv.usable_blocks for m in made.machine.kinds for _ in range(2)) - 89
    )
    assert [each["replica"] for each in replicas] == [0, 1, 2]


def test_steps_are_in_order_and_part_again() -> None:
    steps = run(replicas=3).steps
    assert (np.diff(steps.start) >= 0).all()
    parts = [of_replica(steps, i) for i in range(3)]
    assert sum(map(len, parts)) == len(steps)
    for part in parts:
        assert (part.end[:-1] <= part.start[1:]).all()
    assert merged(parts).end.tolist() == steps.end.tolist()


def test_a_second_replica_shortens_the_queue() -> None:
    one, two = run(replicas=1).summary, run(replicas=2).summary
    assert two["p99_ttft_ms"] < one["p99_ttft_ms"]  # type: ignore[operator]


def test_equal_runs_are_equal() -> None:
    for router in ("random", "power_of_two"):
        assert run(replicas=3, router=router).summary == run(replicas=3, router=router).summary


def test_gpus_cost_while_they_are_there() -> None:
    """3.6 an hour is 0.001 a second; the third of them dies at 1 s and does not come back."""
    made = run(replicas=3, outages=[{"replica": 2, "at_s": 1.0}])
    window = made.requests.finish.max() - made.requests.arrival.min()
    seconds = 2 * window + 1.0 - made.requests.arrival.min()
    expected = 0.001 * seconds / made.requests.num_output.sum() * 1e6
    assert made.own["cost_per_million_output_tokens"] == pytest.approx(expected)
    replicas: Any = made.own["replicas"]
    assert [each["state"] for each in replicas] == ["serving", "serving", "dead"]


def test_a_death_is_survived_or_counted() -> None:
    outage = [{"replica": 0, "at_s": 1.0, "back_s": 2.0}]
    again, lost = run(replicas=2, outages=outage), run(replicas=2, outages=outage, retry=False)
    assert counts(again.requests)["completed"] == 120
    assert again.own["num_retried"] == lost.own["aborted"] > 0  # type: ignore[operator]
    assert lost.own["aborted_by_reason"] == {"replica died": lost.own["aborted"]}
    assert len(again.own["replicas"]) == 3  # type: ignore[arg-type]  # the one that came back is a new one


def test_an_autoscaler_adds_replicas_and_gives_them_up() -> None:
    scaler = {"max_replicas": 4, "target": 4, "interval_s": 0.2, "start_delay_s": 0.3}
    made = run(replicas=1, autoscaler=scaler)
    replicas: Any = made.own["replicas"]
    assert len(replicas) > 1
    assert made.summary["p99_ttft_ms"] < run(replicas=1).summary["p99_ttft_ms"]  # type: ignore[operator]
    assert made.own["gpu_seconds"] < 4 * made.requests.finish.max()  # type: ignore[operator]


def test_speculation_counts_drafts_of_all_replicas() -> None:
    keys = {"speculative": {"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.6}}
    made = run_scenario(cluster(replicas=2).with_(**keys), check_invariants=True)
    assert made.requests.num_output.tolist() == run(replicas=2).requests.num_output.tolist()
    steps = made.steps
    assert made.summary["spec_decode_accepted_tokens"] >= steps.accepted_tokens.sum() > 0  # type: ignore[operator]
    assert steps.output_tokens.sum() == made.requests.num_output.sum()


def test_a_run_folder_holds_a_fleet(tmp_path: Path) -> None:
    told = servetwin(
        "run", "tiny-cpu", "--set", "cluster.replicas=2", "--log", "all", "-o", str(tmp_path / "r")
    )
    assert "Cluster: 2 replicas behind least_outstanding" in told.out
    assert not (tmp_path / "r" / "decisions.jsonl").exists()
    back = load_run(tmp_path / "r")
    again = simulate(tmp_path / "r", bottleneck=False)
    assert back.steps.equals(again.steps)
    assert sorted(set(back.steps["replica"])) == [0, 1]
    assert "replica 1" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert back.plot("replicas") is not None
    assert "replica" not in simulate("tiny-cpu", bottleneck=False).steps.columns


def shortest_prompt_first_replica(request: Any, replicas: Any, ctx: Any) -> int:
    return 0 if request.num_prompt < 100 else len(replicas) - 1


class Alternating:
    def __init__(self) -> None:
        self.last = 0

    def __call__(self, request: Any, replicas: Any, ctx: Any) -> int:
        self.last = (self.last + 1) % len(replicas)
        return self.last


def test_a_router_may_be_ones_own(tmp_path: Path) -> None:
    keys = {"cluster.replicas": 2}
    assert (
        simulate(BASE, router=shortest_prompt_first_replica, set=keys, bottleneck=False).summary["completed"]
        == 120
    )
    both = [simulate(BASE, router=Alternating, set=keys, bottleneck=False).summary for _ in range(2)]
    assert both[0] == both[1], "a class is made anew for every run"
    file = tmp_path / "mine.py"
    file.write_text("def last(request, replicas, ctx):\n    return len(replicas) - 1\n", encoding="utf-8")
    made = simulate(BASE, router=f"{file}:last", set=keys, bottleneck=False)
    assert [each["requests"] for each in made.summary["servetwin"]["replicas"]] == [0, 120]  # type: ignore[index]


def test_routers_are_compared_like_other_policies() -> None:
    found = compare(
        cluster(replicas=2),
        {"even": {"cluster.router": "round_robin"}, "own": {"cluster.router": Alternating}},
        replications=None,
    )
    assert set(found.results) == {"even", "own"}


WRONG = [
    ({"replicas": 0}, "cluster.replicas"),
    ({"replicas": 5000}, "cluster.replicas"),
    ({"replicas": []}, "must be 1 to 4096 in all, got 0"),
    ({"replicas": [{"set": {"model.name": "gpt2"}}]}, "'model.name' is the same for all replicas"),
    ({"replicas": [{"set": {"kv.block_size": 32}}]}, "'kv.block_size' is the same for all replicas"),
    ({"router": "rond_robin"}, "cluster.router: unknown 'rond_robin'; did you mean round_robin?"),
    ({"outages": [{"replica": 1, "at_s": 1}]}, "replica 1 is none of 0 to 0"),
    ({"outages": [{"replica": 0, "at_s": 2, "back_s": 1}]}, "back_s (1) must be later than at_s (2)"),
    ({"autoscaler": {"max_replicas": 2, "min_replicas": 3}}, "min_replicas (3) must be <= max_replicas (2)"),
    ({"replicas": 3, "autoscaler": {"max_replicas": 2}}, "of the autoscaler, got 3"),
    ({"replica": 2}, "did you mean replicas?"),
]


@pytest.mark.parametrize(("keys", "message"), WRONG)
def test_a_wrong_cluster_is_told_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        run(**keys)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_an_unknown_key_of_a_kind_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        run(replicas=[{"set": {"scheduler.max_num_seq": 4}}])


def test_a_router_that_answers_nonsense_is_named() -> None:
    def far(request: Any, replicas: Any, ctx: Any) -> int:
        return 7

    with pytest.raises(ConfigError, match=r"cluster.router: far.*7"):
        simulate(BASE, router=far, set={"cluster.replicas": 2})


@pytest.mark.parametrize("what", ["bounds", "explain", "decisions"])
def test_what_knows_one_replica_says_so(what: str) -> None:
    made = simulate(cluster(replicas=2), bottleneck=False)
    ask = {
        "bounds": lambda: bounds(made),
        "explain": lambda: made.explain("0"),
        "decisions": lambda: made.decisions,
    }
    with pytest.raises(ConfigError, match="cluster: must be null for"):
        ask[what]()


def test_the_bottleneck_of_a_cluster_counts_replicas() -> None:
    found: Any = simulate(cluster(replicas=1)).summary["servetwin"]["bottleneck"]  # type: ignore[index]
    rows = {row["what"]: row for row in found["rows"]}
    assert rows["replicas"]["attainment_gain"] >= 0
    assert simulate(cluster(replicas=TWO_KINDS)).summary["servetwin"]["bottleneck"] is None  # type: ignore[index]
    with pytest.raises(ConfigError, match="bottleneck: needs replicas that are all alike"):
        simulate(cluster(replicas=TWO_KINDS), bottleneck=True)


def test_the_summary_is_json() -> None:
    json.dumps(run(replicas=2).summary, allow_nan=False)


def test_empty_tables_merge() -> None:
    none = of_replica(run(replicas=2).steps, 9)
    assert isinstance(none, StepTable)
    assert len(merged([none, none])) == 0


KINDS_OF_SERVERS: dict[str, dict[str, Any]] = {
    "stages": {"parallel.pipeline_parallel_size": 2},
    "tiers": {
        "kv.tiers": [{"name": "host", "capacity_gib": 1, "bandwidth_gb_s": 5, "offload": True}],
        "scheduler.preemption": "swap",
        "kv.num_gpu_blocks_override": 60,
    },
    "async": {"scheduler.async_scheduling": True},
    "static": {"scheduler.batching": "static"},
    "int8": {"model.quantization": "int8", "latency.kind": "roofline", "latency.coefficients": None},
}


@pytest.mark.parametrize("name", KINDS_OF_SERVERS)
def test_replicas_may_be_any_server(name: str) -> None:
    """One that dies, too: every request completes with all its tokens, and each gap is counted once."""
    outage = [{"replica": 1, "at_s": 1.0, "back_s": 1.5}]
    scenario = cluster(replicas=3, outages=outage).with_(**KINDS_OF_SERVERS[name])
    made = run_scenario(scenario, check_invariants=True)
    plain = run(replicas=3)
    assert counts(made.requests)["completed"] == 120
    tokens = dict(zip(plain.requests.id, plain.requests.num_output.tolist(), strict=True))
    assert dict(zip(made.requests.id, made.requests.num_output.tolist(), strict=True)) == tokens
    assert int(made.gaps[1].sum()) == int((made.requests.num_output - 1).sum())
    assert made.own["num_retried"] > 0  # type: ignore[operator]
    again = run_scenario(scenario)
    assert again.requests.finish.tolist() == made.requests.finish.tolist(), "asleep or watched"
