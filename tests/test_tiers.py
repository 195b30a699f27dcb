"""Memory tiers: what each holds, what moves when, and that a fetched prefix is worth what a cached one is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_skipping import assert_same
from tiered_runs import OUTSIDE, assert_empty, logged, lost, prefix, run_tiered, tier, tiered_loads, told

from simulator.api import load_run, simulate
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.engine.clients import ClientPlan
from simulator.engine.decisions import Decision
from simulator.engine.story import Story
from simulator.errors import ConfigError
from simulator.kv.block_pool import BlockPool
from simulator.kv.tiers import Tier, Tiers
from simulator.metrics.tables import COMPLETED
from simulator.request import Claim, Request
from simulator.schedulers import BATCHING


def held(tiers: Tiers) -> list[list[int]]:
    """Return each tier's offloaded blocks, the first to go first."""
    return [list(memory.offloaded) for memory in tiers.memories]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_blocks": 0}, "num_blocks and bytes_per_block must be >= 1, got 0, 1000"),
        ({"bandwidth": 0.0}, "bandwidth must be > 0 and latency >= 0"),
        ({"bandwidth": float("inf")}, "both finite"),
        ({"latency": -1.0}, "latency >= 0"),
    ],
)
def test_a_tier_that_cannot_be_is_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tier(**{"name": "host", "num_blocks": 4, "bytes_per_block": 1000, "bandwidth": 1.0} | facts)


def test_a_prefix_loses_its_tail_first_and_passes_it_down() -> None:
    tiers = Tiers([tier(4), tier(2, name="nvme")])
    tiers.evicted(0, 3)
    tiers.evicted(10, 13)
    assert held(tiers) == [[0, 12, 11, 10], [2, 1]]
    assert tiers.take_outgoing() == [(0, 6), (1, 2)]
    assert tiers.take_outgoing() == []
    tiers.evicted(0, 1)  # is there already: no second copy, but it goes later now
    assert held(tiers) == [[12, 11, 10, 0], [2, 1]]
    assert tiers.take_outgoing() == []


def test_a_tier_that_does_not_offload_is_passed_over_and_passes_nothing_down() -> None:
    tiers = Tiers([tier(2), tier(9, name="nvme", offload=False)])
    tiers.evicted(0, 5)
    assert held(tiers) == [[1, 0], []]
    tiers = Tiers([tier(2, offload=False), tier(9, name="nvme")])
    tiers.evicted(0, 5)
    assert held(tiers) == [[], [4, 3, 2, 1, 0]]
    assert not Tiers([tier(2, offload=False)]).offloads


def test_a_match_ends_at_the_first_block_that_no_tier_has() -> None:
    tiers = Tiers([tier(2), tier(9, name="nvme")])
    tiers.evicted(0, 4)
    tiers.evicted(100, 101)
    assert held(tiers) == [[0, 100], [3, 2, 1]]
    assert tiers.match([(0, 4), (100, 102)], 0, 9) == [[0, 100], [1, 2, 3]]
    assert tiers.match([(0, 4), (100, 102)], 2, 4) == [[], [2, 3]]
    assert tiers.match([(5, 7), (0, 4)], 0, 6) == [[], []]


def test_what_is_claimed_stays_and_is_the_last_to_go_afterwards() -> None:
    tiers = Tiers([tier(4)])
    tiers.evicted(0, 4)
    claims = tiers.claim(tiers.match([(0, 2)], 0, 2))
    tiers.evicted(10, 13)  # two find room
    assert held(tiers) == [[11, 10]]
    tiers.check(claims)
    tiers.give_back(claims)
    assert held(tiers) == [[11, 10, 1, 0]]
    tiers.check([])


def test_a_block_claimed_twice_stays_until_both_are_done() -> None:
    tiers = Tiers([tier(2)])
    tiers.evicted(0, 1)
    one, other = tiers.claim([[0]]), tiers.claim([[0]])
    tiers.give_back(one)
    tiers.check(other)
    assert held(tiers) == [[]]
    tiers.give_back(other)
    assert held(tiers) == [[0]]


def test_swapping_copies_only_what_a_tier_lacks() -> None:
    tiers = Tiers([tier(4)])
    tiers.evicted(0, 2)
    tiers.evicted(50, 52)
    assert tiers.find_room([0, 1, 2], 4) == (0, 2)
    claim = tiers.swap_out(0, [0, 1, 2], 4)
    assert claim == Claim(0, [0, 1, 2], 1)
    assert held(tiers) == [[]]
    assert tiers.find_room([60], 1) is None
    tiers.check([claim])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("evict"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("claim"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("swap"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.just("give back"), st.integers(0, 9), st.just(0)),
    ),
    max_size=40,
)


class PlainTiers:
    """The same rules on plain lists: a list a tier, oldest first, of [hash or None, number of claims]."""

    def __init__(self, sizes: list[int], offload: list[bool]) -> None:
        self.sizes, self.offload = sizes, offload
        self.tiers: list[list[list[Any]]] = [[] for _ in sizes]

    def find(self, tier: int, block: int) -> list[Any] | None:
        return next((entry for entry in self.tiers[tier] if entry[0] == block), None)

    def make_room(self, tier: int) -> bool:
        here = self.tiers[tier]
        if len(here) == self.sizes[tier]:
            oldest = next((entry for entry in here if not entry[1]), None)
            if oldest is None:
                return False
            here.remove(oldest)
            if tier + 1 < len(self.tiers) and self.offload[tier + 1]:
                self.put(tier + 1, oldest[0])
        return True

    def put(self, tier: int, block: int) -> None:
        entry = self.find(tier, block)
        if entry is None and self.make_room(tier):
            self.tiers[tier].append([block, 0])
        elif entry is not None and not entry[1]:
            self.tiers[tier].remove(entry)
            self.tiers[tier].append(entry)

    def claim(self, tier: int, block: int | None) -> None:
        entry = None if block is None else self.find(tier, block)
        if entry is None:
            assert self.make_room(tier)
            entry = [block, 0]
            self.tiers[tier].append(entry)
        entry[1] += 1

    def give_back(self, tier: int, block: int | None) -> None:
        entry = next(each for each in self.tiers[tier] if each[0] == block and each[1])
        entry[1] -= 1
        if not entry[1]:
            self.tiers[tier].remove(entry)
            if block is not None:
                self.tiers[tier].append(entry)


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    offload=st.lists(st.booleans(), min_size=3, max_size=3),
    actions=ACTIONS,
)
@settings(max_examples=150, deadline=None)
def test_tiers_do_what_plain_lists_do(sizes: list[int], offload: list[bool], actions: list[Any]) -> None:
    tiers = Tiers([tier(n, name=str(i), offload=offload[i]) for i, n in enumerate(sizes)])
    plain, claims = PlainTiers(sizes, offload[: len(sizes)]), list[Claim]()
    for action, family, n in actions:
        blocks = list(range(10 * family, 10 * family + n))
        if action == "evict" and tiers.offloads:
            tiers.evicted(blocks[0], blocks[-1] + 1)
            for block in reversed(blocks):
                plain.put(plain.offload.index(True), block)
        elif action == "claim":
            new = tiers.claim(tiers.match([(blocks[0], blocks[-1] + 1)], 0, n))
            claims += new
            for found in new:
                for block in found.hashes:
                    plain.claim(found.tier, block)
        elif action == "swap" and (room := tiers.find_room(blocks[:-1], n)):
            known = blocks[:-1] if plain.offload[room.tier] else []
            assert room.num_copied == n - sum(plain.find(room.tier, block) is not None for block in known)
            claims.append(tiers.swap_out(room.tier, blocks[:-1], n))
            for block in sorted(known, key=lambda each: plain.find(room.tier, each) is None):
                plain.claim(room.tier, block)
            for _ in range(n - len(known)):
                plain.claim(room.tier, None)
        elif action == "give back" and claims:
            done = claims.pop(family % len(claims))
            tiers.give_back([done])
            for block in reversed([*done.hashes, *[None] * done.num_unhashed]):
                plain.give_back(done.tier, block)
        tiers.check(claims)
        assert held(tiers) == [[each[0] for each in here if not each[1]] for here in plain.tiers]
        assert [memory.num_used for memory in tiers.memories] == [len(here) for here in plain.tiers]


def test_a_pool_reports_the_last_copy_of_a_block_and_no_other() -> None:
    pool, gone = BlockPool(6), list[tuple[int, int]]()
    pool.on_evict = lambda lo, hi: gone.append((lo, hi))
    for _ in range(2):  # two sequences compute the same two blocks
        pool.take(2)
        pool.leave_cached(0, 2)
    pool.take(3)  # two unhashed ones and the tail of the first copy
    assert gone == []
    assert pool.num_steady == 0
    pool.take(2)
    assert gone == [(1, 2)]
    pool.take(1)
    assert gone == [(1, 2), (0, 1)]


# Worked by hand: a block has 4 tokens, a forward pass takes 1 s, the host moves 4 blocks/s.

A = Request("A", 0.0, 17, 1, 1, block_hashes=prefix(0))
B = Request("B", 0.0, 17, 1, 1, block_hashes=prefix(100))
C = Request("C", 10.0, 17, 1, 1, block_hashes=prefix(0))
D = Request("D", 10.0, 17, 1, 1, block_hashes=prefix(100))


def fetches(log: list[Decision]) -> list[tuple[float, str | None, int]]:
    """Return when which sequence was fetched, and how many blocks."""
    moves = [(line["t"], move) for line in log for move in line.get("moves", ())]
    return [(t, seq, n) for t, (seq, _, n, direction) in moves if direction == "in"]


def test_an_evicted_prefix_is_fetched_back_beside_what_the_gpu_kept() -> None:
    """X's three blocks evict two of A's four; C hits two, fetches two, and computes one token."""
    x = Request("X", 2.0, 11, 1, 1)
    served, log = logged([A, x, C], [tier(100)], num_blocks=5)
    assert told(served, log) == [
        (0.0, 0.0, 1.0, {"chunks": [("A", 17, 0)], "finished": ["A"]}),
        (2.0, 2.5, 3.5, {"chunks": [("X", 11, 0)], "moves": [(None, 0, 2, "out")], "finished": ["X"]}),
        (10.0, 10.25, 10.25, {"moves": [("C", 0, 2, "in"), (None, 0, 1, "out")]}),
        (10.75, 11.0, 12.0, {"chunks": [("C", 1, 16)], "moves": [(None, 0, 1, "out")], "finished": ["C"]}),
    ]
    assert lost(served) == {
        "offloaded_tokens": 16,
        "fetched_tokens": 8,
        "offload_stall_s": 1.0,
        "fetch_wait_s": 0.75,
    }
    table = served.recorder.request_table([A, x, C])
    assert table.num_cached.tolist() == [0, 0, 16]
    assert table.scheduled.tolist() == [0.0, 2.0, 10.75]


def test_two_fetches_queue_on_one_link() -> None:
    """Both wait until their blocks' former content is out (12.0); then each takes a second."""
    x = Request("X", 2.0, 40, 1, 1)
    served, log = logged([A, B, x, C, D], [tier(100)], num_blocks=10)
    both = [("C", 0, 4, "in"), ("D", 0, 4, "in"), (None, 0, 8, "out")]
    assert told(served, log) == [
        (0.0, 0.0, 1.0, {"chunks": [("A", 17, 0), ("B", 17, 0)], "finished": ["A", "B"]}),
        (2.0, 4.0, 5.0, {"chunks": [("X", 40, 0)], "moves": [(None, 0, 8, "out")], "finished": ["X"]}),
        (10.0, 12.0, 12.0, {"moves": both}),
        (13.0, 13.25, 14.25, {"chunks": [("C", 1, 16)], "moves": [(None, 0, 1, "out")], "finished": ["C"]}),
        (14.25, 14.25, 15.25, {"chunks": [("D", 1, 16)], "finished": ["D"]}),
    ]
    assert lost(served)["fetch_wait_s"] == 3.0 + 4.0


def test_a_full_host_passes_blocks_down_first_and_a_fetch_takes_both_links() -> None:
    """B evicts A's four blocks: two go through the host to the nvme (2 blocks/s), then four to the host."""
    b = Request("B", 2.0, 20, 1, 1)
    served, log = logged([A, b, C], [tier(2), tier(100, 2.0, name="nvme")], num_blocks=5)
    down = [(None, 0, 4, "out"), (None, 1, 2, "out")]
    last = [(None, 0, 1, "out"), (None, 1, 1, "out")]
    assert told(served, log) == [
        (0.0, 0.0, 1.0, {"chunks": [("A", 17, 0)], "finished": ["A"]}),
        (2.0, 4.0, 5.0, {"chunks": [("B", 20, 0)], "moves": down, "finished": ["B"]}),
        (10.0, 10.0, 10.0, {"moves": [("C", 0, 2, "in"), ("C", 1, 2, "in")]}),  # the host is full of C's own
        (11.0, 11.75, 12.75, {"chunks": [("C", 1, 16)], "moves": last, "finished": ["C"]}),
    ]


@pytest.mark.parametrize("latency", [0.0, 0.125])
def test_every_transfer_pays_the_latency(latency: float) -> None:
    x = Request("X", 2.0, 40, 1, 1)
    served, _ = logged([A, B, x, C, D], [tier(100, latency=latency)], num_blocks=10)
    assert lost(served)["offload_stall_s"] == 4.25 + 3 * latency
    assert lost(served)["fetch_wait_s"] == (3.0 + 2 * latency) + (4.0 + 3 * latency)


def test_blocks_in_flight_are_nobody_elses() -> None:
    """D has C's prefix and arrives during C's fetch: it fetches a copy of its own."""
    d = Request("D", 10.6, 17, 1, 1, block_hashes=prefix(0))
    served, log = logged([A, Request("X", 2.0, 40, 1, 1), C, d], [tier(100)], num_blocks=10)
    assert fetches(log) == [(10.0, "C", 4), (11.0, "D", 4)]
    assert served.scheduler.kv.num_hits == 0


def test_a_fetch_whose_client_goes_leaves_nothing_behind() -> None:
    """C gives up half-way; what has come of its blocks is not in the cache, so D fetches all four."""
    d = Request("D", 20.0, 17, 1, 1, block_hashes=prefix(0))
    x = Request("X", 2.0, 20, 1, 1)
    requests = [A, x, C, d]
    plan = ClientPlan(cancel_after=np.array([np.nan, np.nan, 1.5, np.nan]))
    served, log = logged(requests, [tier(100)], num_blocks=5, engine={"plan": plan})
    assert fetches(log) == [(10.0, "C", 4), (20.0, "D", 4)]
    assert served.recorder.request_table(requests).finish.tolist()[2] == 11.5
    assert_empty(served)


def test_one_that_is_fetched_takes_a_seat() -> None:
    e = Request("E", 10.0, 4, 1, 1)
    served, _ = logged([A, Request("X", 2.0, 20, 1, 1), C, e], [tier(100)], num_blocks=6, max_num_seqs=1)
    assert served.recorder.scheduled_at[3] == served.recorder.finished_at[2] == 12.75


def test_a_fetch_waits_until_all_known_tokens_fit() -> None:
    """Though only a chunk would be computed: E's ten blocks leave C's five no room until it ends."""
    e = Request("E", 9.0, 40, 2, 2)
    settings: dict[str, Any] = {"scheduler_reserve_full_isl": False, "num_blocks": 13}
    served, log = logged([A, Request("X", 2.0, 52, 1, 1), e, C], [tier(100)], **settings)
    assert fetches(log) == [(served.recorder.finished_at[2], "C", 4)]


def test_whole_prompts_left_over_by_a_fetch_go_first() -> None:
    """C's last 20 tokens exceed the budget of 16: a step of their own, while E's decode waits."""
    requests = [
        A,
        Request("X", 2.0, 36, 1, 1),
        Request("C", 10.0, 36, 1, 1, block_hashes=prefix(0)),
        Request("E", 10.0, 4, 3, 3),
    ]
    for batching in ("continuous", "prefill_first"):
        served, log = logged(
            requests, [tier(100)], num_blocks=12, batching=batching, max_num_batched_tokens=16
        )
        assert told(served, log)[2:] == [
            (10.0, 10.5, 11.5, {"chunks": [("E", 4, 0)], "moves": [("C", 0, 1, "in"), (None, 0, 2, "out")]}),
            (
                11.5,
                12.75,
                13.75,
                {"chunks": [("C", 20, 16)], "moves": [(None, 0, 5, "out")], "finished": ["C"]},
            ),
            (13.75, 14.0, 15.0, {"decodes": 1, "moves": [(None, 0, 1, "out")]}),
            (15.0, 15.0, 16.0, {"decodes": 1, "finished": ["E"]}),
        ]
        assert served.scheduler.num_oversized == 3  # A, X and C


def test_a_static_batch_starts_when_all_of_it_has_come() -> None:
    requests = [
        A,
        Request("X", 2.0, 36, 1, 1),
        Request("C", 10.0, 20, 1, 1, block_hashes=prefix(0)),
        Request("E", 10.0, 4, 1, 1),
    ]
    served, log = logged(requests, [tier(100)], num_blocks=9, batching="static")
    started = [(line[0], line[3].get("chunks")) for line in told(served, log)][2:]
    assert started == [(10.0, None), (12.0, [("E", 4, 0), ("C", 4, 16)])]


def test_a_story_tells_of_the_fetch_and_of_the_stall() -> None:
    story, x = Story(), Request("X", 2.0, 11, 1, 1)
    run_tiered([A, x, C], [tier(100)], num_blocks=5, engine={"observers": [story]})
    assert [(span.kind, span.why, span.start, span.end) for span in story.spans["C"]] == [
        ("fetching", "its blocks came from host", 10.0, 10.75),
        ("held back", "the step waited until blocks were copied out", 10.75, 11.0),
        ("prefill", "tokens 16 to 17, 16 found in the prefix cache, beside 0 decodes", 11.0, 12.0),
    ]


@pytest.mark.parametrize("batching", BATCHING)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_skipping_changes_not_a_bit(batching: str, data: st.DataObject) -> None:
    load = data.draw(tiered_loads(batching, aborts=True))
    outside = data.draw(OUTSIDE)
    skipped = run_tiered(**load, engine=outside)
    ticked = run_tiered(**load, engine={**outside, "skip": False, "check_invariants": True})
    assert_same(skipped, ticked, load["requests"])
    assert lost(skipped, load["block_size"]) == lost(ticked, load["block_size"])
    memories = [run.scheduler.kv.tiers.memories for run in (skipped, ticked) if run.scheduler.kv.tiers]
    assert [list(each.offloaded) for each in memories[0]] == [list(each.offloaded) for each in memories[1]]


@pytest.mark.parametrize("batching", BATCHING)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_request_completes_and_nothing_stays_held(batching: str, data: st.DataObject) -> None:
    load = data.draw(tiered_loads(batching, aborts=False))
    engine = {"async_scheduling": data.draw(st.booleans()), "check_invariants": True}
    served = run_tiered(**load, engine=engine)
    assert set(served.recorder.request_table(load["requests"]).status) == {COMPLETED}
    assert_empty(served)


# From the scenario to the summary.

HOST = {"name": "host", "capacity_gib": 8.0, "bandwidth_gb_s": 25.0}
TIGHT = {"kv.num_gpu_blocks_override": 1200, "workload.num_requests": 120}


def test_a_scenario_names_its_tiers_and_a_run_says_what_they_did() -> None:
    result = simulate("chat-a100", preemption="swap", set=TIGHT | {"kv.tiers": [HOST]}, progress=False)
    own = result.summary["servetwin"]
    assert isinstance(own, dict)
    assert own["tiers"]["host"]["num_blocks"] == 4096  # 8 GiB of blocks of 2 MiB
    assert own["swapped_tokens"] > 0
    assert own["offloaded_tokens"] > 0
    assert own["fetched_tokens"] > 0
    assert own["recomputed_tokens"] == 0
    stalls = own["swap_stall_s"] + own["offload_stall_s"]
    assert result.steps["stall"].sum() == pytest.approx(stalls)
    assert run_scenario(result.scenario).summary["mean_ttft_ms"] == result.summary["mean_ttft_ms"]


def test_a_run_folder_keeps_the_moves(tmp_path: Path) -> None:
    result = simulate("chat-a100", set=TIGHT | {"kv.tiers": [HOST]}, bottleneck=False, progress=False)
    result.save(tmp_path / "run")
    moves = load_run(tmp_path / "run").decisions["moves"].dropna().tolist()
    assert moves == result.decisions["moves"].dropna().tolist()
    assert (None, 0, 1, "out") in [move for line in moves for move in line]


def test_without_tiers_a_log_says_nothing_of_moves() -> None:
    assert "moves" not in simulate("tiny-cpu", progress=False).decisions.columns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheduler.preemption": "swap"}, "scheduler.preemption: swap needs a memory tier to swap to"),
        ({"kv.tiers": [HOST, HOST]}, "kv.tiers: each name must appear once, got 'host' 2 times"),
        ({"kv.tiers": [HOST | {"capacity_gib": 0}]}, "kv.tiers.0.capacity_gib: must be greater than 0"),
        ({"kv.tiers": [HOST | {"capacity_gib": 1e-3}]}, "must hold a KV block of 2,097,152 bytes, got 0.001"),
        ({"kv.tiers": [HOST | {"bandwidth_gb_s": float("inf")}]}, "bandwidth_gb_s: must be a finite number"),
        ({"kv.tiers": [HOST | {"bandwith_gb_s": 1}]}, "unknown key; did you mean bandwidth_gb_s?"),
    ],
)
def test_a_tier_that_makes_no_sense_is_told_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        run_scenario(load_scenario("chat-a100").with_(**changes))
