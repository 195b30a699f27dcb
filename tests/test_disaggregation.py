"""Prefill/decode disaggregation: timelines by hand, the cases DI-01 to DI-05, KV-10, no block lost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator.cluster.disaggregation import EXPIRED
from simulator.cluster.fleet import DIED, Outage
from simulator.cluster.routers import ROUTERS, round_robin
from simulator.cluster.serve import FleetServed, ReplicaKind, serve_fleet
from simulator.cluster.serve_disaggregated import DisaggregatedServed, serve_disaggregated
from simulator.config.build import NO_POLICIES, build_machine
from simulator.config.disaggregation import DisaggregationSection, LinkSection
from simulator.config.loading import load_scenario
from simulator.config.pools import Pools, build_link
from simulator.config.run import run_scenario
from simulator.config.server import Cluster, make_server
from simulator.engine.clients import ClientPlan
from simulator.engine.serve import serve
from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.kv.tiers import Tier, Tiers
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED, UNFINISHED
from simulator.metrics.token_times import gaps
from simulator.request import Request
from simulator.schedulers import BATCHING, Chunked
from simulator.schedulers.orders import priority
from simulator.specs import get_hardware
from simulator.specs.links import LINE_RATES, Link

ENDLESS = Link(math.inf, 0.0)
SIZE = 4  # tokens a block
SLOW = Link(1.0, 0.0)  # with 1 byte a block: a second a block


def kind(seconds: float = 0.25, blocks: int = 200, seats: int = 8, **keys: Any) -> ReplicaKind:
    batching = keys.pop("batching", Chunked)
    caching = keys.pop("enable_prefix_caching", True)
    tiers = keys.pop("tiers", None)
    asynchronous = keys.pop("async_scheduling", False)

    def make() -> Chunked:
        kv = BlockManager(
            blocks, SIZE, enable_prefix_caching=caching, tiers=Tiers([tiers]) if tiers else None
        )
        made: Chunked = batching(kv, max_num_seqs=seats, **{"max_model_len": 1000} | keys)
        return made

    return ReplicaKind("gpu", 1, make, LinearModel(seconds), asynchronous)


def split(
    requests: Sequence[Request],
    prefill: Sequence[ReplicaKind],
    decode: Sequence[ReplicaKind],
    link: Link = ENDLESS,
    **more: Any,
) -> DisaggregatedServed:
    settings: dict[str, Any] = {"block_bytes": 1, "check_invariants": True} | more
    return serve_disaggregated(requests, prefill, decode, link, rng=np.random.default_rng(0), **settings)


def load(num: int, seed: int = 0, rate: float = 4.0, shared: bool = False) -> list[Request]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, num))
    lens = rng.integers(1, 30, (num, 2))
    found = []
    for i, (t, (p, o)) in enumerate(zip(times.tolist(), lens.tolist(), strict=True)):
        first = int(rng.integers(3)) * 100
        hashes = ((first, first + p // SIZE),) if shared and p >= SIZE else ()
        found.append(Request(str(i), t, p, o, 64, hashes, session=f"s{i % 5}"))
    return found


def is_empty(served: DisaggregatedServed) -> bool:
    """Say whether no replica holds a block for anybody, on the GPU or in a tier, or knows of a request."""
    for member in served.members:
        scheduler = member.replica.scheduler
        claimed = scheduler.kv.tiers.memories if scheduler.kv.tiers is not None else []
        known = [scheduler.running, scheduler.fetching, scheduler.parked, member.tickets]
        if scheduler.kv.num_used or any(known) or scheduler.waiting.size or member.num_outstanding:
            return False
        if any(memory.num_reserved or memory.claimed for memory in claimed):
            return False
    return True


def tokens(served: FleetServed) -> list[int]:
    return sum(member.replica.recorder.num_output for member in served.members).tolist()  # type: ignore


def first_tokens(served: FleetServed) -> list[float]:
    found = np.array([member.replica.recorder.first_token_at for member in served.members])
    return np.fmin.reduce(found).tolist()  # type: ignore[no-any-return]


def all_gaps(served: FleetServed) -> list[float]:
    done = np.array(served.log.status) == COMPLETED
    values, counts = gaps([member.replica.recorder.stints(done) for member in served.members])
    return sorted(np.repeat(values, counts).tolist())


# By hand.


def test_two_requests_by_hand() -> None:
    """One replica a side, a step a second, a second a block; A has 8 tokens, B 12, both 3 to answer.

    Prefill: both in the step 0..1. Link: A's 2 blocks 1..3, B's 3 blocks 3..6. Decode: A's second and third
    token at 4 and 5, B's at 7 and 8.
    """
    requests = [Request("a", 0.0, 8, 3, 64), Request("b", 0.0, 12, 3, 64)]
    served = split(requests, [kind(1.0)], [kind(1.0)], SLOW)
    assert first_tokens(served) == [1.0, 1.0]
    assert list(served.log.finished_at) == [5.0, 8.0]
    assert [(each.begun, each.ended, each.num_bytes) for each in served.transfers] == [(1, 3, 2), (3, 6, 3)]
    assert all_gaps(served) == [1.0, 1.0, 3.0, 6.0], "the gap to the second token has the transfer in it"
    assert tokens(served) == [3, 3]
    assert is_empty(served)


def test_the_decode_replica_may_give_the_first_token_as_under_vllm() -> None:
    """As above, but the first tokens come when B and A would have got their second ones."""
    requests = [Request("a", 0.0, 8, 3, 64), Request("b", 0.0, 12, 3, 64)]
    served = split(requests, [kind(1.0)], [kind(1.0)], SLOW, first_token="decode")
    assert first_tokens(served) == [4.0, 7.0]
    assert list(served.log.finished_at) == [6.0, 9.0]
    assert all_gaps(served) == [1.0] * 4
    assert tokens(served) == [3, 3]
    assert is_empty(served)


def test_each_end_of_a_link_serves_one_transfer_at_a_time() -> None:
    """Prefill 0 sends a (4 blocks) and b (4) at 1, prefill 1 sends c (4) at 1; a and c go to decode 0.

    a 1..5 over out 0 and in 0. b waits for out 0: 5..9, to decode 1. c waits for in 0: 5..9.
    """
    requests = [Request(name, 0.0, 16, 2, 64) for name in "acb"]
    served = split(
        requests, [kind(1.0)] * 2, [kind(1.0)] * 2, SLOW, prefill_router=round_robin, decode_router=by_name
    )
    assert [(each.source, each.target, each.begun, each.ended) for each in served.transfers] == [
        (0, 2, 1.0, 5.0),
        (0, 3, 5.0, 9.0),
        (1, 2, 5.0, 9.0),
    ]


def by_name(request: Request, replicas: Sequence[Any], ctx: Any) -> int:
    return int(request.id == "b")


def test_a_link_without_end_gives_the_first_tokens_of_a_prefill_server() -> None:
    requests = load(80)
    served = split(requests, [kind()], [kind()])
    alone = serve(
        [dataclasses.replace(each, max_tokens=1) for each in requests],
        kind().make_scheduler(),
        LinearModel(0.25),
    ).recorder
    assert first_tokens(served) == alone.first_token_at.tolist()
    assert tokens(served) == [each.num_output for each in requests]
    assert is_empty(served)


@pytest.mark.parametrize("layers", [1, 4])
def test_layers_that_are_sent_as_they_are_computed_leave_the_last_one(layers: int) -> None:
    """A prompt of 16 blocks computed in 8 s. A quick link (0.25 s a block): 4 s of sending, 4 / L remain.

    A slow link (1 s a block): 16 s of sending, of which the 8 s (L - 1) / L have gone.
    """
    request = [Request("a", 0.0, 64, 2, 64)]
    for seconds, rest in ((0.25, 4 / layers), (1.0, 16 - 8 * (layers - 1) / layers)):
        served = split(
            request,
            [kind(1.0, max_num_batched_tokens=8)],
            [kind(1.0)],
            Link(1 / seconds, 0.0),
            num_layers=layers,
        )
        assert served.transfers[0].ended - 8.0 == pytest.approx(rest)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_no_link_sends_more_than_its_line_rate(seed: int) -> None:
    """Also with layers sent ahead: what an end has sent by the end of a transfer took no less than that."""
    served = split(
        load(60, seed, rate=8.0), [kind()] * 2, [kind()] * 2, Link(16.0, 0.0), num_layers=8, block_bytes=1
    )
    for place in ("source", "target"):
        for end in {getattr(each, place) for each in served.transfers}:
            sent = np.cumsum([each.num_bytes for each in served.transfers if getattr(each, place) == end])
            at = np.array([each.ended for each in served.transfers if getattr(each, place) == end])
            assert (sent <= 16.0 * at + 1e-9).all()


# The cases of others' faults.


def test_DI_01_a_link_in_gigabits_is_an_eighth_in_bytes() -> None:
    ndr = Link(LINE_RATES["ib-400g"], 0.0)
    assert ndr.seconds(4096 * 131072) == pytest.approx(10.737e-3, abs=1e-6)
    served = split([Request("a", 0.0, 512, 2, 64)], [kind()], [kind()], ndr, block_bytes=SIZE * 131072)
    (sent,) = served.transfers
    assert sent.num_bytes == 512 * 131072
    assert sent.ended - sent.begun == pytest.approx(512 * 131072 / 50e9)


def test_DI_03_source_blocks_stay_until_the_transfer_ends() -> None:
    """The prefill pool holds one prompt of 10 blocks; prefill 1 s, transfer 10 s."""
    requests = [Request(name, 0.0, 40, 2, 64) for name in "ab"]
    served = split(requests, [kind(1.0, blocks=10)], [kind(1.0)], SLOW)
    assert first_tokens(served) == [1.0, 12.0]
    assert served.prefill[0].replica.recorder.step_table().used_blocks.max() == 10
    assert is_empty(served)


def test_DI_03_KV_10_a_client_that_leaves_during_the_transfer_frees_both_sides_at_once() -> None:
    """b gets the blocks of a, whose client leaves at 3: b's prefill takes 3..4 and its transfer 4..14."""
    requests = [Request(name, 0.0, 40, 2, 64) for name in "ab"]
    plan = ClientPlan(cancel_after=np.array([3.0, np.nan]))
    served = split(requests, [kind(1.0, blocks=10)], [kind(1.0, blocks=12)], SLOW, plan=plan)
    assert list(served.log.status) == [ABORTED, COMPLETED]
    assert served.log.reason[0] == "cancelled"
    assert first_tokens(served)[1] == 4.0
    assert [(each.request, each.ended) for each in served.transfers] == [(1, 14.0)]
    assert served.num_called_off == 1
    assert served.log.finished_at[1] == 15.0
    assert is_empty(served)


def test_DI_04_replicas_of_kv_heads_are_no_data() -> None:
    """10 layers, 2 KV heads of 128, bf16: 1,000 tokens are 10,240,000 B however many GPUs share them."""
    from simulator.specs import Model

    model = Model("m", 10, 512, 8, 2, 128, 1024, 1000, 4096)
    assert model.kv_bytes(1000) == 10_240_000
    assert model.kv_bytes(1000, "auto", 4) * 4 == 20_480_000, "on four ranks, each head twice: not to be sent"


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_DI_05_what_has_come_runs_before_a_head_that_needs_its_blocks(order: str) -> None:
    """10 blocks; x gets 6 of them, arrives after y is at the head, which needs 6 of its own."""
    requests = [
        Request("x", 0.0, 24, 2, 64, priority=1),
        Request("y", 0.5, 24, 2, 64, priority=0),
    ]
    keys = {"order": priority} if order == "priority" else {}
    served = split(requests, [kind(0.25)], [kind(0.25, blocks=10, **keys)], Link(6.0, 0.0))
    assert list(served.log.status) == [COMPLETED] * 2
    x, y = served.transfers
    assert (x.begun, x.ended) == (0.25, 1.25)
    assert served.log.finished_at[0] == 1.5, "x runs when its blocks are there"
    assert y.decided == 1.5, "and then y gets its blocks"


def test_KV_10_a_lease_ends_what_nobody_fetches() -> None:
    """The only decode replica is dead from the start: both prompts are computed and parked, then given up."""
    requests = [Request("a", 1.0, 8, 3, 64), Request("b", 2.0, 8, 3, 64)]
    served = split(requests, [kind()], [kind()], outages=[Outage(1, 0.5)], lease=20.0)
    assert list(served.log.status) == [ABORTED] * 2
    assert set(served.log.reason.values()) == {EXPIRED}
    assert list(served.log.finished_at) == [21.25, 22.25]
    assert served.num_expired == 2
    assert is_empty(served)


# Whatever happens.


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_every_request_in_both_pools(router: str) -> None:
    served = split(
        load(120, shared=True),
        [kind()] * 2,
        [kind()] * 3,
        Link(40.0, 0.01),
        prefill_router=ROUTERS[router],
        decode_router=ROUTERS[router],
    )
    assert list(served.log.status) == [COMPLETED] * 120
    assert is_empty(served)


@pytest.mark.parametrize("batching", BATCHING)
def test_every_batching_serves_either_pool(batching: str) -> None:
    requests = load(60, shared=True)
    keys: dict[str, Any] = {"batching": BATCHING[batching]}
    for prefill, decode in ((kind(**keys), kind()), (kind(), kind(**keys))):
        served = split(requests, [prefill], [decode], Link(40.0, 0.01))
        assert list(served.log.status) == [COMPLETED] * 60
        assert tokens(served) == [each.num_output for each in requests]
        assert is_empty(served)


def test_prefix_hits_at_the_decode_replica_are_not_sent_again() -> None:
    requests = [Request(str(i), 10.0 * i, 18, 2, 64, ((0, 4),)) for i in range(3)]
    served = split(requests, [kind()], [kind()], SLOW)
    assert [each.num_bytes for each in served.transfers] == [5, 1, 1]
    requests = [Request(str(i), 10.0 * i, 16, 2, 64, ((0, 4),)) for i in range(3)]
    served = split(requests, [kind()], [kind()], SLOW)
    assert [each.num_bytes for each in served.transfers] == [4], "all blocks are there: nothing to send"
    assert list(served.log.status) == [COMPLETED] * 3
    assert is_empty(served)


def test_a_request_no_pair_of_replicas_could_serve_is_rejected_when_it_arrives() -> None:
    requests = [Request("a", 0.0, 60, 30, 64), Request("b", 0.0, 8, 2, 64), Request("c", 1.0, 999, 5, 64)]
    served = split(requests, [kind()], [kind(blocks=20), kind(blocks=10)], SLOW)
    assert list(served.log.status) == [REJECTED, COMPLETED, REJECTED]
    assert is_empty(served)


def test_pools_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len must be the same"):
        split(load(1), [kind()], [kind(max_model_len=50)])
    with pytest.raises(ValueError, match="block_bytes"):
        split(load(1), [kind()], [kind()], block_bytes=0)


def test_a_decode_replica_that_dies_costs_no_prompt_that_is_still_parked() -> None:
    """a's blocks are sent 1..11; the decode replica dies at 5, so they are sent again 5..15 to the other."""
    served = split(
        [Request("a", 0.0, 40, 3, 64)], [kind(1.0)], [kind(1.0)] * 2, SLOW, outages=[Outage(1, 5.0)]
    )
    assert first_tokens(served) == [1.0]
    assert [(each.target, each.ended) for each in served.transfers] == [(2, 15.0)]
    assert list(served.log.finished_at) == [17.0]
    assert tokens(served) == [3]
    assert served.num_retried == 1


def test_what_a_dead_replica_had_not_sent_is_computed_again() -> None:
    """The prefill replica dies at 5 during a's transfer; the other computes a 5..6 and sends it 6..16."""
    served = split(
        [Request("a", 0.0, 40, 3, 64)], [kind(1.0)] * 2, [kind(1.0)], SLOW, outages=[Outage(0, 5.0)]
    )
    assert first_tokens(served) == [6.0]
    assert list(served.log.finished_at) == [18.0]
    assert tokens(served) == [3]
    assert is_empty(served)


def test_an_answer_that_a_decode_replica_had_begun_starts_over() -> None:
    served = split(
        [Request("a", 0.0, 4, 9, 64)], [kind(1.0)], [kind(1.0)] * 2, SLOW, outages=[Outage(1, 5.5)]
    )
    assert first_tokens(served) == [6.5], "the first token that counts"
    assert tokens(served) == [9]
    assert all_gaps(served) == [1.0] * 7 + [2.0]


def test_clients_learn_when_an_answer_is_complete_and_not_when_its_prompt_is() -> None:
    """Three turns of a session, a think of 5 s between; one client that has one request under way."""
    requests = [Request(str(i), 0.0, 8, 3, 64) for i in range(3)]
    chain = ClientPlan(follows=np.array([[0, 1], [1, 2]]), think=np.array([0.0, 5.0, 5.0]))
    served = split(requests, [kind(1.0)], [kind(1.0)], SLOW, plan=chain)
    assert list(served.log.arrived_at) == [0.0, 10.0, 20.0]
    served = split(requests, [kind(1.0)], [kind(1.0)], SLOW, plan=ClientPlan(max_concurrency=1))
    assert list(served.log.finished_at) == [5.0, 10.0, 15.0]


def test_a_request_of_one_token_is_over_where_its_prompt_was_computed() -> None:
    requests = [Request("a", 0.0, 8, 1, 64), Request("b", 0.0, 8, 5, 1), Request("c", 0.0, 999, 5, 64)]
    served = split(requests, [kind(1.0, blocks=300)], [kind(1.0, blocks=300)], SLOW)
    assert served.log.reason == {1: "length", 2: "length"}
    assert not served.transfers
    assert is_empty(served)


@st.composite
def stormy(draw: st.DrawFn) -> dict[str, Any]:
    """A load, pools, a link, deaths and clients that leave."""
    num = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    counts = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    outages = []
    for _ in range(draw(st.integers(0, 3))):
        at = float(rng.uniform(0, 15))
        back = at + float(rng.uniform(0, 5)) if draw(st.booleans()) else None
        outages.append(Outage(int(rng.integers(sum(counts))), at, back))
    leaves = np.where(rng.random(num) < draw(st.sampled_from([0, 0.3])), rng.exponential(3.0, num), np.nan)
    keys: dict[str, Any] = {
        "seats": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.sampled_from([8, 64])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
    }
    if draw(st.booleans()):
        keys |= {"preemption": "swap", "tiers": Tier("host", 30, 1, bandwidth=50.0)}
    return {
        "requests": load(num, seed, rate=8.0, shared=draw(st.booleans())),
        "prefill": [kind(blocks=draw(st.sampled_from([12, 40])), seats=4)] * counts[0],
        "decode": [kind(blocks=draw(st.sampled_from([20, 60])), **keys)] * counts[1],
        "link": draw(st.sampled_from([ENDLESS, SLOW, Link(20.0, 0.1)])),
        "outages": outages,
        "plan": ClientPlan(cancel_after=leaves),
        "retry": draw(st.booleans()),
        "first_token": draw(st.sampled_from(["prefill", "decode"])),
        "num_layers": draw(st.sampled_from([None, 4])),
        "horizon": draw(st.sampled_from([None, None, 4.0])),
        "lease": draw(st.sampled_from([2.0, 480.0])),
        "signal_delay": draw(st.sampled_from([0.0, 1.0])),
        "decode_router": draw(st.sampled_from(list(ROUTERS.values()))),
    }


@settings(max_examples=60, deadline=None)
@given(stormy())
def test_nothing_is_lost_and_nothing_is_left_whatever_dies_or_leaves(case: dict[str, Any]) -> None:
    check_storm(case)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(stormy())
def test_nothing_is_lost_in_many_storms(case: dict[str, Any]) -> None:
    check_storm(case)


def check_storm(case: dict[str, Any]) -> None:
    requests = case["requests"]
    served = split(**case)
    status = np.array(served.log.status)
    cut = case["horizon"] or any(outage.back is None for outage in case["outages"])
    assert cut or (status != UNFINISHED).all()
    reasons = {served.log.reason.get(i) for i in np.flatnonzero(status == ABORTED).tolist()}
    assert reasons <= {DIED, EXPIRED, "cancelled"}
    assert not (case["retry"] and DIED in reasons)
    got = tokens(served)
    for i in np.flatnonzero(status == COMPLETED).tolist():
        assert got[i] == requests[i].num_output, "tokens of a lost try are void"
        first = first_tokens(served)[i]
        assert requests[i].arrival < first <= served.log.finished_at[i]
    done = [requests[i].num_output for i in np.flatnonzero(status == COMPLETED).tolist()]
    assert len(all_gaps(served)) == sum(done) - len(done)
    if (status != UNFINISHED).all():
        assert is_empty(served)
    times = {(each.source, each.target): 0.0 for each in served.transfers}
    for each in served.transfers:
        ends = each.source, each.target
        assert each.begun >= max(each.decided, times[ends]), "one at a time"
        times[ends] = each.ended


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_skipped_steps_are_as_ticked_ones(seed: int, asynchronous: bool) -> None:
    """`check_invariants` turns skipping off."""
    cases = [
        split(
            load(60, seed, rate=6.0, shared=True),
            [kind(async_scheduling=asynchronous)] * 2,
            [kind(blocks=40, async_scheduling=asynchronous)] * 2,
            Link(30.0, 0.05),
            check_invariants=ticked,
        )
        for ticked in (True, False)
    ]
    ticked, skipped = cases
    assert list(ticked.log.finished_at) == list(skipped.log.finished_at)
    assert all_gaps(ticked) == all_gaps(skipped)
    assert [each.ended for each in ticked.transfers] == [each.ended for each in skipped.transfers]


def test_at_a_light_load_disaggregation_costs_the_transfer_alone() -> None:
    """One request at a time: as on one replica, but for the transfer between the first two tokens."""
    requests = [Request(str(i), 100.0 * i, 8, 5, 64) for i in range(5)]
    served = split(requests, [kind()], [kind()], SLOW)
    alone = serve_fleet(requests, [kind()], round_robin, rng=np.random.default_rng(0))
    late = np.array(served.log.finished_at) - np.array(alone.log.finished_at)
    assert late.tolist() == [2.0] * 5


# As a scenario names it.


def section(**keys: Any) -> DisaggregationSection:
    return DisaggregationSection.model_validate(keys)


def pools_of(changes: dict[str, Any] | None = None, **keys: Any) -> Pools:
    scenario = load_scenario("chat-a100").with_(**(changes or {}), cluster={"disaggregation": keys})
    server = make_server(scenario, build_machine(scenario), NO_POLICIES)
    assert isinstance(server, Cluster)
    assert server.pools is not None
    return server.pools


def test_DI_01_a_bandwidth_above_the_line_rate_of_its_wire_is_refused() -> None:
    a100 = get_hardware("a100-80gb-sxm")
    assert build_link("ib-400g", a100).bandwidth == 50e9
    assert build_link(LinkSection(bandwidth_gb_s=50, latency_us=0), a100) == Link(50e9, 0.0)
    with pytest.raises(
        ConfigError, match=r"bandwidth_gb_s: must be <= 50 GB/s \(400 Gb/s\), .*ib-400g, got 400"
    ):
        build_link(LinkSection(name="ib-400g", bandwidth_gb_s=400), a100)
    with pytest.raises(ConfigError, match=r"the fastest link between GPUs, got 13107\.2"):
        build_link(LinkSection(bandwidth_gb_s=13107.2), a100)  # 100 tokens of 131,072 bytes a microsecond


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("ib-4000g", "link: 'ib-4000g' is unknown; did you mean ib-400g"),
        ("nvlink", "link: nvlink, but a100-80gb-pcie has none"),
        (LinkSection(), "link: needs a name or bandwidth_gb_s"),
    ],
)
def test_a_link_that_is_none_is_refused(link: str | LinkSection, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_link(link, get_hardware("a100-80gb-sxm"), get_hardware("a100-80gb-pcie"))


def test_a_scenarios_pools_may_differ_and_their_bytes_do_not_depend_on_the_group() -> None:
    pools = pools_of(
        prefill={
            "count": 2,
            "set": {"parallel.tensor_parallel_size": 2, "scheduler.max_num_batched_tokens": 8192},
        },
        decode={"count": 3},
        layerwise=True,
        link={"name": "ib-400g", "bandwidth_gb_s": 40},
    )
    assert [kind.gpus for kind in (*pools.prefill, *pools.decode)] == [2, 2, 1, 1, 1]
    assert pools.block_bytes == 16 * 131_072
    assert pools.num_layers == 32
    assert pools.prefill[0].make_scheduler().max_num_batched_tokens == 8192
    assert pools.decode[0].make_scheduler().max_num_batched_tokens == 2048
    requests = [Request(str(i), 0.1 * i, 500, 20, 2048) for i in range(20)]
    served = serve_disaggregated(
        requests,
        pools.prefill,
        pools.decode,
        pools.link,
        block_bytes=pools.block_bytes,
        num_layers=pools.num_layers,
        rng=np.random.default_rng(0),
        check_invariants=True,
    )
    assert list(served.log.status) == [COMPLETED] * 20
    assert is_empty(served)


def test_what_disaggregation_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="decode_router: unknown 'least_kw'; did you mean least_kv"):
        pools_of(decode_router="least_kw")
    drafting = {"speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.4}}
    with pytest.raises(ConfigError, match="must be null under speculative"):
        pools_of(drafting)
    with pytest.raises(ConfigError, match="must be null under scheduler"):
        pools_of({"scheduler.batching": "static"})
    with pytest.raises(ConfigError, match="pipeline_parallel_size must be 1"):
        pools_of({"parallel.pipeline_parallel_size": 2})
    for wrong in ({"prefill": {"count": 0}}, {"prefill": {"set": {"model.name": "x"}}}, {"lease_s": 0}):
        with pytest.raises(ValidationError):
            section(**wrong)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"replicas": 2}, "replicas: must be 1 under disaggregation"),
        ({"router": "random"}, "these are prefill_router and decode_router"),
        ({"autoscaler": {"max_replicas": 4}}, "autoscaler: must be null under disaggregation"),
        ({"outages": [{"replica": 2, "at_s": 1}]}, "replica 2 is none of 0 to 1"),
    ],
)
def test_what_belongs_to_one_pool_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_scenario("tiny-cpu").with_(cluster={"disaggregation": {}, **keys})


def test_a_disaggregated_scenario_is_one_run() -> None:
    cluster = {"disaggregation": {"prefill": {"count": 2}, "link": {"bandwidth_gb_s": 1.0}}}
    changes = {"cluster": cluster, "hardware.price_per_gpu_hour": 3.6}
    made = run_scenario(load_scenario("tiny-cpu").with_(**changes), check_invariants=True)
    own: Any = made.own
    assert own["completed"] == 40
    assert [(each["pool"], each["gpus"]) for each in own["replicas"]] == [
        ("prefill", 1),
        ("prefill", 1),
        ("decode", 1),
    ]
    moved = int((made.requests.num_output > 1).sum())
    assert own["transfers"]["num_transfers"] == moved
    assert int(made.gaps[1].sum()) == int((made.requests.num_output - 1).sum())
    assert own["gpu_seconds"] == pytest.approx(3 * made.requests.finish.max())
    second = made.requests.finish - made.requests.first_token
    assert (second[made.requests.num_output > 1] >= own["transfers"]["least_ms"] / 1e3).all()
    slower = {"cluster": {"disaggregation": {"link": {"bandwidth_gb_s": 0.01}}}}
    late = run_scenario(load_scenario("tiny-cpu").with_(**slower))
    assert late.summary["p99_itl_ms"] > made.summary["p99_itl_ms"]  # type: ignore[operator]
