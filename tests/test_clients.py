"""What clients do besides sending: look something up first, think, wait for one another, give up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import Observed, loads, observe
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.clients import ClientPlan
from simulator.engine.serve import serve
from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.metrics.summary import counts, latencies
from simulator.metrics.tables import COMPLETED, REJECTED, RequestTable
from simulator.request import Request
from simulator.schedulers import BATCHING
from simulator.workload import Workload, generate


def workload(n: int) -> Workload:
    return generate({"kind": "all_at_once"}, {"kind": "constant", "prompt": 10, "output": 1}, n)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_delay_before_the_server_is_fixed_or_lognormal_with_its_mean() -> None:
    fixed = workload(3).with_pre_delay(0.2, rng())
    assert fixed.pre_delay is not None
    assert fixed.pre_delay.tolist() == [0.2] * 3
    drawn = workload(20_000).with_pre_delay({"lognormal": {"mean": 0.2, "sigma": 0.5}}, rng())
    assert drawn.pre_delay is not None
    assert drawn.pre_delay.mean() == pytest.approx(0.2, rel=0.02)
    assert np.log(drawn.pre_delay).std() == pytest.approx(0.5, rel=0.02)


def test_a_fraction_of_the_clients_gives_up() -> None:
    w = workload(10_000).with_cancel(0.1, 5.0, rng())
    assert w.cancel_after is not None
    assert (w.cancel_after == 5.0).mean() == pytest.approx(0.1, abs=0.01)
    assert np.isnan(w.cancel_after).sum() + (w.cancel_after == 5.0).sum() == 10_000
    none, all_of_them = (workload(5).with_cancel(f, 1.0, rng()).cancel_after for f in (0.0, 1.0))
    assert none is not None
    assert all_of_them is not None
    assert np.isnan(none).all()
    assert (all_of_them == 1.0).all()


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        float("nan"),
        "soon",
        {"normal": {}},
        {"lognormal": {"mean": 1}},
        {"lognormal": {"mean": 1, "sigma": -1}},
    ],
)
def test_delays_that_cannot_be_are_named(delay: Any) -> None:  # Any: as a scenario may have it
    with pytest.raises(ConfigError, match=r"workload.pre_delay_s"):
        workload(1).with_pre_delay(delay, rng())


@pytest.mark.parametrize(("fraction", "after_s"), [(1.5, 1), (-0.1, 1), (0.5, -1), (0.5, float("inf"))])
def test_cancels_that_cannot_be_are_named(fraction: float, after_s: float) -> None:
    with pytest.raises(ConfigError, match=r"workload.cancel"):
        workload(1).with_cancel(fraction, after_s, rng())


def test_a_closed_loop_is_told_to_the_engine() -> None:
    lengths = {"kind": "constant", "prompt": 10, "output": 1}
    w = generate({"kind": "closed_loop", "clients": 8, "think_s": 2}, lengths, 20)
    assert w.closed_loop == (8, 2.0)
    assert not w.arrival.any()
    assert generate({"kind": "poisson", "rate": 1}, lengths, 20).closed_loop is None


# What the engine makes of it.

SECOND = LinearModel(constant=1.0)  # every step takes a second


def request(id: str, prompt: int, output: int, arrival: float = 0.0, **facts: Any) -> Request:
    return Request(id, arrival, prompt, output, facts.pop("max_tokens", output), **facts)


def run(requests: list[Request], plan: ClientPlan, **changes: Any) -> Observed:
    defaults = {"latency": SECOND, "num_blocks": 100, "block_size": 4, "enable_prefix_caching": False}
    return observe(
        requests, plan=plan, **defaults | {"max_num_seqs": 8, "max_num_batched_tokens": 64} | changes
    )


def plan(n: int, follows: list[tuple[int, int]] | None = None, **columns: Any) -> ClientPlan:
    """Make a plan for n requests; `think`, `pre_delay` and `cancel_after` map rows to seconds."""
    for name, default in (("think", 0.0), ("pre_delay", 0.0), ("cancel_after", np.nan)):
        if name in columns:
            seconds = columns[name]
            columns[name] = np.array([seconds.get(i, default) for i in range(n)])
    pairs = None if follows is None else np.array(follows, np.int64).reshape(-1, 2)
    return ClientPlan(follows=pairs, **columns)


def times(observed: Observed, name: str) -> dict[str, float]:
    table = observed.table
    return dict(zip(table.id, getattr(table, name).tolist(), strict=True))


def test_a_turn_arrives_when_its_predecessor_is_done_and_its_client_has_thought() -> None:
    chain = [request(id, 4, 3, 10.0) for id in "ABC"]
    observed = run([*chain, request("X", 4, 1, 12.5)], plan(4, [(0, 1), (1, 2)], think={1: 2.5, 2: 0.0}))
    assert times(observed, "arrival") == {"A": 10.0, "X": 12.5, "B": 15.5, "C": 18.5}
    assert times(observed, "finish") == {"A": 13.0, "X": 14.0, "B": 18.5, "C": 21.5}


def test_a_join_waits_for_the_last_of_its_predecessors() -> None:
    """A forks into B and C, whose answers D needs both."""
    requests = [request("A", 4, 1), request("B", 4, 2), request("C", 4, 5), request("D", 4, 1)]
    observed = run(requests, plan(4, [(0, 1), (0, 2), (1, 3), (2, 3)], think={1: 0.0, 2: 1.0, 3: 0.5}))
    assert times(observed, "arrival") == {"A": 0.0, "B": 1.0, "C": 2.0, "D": 7.5}


def test_a_refused_request_releases_those_that_follow_it_at_once() -> None:
    requests = [request("A", 500, 1), request("B", 4, 1), request("C", 500, 1), request("D", 4, 1)]
    observed = run(requests, plan(4, [(0, 1), (1, 2), (2, 3)], think={1: 0.5}), max_model_len=100)
    assert times(observed, "arrival") == {"A": 0.0, "B": 0.5, "C": 1.5, "D": 1.5}
    assert counts(observed.table) | {"completed": 2, "rejected": 2} == counts(observed.table)


@pytest.mark.parametrize("given_up", [{"cancel_after": {0: 1.25}}, {}])
def test_a_request_given_up_releases_those_that_follow_it_when_its_client_leaves(given_up: Any) -> None:
    """Not when the step ends that was under way."""
    first = request("A", 4, 9, timeout=None if given_up else 1.25)
    observed = run([first, request("B", 4, 1)], plan(2, [(0, 1)], think={1: 0.5}, **given_up))
    assert times(observed, "finish") == {"A": 1.25, "B": 3.0}
    assert times(observed, "arrival") == {"A": 0.0, "B": 1.75}


@st.composite
def causal_loads(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a load whose requests follow up to two earlier ones each."""
    load = draw(loads(draw(st.sampled_from(sorted(BATCHING))), horizons=True))
    n = len(load["requests"])
    pairs = [
        (before, after)
        for after in range(1, n)
        for before in draw(st.sets(st.integers(0, after - 1), max_size=2))
    ]
    think = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3, 2.0]), min_size=n, max_size=n))
    delay = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25]), min_size=n, max_size=n))
    load["plan"] = replace(
        load["plan"],
        follows=np.array(pairs, np.int64).reshape(-1, 2),
        think=np.array(think),
        pre_delay=np.array(delay) if draw(st.booleans()) else None,
        max_concurrency=draw(st.none() | st.integers(1, 4)),
    )
    return load


@few_or_many(80, 300, load=causal_loads())
def test_nothing_arrives_before_what_it_follows(load: dict[str, Any]) -> None:
    observed = observe(**load)
    table, plan, horizon = observed.table, load["plan"], load["horizon"]
    row = {id: i for i, id in enumerate(table.id)}
    ids = [r.id for r in load["requests"]]
    for i, r in enumerate(load["requests"]):
        before = [row.get(ids[b]) for b, after in plan.follows.tolist() if after == i]
        done = [np.inf if b is None or np.isnan(table.finish[b]) else table.finish[b] for b in before]
        wanted = max(done) + plan.think[i] if before else r.arrival
        if r.id not in row:
            assert horizon is not None
            delay = 0.0 if plan.pre_delay is None else plan.pre_delay[i]
            assert wanted + delay > horizon or plan.max_concurrency is not None
            continue
        at = row[r.id]
        sent = wanted + table.client_queue[at]
        assert table.arrival[at] == pytest.approx(sent + table.pre_delay[at], abs=1e-9)
        if not table.client_queue[at] and not table.pre_delay[at]:
            assert table.arrival[at] == wanted
    if plan.max_concurrency is not None:
        assert most_under_way(table) <= plan.max_concurrency


def most_under_way(table: RequestTable) -> int:
    """Count the most requests that were sent and not done at one moment; who is done leaves first."""
    sent = table.arrival - table.pre_delay
    done = np.where(np.isnan(table.finish), np.inf, table.finish)
    moments = np.concatenate([sent, done])
    change = np.repeat([1, -1], len(sent))
    order = np.lexsort((change, np.round(moments, 9)))
    return int(np.cumsum(change[order]).max(initial=0))


def closed_loop(n: int, clients: int, think: float, **changes: Any) -> Observed:
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 20, (n, 2)).tolist()
    requests = [request(str(i), prompt, output) for i, (prompt, output) in enumerate(lengths)]
    latency = LinearModel(constant=0.125, per_token=2.0**-7)
    return run(requests, ClientPlan(max_concurrency=clients, pause=think), latency=latency, **changes)


@pytest.mark.parametrize(("clients", "think"), [(1, 0.0), (1, 2.0), (6, 0.0), (6, 3.0), (20, 1.0)])
def test_a_closed_loop_obeys_the_interactive_response_time_law(clients: int, think: float) -> None:
    """N = X (R + Z): every client waits or thinks at any moment until the last request is sent."""
    table = closed_loop(200, clients, think).table
    assert most_under_way(table) <= clients
    last = table.arrival.max()
    busy = np.minimum(table.finish + think, last) - np.minimum(table.arrival, last)
    assert busy.sum() == pytest.approx(clients * last, rel=1e-9)
    throughput = len(table) / table.finish.max()
    response = (table.finish - table.arrival).mean()
    assert throughput * (response + think) == pytest.approx(clients, rel=2 * clients / len(table) + 0.02)
    assert not table.client_queue.any()


def test_a_client_of_a_closed_loop_thinks_before_it_sends_again() -> None:
    observed = run([request(id, 4, 2) for id in "ABCD"], ClientPlan(max_concurrency=2, pause=1.5))
    assert times(observed, "arrival") == {"A": 0.0, "B": 0.0, "C": 3.5, "D": 3.5}


def test_a_closed_loop_goes_on_after_refusals_and_cancels() -> None:
    requests = [request("A", 500, 1), request("B", 4, 9), request("C", 500, 1), request("D", 4, 1)]
    behaviour = replace(plan(4, cancel_after={1: 2.25}), max_concurrency=1, pause=0.5)
    observed = run(requests, behaviour, max_model_len=100)
    assert times(observed, "arrival") == {"A": 0.0, "B": 0.5, "C": 3.25, "D": 3.75}
    assert observed.table.reason == [
        "prompt >= max_model_len",
        "cancelled",
        "prompt >= max_model_len",
        "stop",
    ]


def test_max_concurrency_is_vllms_semaphore_on_top_of_an_open_loop() -> None:
    """C and D are held back by their client: what the server sees, and TTFT, begins when they are sent."""
    requests = [request(id, 4, 2, at) for id, at in (("A", 0.0), ("B", 0.5), ("C", 0.75), ("D", 1.0))]
    observed = run(requests, ClientPlan(max_concurrency=2))
    table = observed.table
    assert times(observed, "arrival") == {"A": 0.0, "B": 0.5, "C": 2.0, "D": 3.0}
    assert times(observed, "client_queue") == {"A": 0.0, "B": 0.0, "C": 1.25, "D": 2.0}
    assert (
        latencies(table).ttft.tolist() == (table.first_token - table.arrival).tolist() == [1.0, 1.5, 2.0, 2.0]
    )
    assert latencies(table).e2el.tolist() == (table.finish - table.arrival).tolist()


def test_what_precedes_the_server_is_in_e2e_latency_and_not_in_ttft() -> None:
    requests = [request("A", 4, 2), request("B", 4, 2, 1.0)]
    observed = run(requests, plan(2, pre_delay={0: 2.5}))
    table = observed.table
    assert times(observed, "arrival") == {"B": 1.0, "A": 2.5}
    measured = latencies(table)
    by_id = {table.id[row]: i for i, row in enumerate(measured.rows)}
    assert measured.ttft[by_id["A"]] == table.first_token[1] - 2.5
    assert measured.e2el[by_id["A"]] == table.finish[1] - 2.5 + 2.5
    assert measured.e2el[by_id["B"]] == table.finish[0] - 1.0
    assert measured.tpot.tolist() == [1.0, 1.0]


CANCELS = {
    # state in which the cancel finds C: (seconds after its arrival, tokens it had by then)
    "on arrival": (0.0, 0),
    "waiting": (0.5, 0),
    "mid-prefill": (3.5, 0),
    "as its prefill ends": (6.0, 1),
    "decoding": (6.5, 2),
    "as it would finish": (9.0, 4),
}


@pytest.mark.parametrize("state", CANCELS)
def test_a_client_may_cancel_in_every_state(state: str) -> None:
    """C waits for A's seat until 2 s, prefills 4 tokens a step, decodes for three steps."""
    after, num_output = CANCELS[state]
    observed = run(
        [request("A", 1, 2), request("C", 16, 4)],
        plan(2, cancel_after={1: after}),
        max_num_seqs=1,
        max_num_batched_tokens=4,
    )
    assert observed.table.reason == ["stop", "cancelled"]
    assert observed.table.num_output.tolist() == [2, num_output]
    assert times(observed, "finish")["C"] == after
    assert observed.kv.num_used == 0


def test_the_first_reason_to_give_up_counts() -> None:
    requests = [request("A", 4, 9, timeout=1.5), request("B", 4, 9, timeout=2.5)]
    observed = run(requests, plan(2, cancel_after={0: 2.5, 1: 1.5}))
    assert observed.table.reason == ["timeout", "cancelled"]


def test_what_has_not_reached_the_server_by_the_horizon_is_not_injected() -> None:
    """B thinks, C is on its way, D is held back by its client; A is cut off while it runs."""
    three = [request(id, 4, 2) for id in "ABC"]
    observed = run(three, plan(3, [(0, 1)], think={1: 9.0}, pre_delay={2: 9.0}), horizon=4.0)
    assert observed.table.id == ["A"]
    held = run([request("A", 4, 99), request("D", 4, 2)], ClientPlan(max_concurrency=1), horizon=4.0)
    assert held.table.id == ["A"]
    assert counts(held.table)["unfinished"] == 1


@pytest.mark.parametrize("behaviour", [ClientPlan(), ClientPlan(max_concurrency=3, pause=0.0)])
def test_progress_is_told_as_requests_end(behaviour: ClientPlan) -> None:
    requests = [request(str(i), 4, 2, 0.5 * i) for i in range(400)]
    told: list[tuple[int, int]] = []
    scheduler = BATCHING["chunked"](BlockManager(100, 4), max_num_seqs=4, max_num_batched_tokens=64)
    serve(
        requests, scheduler, SECOND, plan=behaviour, progress=lambda done, total: told.append((done, total))
    )
    done = [each for each, _ in told]
    assert {total for _, total in told} == {400}
    assert done == sorted(done)
    assert done[-1] == 400
    assert 100 <= len(done) <= 202


# Sessions as they are.


def check_causal(run: Run) -> None:
    """Every turn arrives when the last answer it waits for is there and its client has thought."""
    workload, table = run.workload, run.requests
    assert workload.follows is not None
    assert workload.think is not None
    assert np.isin(table.status, (COMPLETED, REJECTED)).all()  # refused: longer than the context
    ids = workload.ids or [str(i) for i in range(len(workload))]
    row = {id: i for i, id in enumerate(table.id)}
    before, after = (np.array([row[ids[i]] for i in column]) for column in workload.follows.T)
    free = np.full(len(table), -np.inf)
    np.maximum.at(free, after, table.finish[before])
    thought = np.array([workload.think[i] for i in np.argsort([row[id] for id in ids])])
    waits = np.isfinite(free)
    assert (table.arrival[waits] == (free + thought)[waits]).all()


def check_that_a_slower_server_takes_longer(scenario: Scenario) -> None:
    machine = build_machine(scenario)
    half = machine.latency.scaled(0.5, 0.5)
    fast = run_scenario(scenario, machine=machine)
    slow = run_scenario(scenario, machine=machine, latency=half)
    for each in (slow, fast):
        check_causal(each)
    assert slow.requests.finish.max() > fast.requests.finish.max()
    sessions = fast.workload.session
    assert sessions is not None
    ids = fast.workload.ids or [str(i) for i in range(len(fast.workload))]
    session = dict(zip(ids, sessions, strict=True))
    ends: list[dict[str, float]] = []
    for each in (slow, fast):
        last: dict[str, float] = {}
        for id, finish in zip(each.requests.id, each.requests.finish.tolist(), strict=True):
            last[session[id]] = max(finish, last.get(session[id], 0.0))
        ends.append(last)
    served = {
        session[id] for id, s in zip(fast.requests.id, fast.requests.status, strict=True) if s == COMPLETED
    }
    assert all(ends[0][name] > ends[1][name] for name in served)


def test_a_slower_server_makes_every_agentic_session_longer_and_no_turn_overtakes() -> None:
    scenario = load_scenario("agentic-a100").with_(**{"workload.num_requests": 80})
    check_that_a_slower_server_takes_longer(scenario)


@pytest.mark.slow
def test_recorded_agentic_sessions_are_replayed_causally(shared_data: Path) -> None:
    trace = shared_data / "traces" / "agentic_coding_sessions_small100.jsonl.gz"
    changes = {"workload.trace": str(trace), "workload.arrivals": {"kind": "poisson", "rate": 0.01}}
    check_that_a_slower_server_takes_longer(load_scenario("agentic-a100").with_(**changes))


def test_a_closed_loop_bounds_its_clients_already() -> None:
    arrivals = {"kind": "closed_loop", "clients": 4}
    with pytest.raises(ConfigError, match=r"workload: max_concurrency: the clients of .*closed_loop"):
        load_scenario({"workload": {"arrivals": arrivals, "max_concurrency": 2}})


def test_a_scenario_says_what_its_clients_do() -> None:
    scenario = load_scenario("tiny-cpu").with_(
        **{
            "workload.arrivals": {"kind": "closed_loop", "clients": 3, "think_s": 0.5},
            "workload.pre_delay_s": 0.25,
            "workload.cancel": {"fraction": 0.5, "after_s": 0.3},
        }
    )
    made = run_scenario(scenario)
    assert most_under_way(made.requests) <= 3
    assert (made.requests.pre_delay == 0.25).all()
    assert made.own["aborted_by_reason"] == {"cancelled": made.own["aborted"]}
    assert made.own["aborted"] > 0  # type: ignore[operator]  # a count
