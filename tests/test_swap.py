"""Swapping preempted sequences: out, back, and on where they were; what it costs against computing again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiered_runs import Line, assert_empty, logged, lost, prefix, run_tiered, tier, tiered_loads, told

from simulator.engine.clients import ClientPlan
from simulator.engine.story import Story
from simulator.kv.block_manager import BlockManager
from simulator.kv.tiers import Tier
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import ABORTED, COMPLETED
from simulator.request import Request
from simulator.schedulers.chunked import Chunked

# Six blocks of 4 tokens, a forward pass takes 1 s, the host moves 4 blocks/s. A and B take three blocks each;
# at 5.0 both need a fourth, and B must go.
PAIR = [Request("A", 0.0, 8, 10, 10), Request("B", 0.0, 8, 10, 10)]
PLAIN: dict[str, Any] = {"num_blocks": 6, "enable_prefix_caching": False}


def rest(lines: list[Line], since: float) -> list[Line]:
    """Return the steps from a moment on in which more happens than one decode."""
    return [line for line in lines if line[0] >= since and line[3] != {"decodes": 1}]


def test_a_victim_goes_out_comes_back_and_goes_on_where_it_was() -> None:
    served, log = logged(PAIR, [tier(100)], preemption="swap", **PLAIN)
    lines = told(served, log)
    assert lines[:5] == [
        (0.0, 0.0, 1.0, {"chunks": [("A", 8, 0), ("B", 8, 0)]}),
        *[(float(t), float(t), t + 1.0, {"decodes": 2}) for t in range(1, 5)],
    ]
    assert lines[5:] == [
        (5.0, 5.75, 6.75, {"decodes": 1, "preempted": ["B"], "moves": [("B", 0, 3, "out")]}),
        *[(t + 0.75, t + 0.75, t + 1.75, {"decodes": 1}) for t in range(6, 9)],
        (9.75, 9.75, 10.75, {"decodes": 1, "finished": ["A"]}),
        (10.75, 10.75, 10.75, {"moves": [("B", 0, 3, "in")]}),
        (11.5, 11.5, 12.5, {"chunks": [("B", 1, 12)]}),
        *[(t + 0.5, t + 0.5, t + 1.5, {"decodes": 1}) for t in range(12, 15)],
        (15.5, 15.5, 16.5, {"decodes": 1, "finished": ["B"]}),
    ]
    assert lost(served) == {
        "swapped_tokens": 12,
        "fetched_tokens": 12,
        "swap_stall_s": 0.75,
        "fetch_wait_s": 0.75,
    }
    assert_empty(served)


def test_the_same_by_recomputation() -> None:
    served, log = logged(PAIR, [], **PLAIN)
    assert rest(told(served, log), 5.0) == [
        (5.0, 5.0, 6.0, {"decodes": 1, "preempted": ["B"]}),
        (9.0, 9.0, 10.0, {"decodes": 1, "finished": ["A"]}),
        (10.0, 10.0, 11.0, {"chunks": [("B", 13, 0)]}),
        (14.0, 14.0, 15.0, {"decodes": 1, "finished": ["B"]}),
    ]
    assert lost(served) == {"recomputed_tokens": 12, "recompute_s": 12 / 13}


def test_what_the_prefix_cache_still_holds_is_not_fetched() -> None:
    """A takes two of the three blocks that B left cached: at 5.0 and, opening one more, at 9.75."""
    served, log = logged(PAIR, [tier(100, offload=False)], num_blocks=6, preemption="swap")
    assert rest(told(served, log), 5.0) == [
        (5.0, 5.75, 6.75, {"decodes": 1, "preempted": ["B"], "moves": [("B", 0, 3, "out")]}),
        (9.75, 9.75, 10.75, {"decodes": 1, "finished": ["A"]}),
        (10.75, 10.75, 10.75, {"moves": [("B", 0, 2, "in")]}),
        (11.25, 11.25, 12.25, {"chunks": [("B", 1, 12)]}),
        (15.25, 15.25, 16.25, {"decodes": 1, "finished": ["B"]}),
    ]


def test_one_whose_blocks_are_all_cached_needs_no_fetch_and_gives_its_room_back() -> None:
    """B finds no block for its ninth token and goes; Z holds copies of both of its blocks."""
    shared = prefix(0, 2)
    requests = [
        Request("Z", 0.0, 9, 3, 3, block_hashes=shared),
        Request("B", 0.0, 8, 2, 2, block_hashes=shared),
    ]
    served, log = logged(requests, [tier(100)], num_blocks=4, preemption="swap")
    assert told(served, log) == [
        (0.0, 0.0, 1.0, {"chunks": [("Z", 9, 0), ("B", 4, 4)]}),
        (1.0, 1.5, 2.5, {"decodes": 1, "preempted": ["B"], "moves": [("B", 0, 2, "out")]}),
        (2.5, 2.5, 3.5, {"decodes": 1, "chunks": [("B", 1, 8)], "finished": ["Z", "B"]}),
    ]
    assert_empty(served)


def test_blocks_that_a_tier_has_already_are_not_copied_again() -> None:
    """B's prompt came from the host, so only what it computed since goes out: one block of three."""
    shared = prefix(0, 2)
    requests = [
        Request("P", 0.0, 9, 1, 1, block_hashes=shared),
        Request("X", 2.0, 24, 1, 1),
        Request("A", 10.0, 8, 10, 10),
        Request("B", 10.0, 9, 10, 10, block_hashes=shared),
    ]
    served, log = logged(requests, [tier(100)], num_blocks=6, preemption="swap")
    swapped = [move for line in log for move in line.get("moves", ()) if move[0] == "B"]
    assert swapped[:2] == [("B", 0, 2, "in"), ("B", 0, 1, "out")]
    assert_empty(served)


def test_a_prompt_cut_off_between_chunks_goes_on_where_it_was() -> None:
    """B has 16 of its 20 tokens when A, admitted first, needs a block, and computes the last 4 at the end."""
    served, log = logged(
        [Request("A", 0.0, 6, 8, 8), Request("B", 0.0, 20, 1, 1)],
        [tier(100)],
        preemption="swap",
        max_num_batched_tokens=8,
        scheduler_reserve_full_isl=False,
        **PLAIN,
    )
    assert rest(told(served, log), 0.0) == [
        (0.0, 0.0, 1.0, {"chunks": [("A", 6, 0), ("B", 2, 0)]}),
        (1.0, 1.0, 2.0, {"decodes": 1, "chunks": [("B", 7, 2)]}),
        (2.0, 2.0, 3.0, {"decodes": 1, "chunks": [("B", 7, 9)]}),
        (3.0, 4.0, 5.0, {"decodes": 1, "preempted": ["B"], "moves": [("B", 0, 4, "out")]}),
        (8.0, 8.0, 9.0, {"decodes": 1, "finished": ["A"]}),
        (9.0, 9.0, 9.0, {"moves": [("B", 0, 4, "in")]}),
        (10.0, 10.0, 11.0, {"chunks": [("B", 4, 16)], "finished": ["B"]}),
    ]


@pytest.mark.parametrize(
    ("tiers", "goes_to"),
    [
        ([tier(3)], 0),
        ([tier(2)], None),
        ([tier(2), tier(3, name="nvme")], 1),
        ([tier(2), tier(2, name="nvme")], None),
    ],
)
def test_a_victim_goes_to_the_first_tier_with_room_or_is_computed_again(
    tiers: list[Tier], goes_to: int | None
) -> None:
    served, log = logged(PAIR, tiers, preemption="swap", **PLAIN)
    moves = [move for line in log for move in line.get("moves", ())]
    both = [("B", goes_to, 3, "out"), ("B", goes_to, 3, "in")]
    assert moves == ([] if goes_to is None else both)
    assert lost(served).get("recomputed_tokens", 0) == (12 if goes_to is None else 0)


@pytest.mark.parametrize(("blocks_per_s", "swaps"), [(8.0, True), (4.0, False)])
def test_auto_takes_what_is_quicker(blocks_per_s: float, swaps: bool) -> None:
    """Computing 12 tokens again is one pass of 1 s; 3 blocks out and in take 6 / 8 s, or 6 / 4 s."""
    served, _ = logged(PAIR, [tier(100, blocks_per_s)], preemption="auto", **PLAIN)
    assert ("swapped_tokens" in lost(served)) == swaps
    assert ("recomputed_tokens" in lost(served)) != swaps


def test_auto_prices_recomputation_in_chunks_of_the_budget() -> None:
    """With 5 tokens a pass, 12 tokens take three passes, and the slow link is the quicker way."""
    tight = {"max_num_seqs": 2, "max_num_batched_tokens": 5}
    served, _ = logged(PAIR, [tier(100, 4.0)], preemption="auto", **PLAIN, **tight)
    assert lost(served)["swapped_tokens"] == 12


def test_a_scheduler_without_tiers_cannot_swap() -> None:
    with pytest.raises(ValueError, match="preemption 'swap' needs a memory tier"):
        Chunked(BlockManager(4), preemption="swap")


def test_a_story_tells_of_the_way_out_and_back() -> None:
    story = Story()
    run_tiered(PAIR, [tier(100)], preemption="swap", engine={"observers": [story]}, **PLAIN)
    told = [(span.kind, span.start, span.end) for span in story.spans["B"]]
    assert told == [
        ("prefill", 0.0, 1.0),
        ("decode", 1.0, 5.0),
        ("preempted", 5.0, 6.75),
        ("preempted", 6.75, 10.75),
        ("fetching", 10.75, 11.5),
        ("prefill", 11.5, 12.5),
        ("decode", 12.5, 16.5),
    ]
    assert story.spans["B"][2].why == "lost its blocks to A, they were copied to host"


# KV-10: an abort in any state frees everything at the next step boundary, on the GPU and in the tiers.

STATES = {
    "waiting": (2.5, "C"),
    "between chunks": (1.5, "D"),
    "decoding": (3.5, "B"),
    "swapped out": (7.0, "B"),
    "being fetched": (11.0, "B"),
}


class Watch:
    """An observer of what B, C or D is at each decision, and what is held then."""

    def __init__(self) -> None:
        self.states: list[tuple[float, dict[str, str]]] = []

    def decided(self, batch: Any, scheduler: Any, now: float) -> None:
        sequences = [*scheduler.running, *scheduler.fetching, *scheduler.waiting]
        self.states.append((now, {seq.id: seq.state + " swapped" * bool(seq.swapped) for seq in sequences}))
        used = sum(scheduler.kv.blocks_for(seq.num_computed) for seq in sequences)
        assert scheduler.kv.num_used == used

    def finished(self, sequences: Any, now: float) -> None:
        pass


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("state", STATES)
def test_kv_10_an_abort_frees_blocks_and_room_at_the_step_boundary(state: str, mode: str) -> None:
    when, id = STATES[state]
    others = {"C": [Request("C", 1.0, 20, 2, 2)], "D": [Request("D", 0.0, 40, 2, 2)], "B": []}[id]
    requests = PAIR + others if id != "D" else others
    limits = (
        {"max_num_seqs": 4, "max_num_batched_tokens": 16} | PLAIN | ({"num_blocks": 20} if id == "D" else {})
    )
    after = [when - request.arrival if request.id == id else np.nan for request in requests]
    watch = Watch()
    engine = {"plan": ClientPlan(cancel_after=np.array(after)), "observers": [watch]}
    served, _ = logged(requests, [tier(100)], preemption=mode, engine=engine, **limits)
    before = [states[id] for t, states in watch.states if t <= when and id in states][-1]
    expected = {"waiting": "waiting", "between chunks": "running", "decoding": "running"}
    expected |= {"swapped out": "waiting swapped", "being fetched": "fetching swapped"}
    if mode == "swap" or state not in ("swapped out", "being fetched"):
        assert before == expected[state]
    assert not any(id in states for t, states in watch.states if t >= when + 1.0)
    table = served.recorder.request_table(requests)
    assert dict(zip(table.id, table.status.tolist(), strict=True)) == {
        request.id: ABORTED if request.id == id else COMPLETED for request in requests
    }
    assert_empty(served)
    tiers = served.scheduler.kv.tiers
    assert tiers is not None
    assert tiers.memories[0].num_used == 0


@pytest.mark.parametrize("batching", ["chunked", "continuous", "prefill_first"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_recomputed_tokens_are_all_that_was_computed_beyond_what_was_needed(
    batching: str, data: st.DataObject
) -> None:
    """Without a prefix cache every token is needed once, but the last one sampled."""
    load = data.draw(tiered_loads(batching, aborts=False)) | {"enable_prefix_caching": False}
    served = run_tiered(**load)
    table = served.recorder.request_table(load["requests"])
    steps = served.recorder.step_table()
    needed = int((table.num_prompt + table.num_output - 1).sum())
    assert lost(served).get("recomputed_tokens", 0) == int(steps.num_tokens.sum()) - needed


def test_tokens_lost_again_and_again_count_each_time_they_are_computed() -> None:
    """B reaches 16 tokens, then four times 7 (of a step's 8), and at last has A's blocks: 28 + 16."""
    served, _ = logged(
        [Request("A", 0.0, 6, 16, 16), Request("B", 0.0, 20, 1, 1)],
        [],
        max_num_batched_tokens=8,
        scheduler_reserve_full_isl=False,
        **PLAIN,
    )
    assert served.recorder.num_preemptions.tolist() == [0, 5]
    assert lost(served) == {"recomputed_tokens": 44, "recompute_s": 4 * 7 / 8 + 2}


def test_the_stall_of_a_step_is_no_recomputation() -> None:
    """The host keeps one of B's blocks, the GPU another; 4 of the 5 tokens at 11.25 are computed again."""
    served, log = logged(PAIR, [tier(1)], num_blocks=6)
    assert rest(told(served, log), 10.0)[:2] == [
        (10.5, 10.5, 10.5, {"moves": [("B", 0, 1, "in")]}),
        (10.75, 11.25, 12.25, {"chunks": [("B", 5, 8)], "moves": [(None, 0, 2, "out")]}),
    ]
    assert lost(served)["recomputed_tokens"] == 4
    assert lost(served)["recompute_s"] == 0.8


def test_repeated_chunks_of_a_recomputation_are_all_counted() -> None:
    """B loses 388 tokens when A grows, and computes them again in chunks that skipping takes at once.

    Late arrivals, for which there is no room, break the span of equal steps.
    """
    requests = [Request("A", 0.0, 4, 200, 200), Request("B", 0.0, 300, 150, 150)]
    requests += [Request(f"C{i}", 58.0 + 0.9 * i, 200, 1, 1) for i in range(20)]
    runs = [
        run_tiered(
            requests,
            [],
            num_blocks=120,
            enable_prefix_caching=False,
            latency=LinearModel(constant=0.25, per_token=0.01),
            max_num_batched_tokens=16,
            engine={"skip": skip},
        )
        for skip in (True, False)
    ]
    assert lost(runs[0]) == lost(runs[1])
    steps = runs[0].recorder.step_table()
    assert lost(runs[0])["recomputed_tokens"] == int(steps.num_tokens.sum()) - (203 + 449 + 4000) > 300
    assert runs[0].recorder.num_skipped > 0
