"""Who is served first under each order, and what an order may look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from simulator.engine.serve import serve
from simulator.errors import ConfigError, SimulatorError
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.request import Request, Sequence
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.context import Context
from simulator.schedulers.orders import AGEING, ORDERS, Order
from simulator.schedulers.queue import WaitingQueue

CLOCK = LinearModel(0.25)


def completions(requests: list[Request], order: Order, **settings: Any) -> list[str]:
    """Serve one request at a time; return the ids in the order in which they end."""
    scheduler = Chunked(BlockManager(200, 16), order=order, **{"max_num_seqs": 1} | settings)
    table = serve(requests, scheduler, CLOCK, check_invariants=True).recorder.request_table(requests)
    return [table.id[i] for i in sorted(range(len(requests)), key=lambda i: (table.finish[i], i))]


def three(**of: Mapping[str, Any]) -> list[Request]:
    """A request that keeps the server busy until 1.25 s, and three that come meanwhile: a, b, c."""
    rows = [Request("first", 0.0, 16, 5, 16)]
    for i, (id, changes) in enumerate(of.items()):
        rows.append(
            Request(
                **{"id": id, "arrival": 0.25 * (i + 1), "num_prompt": 16, "num_output": 4, "max_tokens": 16}
                | dict(changes)
            )
        )
    return rows


def test_fcfs_and_lifo_serve_by_arrival() -> None:
    requests = three(a={}, b={}, c={})
    assert completions(requests, ORDERS["fcfs"]) == ["first", "a", "b", "c"]
    assert completions(requests, ORDERS["lifo"]) == ["first", "c", "b", "a"]


def test_sjf_serves_the_shortest_prompt() -> None:
    requests = three(a={"num_prompt": 48}, b={"num_prompt": 16}, c={"num_prompt": 32})
    assert completions(requests, ORDERS["sjf_prompt"]) == ["first", "b", "c", "a"]


def test_srpt_sees_the_truth_and_a_prediction_does_not() -> None:
    requests = three(a={"num_output": 9}, b={"num_output": 2}, c={"num_output": 5, "max_tokens": 8})
    assert completions(requests, ORDERS["srpt_oracle"]) == ["first", "b", "c", "a"]
    assert completions(requests, ORDERS["sjf_predicted"]) == ["first", "c", "a", "b"], "by max_tokens alone"


def test_ten_seconds_of_waiting_count_as_a_level_of_priority() -> None:
    late = AGEING + 1.0
    requests = [
        Request("busy", 0.0, 16, int(4 * late) + 8, 100),
        Request("old", 0.5, 16, 2, 4, priority=1),
        Request("new", late, 16, 2, 4, priority=0),
    ]
    assert completions(requests, ORDERS["priority"]) == ["busy", "new", "old"]
    assert completions(requests, ORDERS["aged_priority"]) == ["busy", "old", "new"]


def test_longest_prefix_goes_where_the_cache_is_warm() -> None:
    requests = [
        Request("first", 0.0, 65, 5, 16, block_hashes=((0, 4),)),
        Request("cold", 0.25, 65, 4, 16, block_hashes=((100, 104),)),
        Request("warm", 0.5, 65, 4, 16, block_hashes=((0, 4),)),
    ]
    assert completions(requests, ORDERS["longest_prefix"]) == ["first", "warm", "cold"]


def test_only_an_order_that_looks_at_ctx_is_asked_again() -> None:
    asked: list[str] = []

    def alone(seq: Sequence, ctx: Context) -> float:
        asked.append(seq.id)
        return seq.num_prompt

    def by_time(seq: Sequence, ctx: Context) -> float:
        asked.append(seq.id)
        return -(ctx.now - seq.arrival)

    requests = three(a={}, b={}, c={})
    completions(requests, alone)
    assert sorted(asked) == ["a", "b", "c", "first"]
    asked.clear()
    completions(requests, by_time)
    assert [asked.count(id) for id in ("a", "b", "c")] == [1, 2, 3]


def test_a_key_of_the_time_is_what_it_is_now() -> None:
    """`hot` overtakes at 1 s: an order whose keys were fixed at arrival would serve `cold` first."""

    def turns(seq: Sequence, ctx: Context) -> int:
        return int((seq.id == "cold") == (ctx.now >= 1.0))

    requests = three(cold={}, hot={})
    assert completions(requests, turns) == ["first", "hot", "cold"]


def test_the_truth_is_for_those_who_say_so() -> None:
    def sly(seq: Sequence, ctx: Context) -> int:
        return ctx.oracle_remaining(seq)

    with pytest.raises(SimulatorError, match="_oracle"):
        completions(three(a={}), sly)


@pytest.mark.parametrize("key", [float("nan"), None, "a"])
def test_keys_without_an_order_are_named(key: object) -> None:
    def mixed(seq: Sequence, ctx: Context) -> object:
        return key if seq.id == "b" else 1.0

    def mixed_in_time(seq: Sequence, ctx: Context) -> object:
        return key if seq.id == "b" else ctx.now

    for order in (mixed, mixed_in_time):
        with pytest.raises(ConfigError, match=rf"scheduler.order: {order.__name__} .*'b'"):
            completions(three(a={}, b={}, c={}), order)


def test_the_queue_keeps_its_order_when_the_keys_begin_to_depend_on_ctx() -> None:
    def late(seq: Sequence, ctx: Context) -> float:
        return seq.num_prompt if seq.id != "z" else ctx.free_blocks * 0.0 - 1.0

    scheduler = Chunked(BlockManager(10), order=late)
    queue = WaitingQueue(late, scheduler.ctx)
    sequences = [Sequence(id, n, 1) for id, n in (("a", 3), ("b", 1), ("c", 2), ("z", 9), ("d", 1))]
    for seq in sequences[:3]:
        queue.push(seq)
    assert not queue.is_asked
    assert [seq.id for seq in queue] == ["b", "c", "a"]
    queue.remove(sequences[2])
    for seq in sequences[3:]:
        queue.push(seq)
    assert queue.is_asked
    assert [seq.id for seq in queue] == ["z", "b", "d", "a"]
    assert [queue.pop().id for _ in range(4)] == ["z", "b", "d", "a"]
    assert queue.head() is None
    assert len(queue) == 0
