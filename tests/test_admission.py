"""Admission rules: who waits, who is turned away, and when they are asked."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import loads
from hypothesis import given
from hypothesis import strategies as st

from simulator.config.admission import build_rules
from simulator.engine.serve import Served, serve
from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import COMPLETED, REJECTED
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING
from simulator.schedulers.admission import (
    ADMISSIONS,
    ADMIT,
    WAIT,
    QueueLimit,
    TokenBucket,
    reserve_output,
    shed_late,
)
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.context import Context

CLOCK = LinearModel(0.25)


def run(requests: list[Request], *rules: Any, **settings: Any) -> Served:
    blocks = settings.pop("num_blocks", 100)
    scheduler = Chunked(BlockManager(blocks, 16), admission=rules, **settings)
    return serve(requests, scheduler, CLOCK, check_invariants=True)


def burst(n: int) -> list[Request]:
    return [Request(f"r{i}", 0.0, 16, 4, 4) for i in range(n)]


def test_a_full_queue_turns_arrivals_away() -> None:
    recorder = run(burst(5), QueueLimit(2), max_num_seqs=1).recorder
    assert list(recorder.status) == [COMPLETED, COMPLETED, REJECTED, REJECTED, REJECTED]
    assert recorder.reason == dict.fromkeys((2, 3, 4), "shed by QueueLimit")


def test_a_token_bucket_fills_with_time_and_weight() -> None:
    """20 tokens a request, a bucket of 40 and 20 a second: two at once, one a second later, not two."""
    rows = [(0.0, "a"), (0.0, "a"), (0.0, "a"), (1.0, "a"), (1.0, "a"), (1.0, "b")]
    requests = [Request(f"r{i}", t, 16, 4, 4, tenant=tenant) for i, (t, tenant) in enumerate(rows)]
    recorder = run(requests, TokenBucket(tokens_per_s=20, burst=40)).recorder
    assert [status == COMPLETED for status in recorder.status] == [True, True, False, True, False, True]
    recorder = run(requests, TokenBucket(tokens_per_s=20, burst=40), weights={"a": 2.0}).recorder
    assert [status == COMPLETED for status in recorder.status] == [True] * 6


def test_who_cannot_make_its_deadline_is_shed_from_the_queue() -> None:
    scheduler = Chunked(BlockManager(100, 16), admission=[shed_late], max_num_seqs=1, latency=CLOCK)
    for i, deadline in enumerate([None, 5.0, 0.3, 9.0]):
        scheduler.add(Sequence(f"r{i}", 16, 2, deadline=deadline), 0.0)
    assert scheduler.shed == []
    scheduler.schedule(0.0)
    scheduler.remove(next(iter(scheduler.running)))
    scheduler.schedule(4.8)
    assert [(seq.id, rule) for seq, rule in scheduler.shed] == [("r1", "shed_late"), ("r2", "shed_late")]
    assert [seq.id for seq in scheduler.running] == ["r3"]


def test_the_head_that_waits_blocks_those_behind_it() -> None:
    def not_yet(seq: Sequence, ctx: Context) -> str:
        return WAIT if seq.id == "r1" and ctx.now < 2.0 else ADMIT

    requests = [Request(f"r{i}", 0.1 * i, 16, 16, 16) for i in range(3)]
    served = run(requests, not_yet)
    table = served.recorder.request_table(requests)
    assert table.scheduled.tolist() == [0.0, 2.0, 2.0]


def test_rules_are_asked_in_their_order_and_not_again_after_a_preemption() -> None:
    asked: list[tuple[str, str, bool]] = []

    def one(seq: Sequence, ctx: Context) -> str:
        asked.append(("one", seq.id, ctx.arriving))
        return ADMIT

    def two(seq: Sequence, ctx: Context) -> str:
        asked.append(("two", seq.id, ctx.arriving))
        return ADMIT

    served = run([Request(f"r{i}", 0.0, 64, 64, 64) for i in range(2)], one, two, num_blocks=10)
    assert served.recorder.num_preemptions[1] == 1
    both = [(name, f"r{i}", True) for i in range(2) for name in ("one", "two")]
    assert asked == both + [(name, f"r{i}", False) for i in range(2) for name in ("one", "two")]


def test_a_verdict_that_is_none_is_named() -> None:
    def forgets(seq: Sequence, ctx: Context) -> None:
        return None

    with pytest.raises(ConfigError, match=r"scheduler.admission: forgets returned None"):
        run(burst(1), forgets)


@pytest.mark.parametrize("batching", BATCHING)
@given(data=st.data())
def test_who_reserves_the_output_is_never_preempted(batching: str, data: st.DataObject) -> None:
    drawn = data.draw(loads(batching))
    requests = drawn["requests"]
    kv = BlockManager(drawn["num_blocks"], drawn["block_size"])
    scheduler = BATCHING[batching](
        kv,
        admission=[reserve_output],
        max_num_seqs=drawn["max_num_seqs"],
        max_num_batched_tokens=drawn["max_num_batched_tokens"],
        max_model_len=drawn["max_model_len"],
    )
    served = serve(requests, scheduler, drawn["latency"], check_invariants=True)
    assert sum(served.recorder.num_preemptions) == 0
    assert served.recorder.num_done == len(requests)


def test_skipping_and_rules_agree() -> None:
    requests = [Request(f"r{i}", 0.3 * i, 40, 30, 30) for i in range(30)]
    rules = [QueueLimit(6), TokenBucket(200, 400), reserve_output]
    found = []
    for skip in (True, False):
        scheduler = Chunked(BlockManager(12, 16), admission=rules)
        recorder = serve(requests, scheduler, CLOCK, skip=skip).recorder
        found.append((list(recorder.status), list(recorder.finished_at), recorder.reason))
    assert found[0] == found[1]
    assert len(set(found[0][0])) == 2


def find(name: str) -> Any:
    return ADMISSIONS[name]


def test_rules_are_built_from_names_arguments_and_objects() -> None:
    rules = build_rules(
        ["reserve_output", {"queue_limit": 3}, {"token_bucket": {"tokens_per_s": 1, "burst": 2}}, shed_late],
        find,
    )
    assert rules[0] is reserve_output
    assert rules[1].limit == 3
    assert (rules[2].tokens_per_s, rules[2].burst) == (1, 2)
    assert rules[3] is shed_late


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"queue_limit": 0}, "whole number >= 1, got 0"),
        ({"queue_limit": True}, "whole number >= 1, got True"),
        ("queue_limit", r"needs \{limit\}"),
        ({"queue_limit": {"limits": 3}}, "did you mean limit"),
        ({"token_bucket": 5}, r"needs \{tokens_per_s, burst\}"),
        ({"token_bucket": {"tokens_per_s": float("nan"), "burst": 1}}, "> 0 and finite"),
        ({"reserve_output": 3}, "takes no arguments"),
        ({"queue_limit": 3, "token_bucket": 4}, "an entry is a name"),
    ],
)
def test_entries_that_cannot_be_built_are_named(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"scheduler.admission: .*{message}"):
        build_rules([entry], find)
