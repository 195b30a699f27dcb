"""A fleet of replicas: routing, deaths, signals that are late; against theory and against one replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.cluster.fleet import DIED, Outage
from simulator.cluster.routers import ROUTERS, PrefixAffinity, RouterContext, round_robin
from simulator.cluster.scaling import Scaling, by_outstanding
from simulator.cluster.serve import FleetServed, ReplicaKind, serve_fleet
from simulator.engine.clients import ClientPlan
from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import ABORTED, COMPLETED, UNFINISHED
from simulator.request import Request
from simulator.schedulers import Chunked


def kind(name: str = "gpu", seconds: float = 0.25, blocks: int = 200, seats: int = 8) -> ReplicaKind:
    return ReplicaKind(
        name,
        1,
        lambda: Chunked(BlockManager(blocks, 4), max_num_seqs=seats, max_model_len=1000),
        LinearModel(seconds),
    )


def load(num: int, seed: int = 0, rate: float = 4.0) -> list[Request]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, num))
    lens = rng.integers(1, 30, (num, 2))
    return [
        Request(str(i), float(t), int(p), int(o), 64, session=f"s{i % 5}")
        for i, (t, (p, o)) in enumerate(zip(times, lens, strict=True))
    ]


def fleet(requests: Sequence[Request], kinds: Sequence[ReplicaKind], router: Any, **more: Any) -> FleetServed:
    rng = np.random.default_rng(0)
    return serve_fleet(requests, kinds, router, rng=rng, check_invariants=True, **more)


def test_a_fleet_of_one_is_a_replica() -> None:
    requests = load(60)
    served = fleet(requests, [kind()], round_robin)
    alone = serve(requests, kind().make_scheduler(), LinearModel(0.25)).recorder
    assert list(served.log.finished_at) == list(alone.finished_at)
    assert served.members[0].replica.recorder.num_output.tolist() == alone.num_output.tolist()


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_every_request(router: str) -> None:
    served = fleet(load(120), [kind(), kind(), kind()], ROUTERS[router])
    assert list(served.log.status) == [COMPLETED] * 120
    assert sum(member.num_received for member in served.members) == 120
    assert all(member.num_outstanding == 0 for member in served.members)
    if router != "session_affinity":
        assert all(member.num_received for member in served.members)


def test_sessions_stay_where_they_are() -> None:
    requests = load(100)
    served = fleet(requests, [kind(), kind(), kind()], ROUTERS["session_affinity"])
    for session in range(5):
        rows = np.arange(session, 100, 5)
        got = [int((m.replica.recorder.num_output[rows] > 0).sum()) for m in served.members]
        assert sorted(got) == [0, 0, 20]


def test_least_outstanding_counts_what_runs() -> None:
    """Four requests that run at once: a router that counts only who waits would send all to the first."""
    requests = [Request(str(i), 0.1 * i, 4, 20, 64) for i in range(4)]
    served = fleet(requests, [kind(), kind()], ROUTERS["least_outstanding"])
    assert [member.num_received for member in served.members] == [2, 2]


def test_late_signals_send_a_burst_to_one_replica() -> None:
    requests = [Request(str(i), 1.0 + 0.001 * i, 4, 20, 64) for i in range(8)]
    fresh = fleet(requests, [kind(), kind()], ROUTERS["least_outstanding"])
    late = fleet(requests, [kind(), kind()], ROUTERS["least_outstanding"], signal_delay=5.0)
    assert [member.num_received for member in fresh.members] == [4, 4]
    assert [member.num_received for member in late.members] == [8, 0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_no_request_is_lost_when_a_replica_dies(seed: int, retry: bool, comes_back: bool) -> None:
    rng = np.random.default_rng(seed)
    at = float(rng.uniform(0, 20))
    outage = Outage(int(rng.integers(2)), at, at + 5.0 if comes_back else None)
    requests = load(80, seed, rate=8.0)
    served = fleet(requests, [kind(seats=4), kind(seats=4)], round_robin, retry=retry, outages=[outage])
    status = np.array(served.log.status)
    assert (status != UNFINISHED).all()
    reasons = {served.log.reason.get(i) for i in np.flatnonzero(status == ABORTED).tolist()}
    assert reasons <= {DIED}
    assert not (retry and reasons)
    if not retry:
        assert served.num_retried == 0
    got = sum(member.replica.recorder.num_output for member in served.members)
    done = np.flatnonzero(status == COMPLETED)
    assert [int(got[i]) for i in done] == [requests[i].num_output for i in done], (
        "tokens of a lost try are void"
    )


def tables(served: FleetServed) -> list[Any]:
    """Everything that a run leaves, replica by replica."""
    log = served.log
    found: list[Any] = [list(log.status), repr(list(log.finished_at)), list(log.num_cached), log.reason]
    for member in served.members:
        recorder = member.replica.recorder
        steps = recorder.step_table()
        found += [getattr(steps, each.name).tolist() for each in fields(steps)]
        found += [recorder.num_output.tolist(), repr(recorder.first_token_at.tolist())]
        found += [member.state, member.ended, member.num_received]
    return found


@few_or_many(
    12, 300, seed=st.integers(0, 10**6), router=st.sampled_from(sorted(ROUTERS)), is_closed=st.booleans()
)
def test_replicas_that_sleep_do_what_those_that_decide_every_step_do(
    seed: int, router: str, is_closed: bool
) -> None:
    """Long answers under few requests, deaths, clients that leave, signals with a delay, two kinds."""
    rng = np.random.default_rng(seed)
    rate = float(rng.choice([0.2, 1.0, 6.0]))
    requests = [
        Request(each.id, each.arrival, each.num_prompt, 8 * each.num_output, 400, session=each.session)
        for each in load(50, seed, rate)
    ]
    cancel = np.where(rng.random(50) < 0.2, rng.exponential(10.0, 50), np.nan)
    plan = ClientPlan(cancel_after=cancel, max_concurrency=6 if is_closed else None)
    at = float(rng.uniform(0, 40))
    outage = Outage(int(rng.integers(3)), at, at + 5.0 if rng.random() < 0.5 else None)
    delay = float(rng.choice([0.0, 0.7]))
    kinds = [kind(seconds=0.25, blocks=120), kind(seconds=0.1, seats=4), kind(seconds=0.25, blocks=90)]
    served = [
        serve_fleet(
            requests,
            kinds,
            ROUTERS[router],
            rng=np.random.default_rng(seed),
            plan=plan,
            outages=[outage],
            signal_delay=delay,
            horizon=60.0 if seed % 3 == 0 else None,
            skip=skip,
        )
        for skip in (True, False)
    ]
    assert tables(served[0]) == tables(served[1])
    assert served[1].members[0].replica.recorder.num_skipped == 0


def test_requests_wait_at_the_router_while_no_replica_is_there() -> None:
    requests = [Request(str(i), float(i), 4, 4, 64) for i in range(6)]
    served = fleet(requests, [kind()], round_robin, outages=[Outage(0, 2.5, 10.0)])
    assert list(served.log.status) == [COMPLETED] * 6
    assert served.num_held >= 3
    assert min(served.log.finished_at[3:]) > 10.0
    lost = fleet(requests, [kind()], round_robin, outages=[Outage(0, 2.5)])
    assert list(lost.log.status).count(UNFINISHED) >= 3, "nobody comes back: counted as unfinished"


def test_prefix_affinity_follows_the_longest_known_prefix_unless_that_replica_is_busy() -> None:
    class State:
        def __init__(self, index: int, num_outstanding: int) -> None:
            self.index, self.num_outstanding, self.name = index, num_outstanding, "gpu"
            self.num_running = self.num_waiting = self.free_blocks = 0
            self.num_blocks = 1

    router, ctx = PrefixAffinity(), RouterContext(np.random.default_rng(0), 4)

    def request(*ranges: tuple[int, int]) -> Request:
        return Request("r", 0.0, 4 * sum(hi - lo for lo, hi in ranges) + 1, 1, 1, ranges)

    system = (0, 2)
    assert router(request(system, (100, 110)), [State(0, 5), State(1, 0)], ctx) == 1
    assert router(request(system, (200, 210)), [State(0, 0), State(1, 1)], ctx) == 0, (
        "2 of 12 blocks: too few"
    )
    assert router(request(system, (100, 115)), [State(0, 0), State(1, 3)], ctx) == 1
    assert router(request(system, (200, 212)), [State(0, 3), State(1, 0)], ctx) == 0
    assert router(request(system, (100, 120)), [State(0, 0), State(1, 90)], ctx) == 0, "much busier"
    assert router(request(system, (200, 212)), [State(1, 0)], ctx) == 0, "its replica is gone"


def test_an_autoscaler_starts_and_retires_replicas() -> None:
    burst = [Request(str(i), 0.1 * i, 8, 40, 64) for i in range(100)]
    calm = [Request(f"c{i}", 100.0 + 4 * i, 8, 4, 64) for i in range(50)]
    scaling = Scaling(by_outstanding(target=10), most=5, interval=1.0, start_delay=3.0)
    served = fleet([*burst, *calm], [kind()], ROUTERS["least_outstanding"], scaling=scaling)
    assert list(served.log.status) == [COMPLETED] * 150
    assert len(served.members) == 5
    first = served.members[1]
    assert first.started < 3.0
    assert {member.state for member in served.members} == {"serving", "retired"}
    paid = sum(member.gpu_seconds(served.end) for member in served.members)
    assert served.end < paid < 5 * served.end
    assert served.members[1].replica.recorder.num_steps > 0


def erlang_c(servers: int, load: float) -> float:
    """Return the mean wait of an M/M/c in service times, load per server (Erlang's C formula)."""
    offered = servers * load
    terms = [1.0]
    for i in range(1, servers):
        terms.append(terms[-1] * offered / i)
    last = terms[-1] * offered / servers / (1 - load)
    return last / (sum(terms) + last) / (servers * (1 - load))


def queue_waits(num: int, servers: int, router: Any, seed: int, tokens: int) -> float:
    """Serve Poisson arrivals with exponential answers on replicas of one seat; return the mean wait, s.

    A service takes a second and `tokens` tokens on average.
    """
    rng = np.random.default_rng(seed)
    rate, mean = 0.8 * servers, 1.0
    times = np.cumsum(rng.exponential(1 / rate, num))
    lens = np.maximum(1, np.rint(rng.exponential(mean, num) * tokens)).astype(int)
    requests = [
        Request(str(i), float(t), 1, int(n), 10**6) for i, (t, n) in enumerate(zip(times, lens, strict=True))
    ]
    kinds = [
        ReplicaKind(
            "s",
            1,
            lambda: Chunked(BlockManager(10**5, 16), max_num_seqs=1, max_model_len=10**6),
            LinearModel(1 / tokens),
        )
    ] * servers
    served = serve_fleet(requests, kinds, router, rng=np.random.default_rng(seed))
    waits = np.array(served.log.scheduled_at) - np.array(served.log.arrived_at)
    return float(waits[num // 10 :].mean())


@pytest.mark.parametrize("tokens", [10, pytest.param(100, marks=pytest.mark.slow)])  # finer, and longer
def test_random_splitting_gives_mm1_queues_and_join_the_shortest_queue_is_near_mmc(tokens: int) -> None:
    """At load 0.8 an M/M/1 waits 4 service times and an M/M/2 1.78; JSQ lies above the M/M/2, near it."""
    from scipy.stats import t

    seeds = range(8)
    found = {}
    for name in ("random", "least_outstanding"):
        means = np.array([queue_waits(4000, 2, ROUTERS[name], seed, tokens) for seed in seeds])
        half = float(t.ppf(0.9995, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5)
        found[name] = means.mean(), half
    mean, half = found["random"]
    assert abs(mean - 4.0) < half
    mean, half = found["least_outstanding"]
    central = erlang_c(2, 0.8)
    assert central == pytest.approx(1.7778, abs=1e-3)
    assert central - half < mean < 1.35 * central + half, "JSQ: no better than one queue, and not much worse"
