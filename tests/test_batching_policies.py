"""Static, continuous and prefill-first batching: worked by hand, and every policy on random loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_runs import Observed, loads, observe
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.batch import Batch
from simulator.cli.run import outcome
from simulator.config.build import Policies, build_machine
from simulator.config.build_scheduler import build_scheduler
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.engine.clients import OPEN_LOOP
from simulator.errors import ConfigError
from simulator.experiments.judge import judge
from simulator.experiments.report_summary import warnings
from simulator.latency.linear import LinearModel
from simulator.metrics.summary import counts
from simulator.metrics.tables import COMPLETED, UNFINISHED
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING, COLLECT_PRESETS, Scheduler
from simulator.schedulers.preemption import first_admitted

SECOND = LinearModel(constant=1.0)  # every step takes a second
WHOLE = sorted(set(BATCHING) - {"chunked"})  # policies that never cut a prompt


def request(id: str, prompt: int, output: int, arrival: float = 0.0, **facts: Any) -> Request:
    return Request(id, arrival, prompt, output, facts.pop("max_tokens", output), **facts)


def run(batching: str, *requests: Request, **changes: Any) -> Observed:
    defaults = {"latency": SECOND, "num_blocks": 100, "block_size": 4, "enable_prefix_caching": False}
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    return observe(list(requests), batching=batching, **defaults | limits | changes)


def steps(observed: Observed) -> list[tuple[float, int, str]]:
    """Return (time, decodes with padding, prompts as "A4 B6") of every step."""
    return [
        (d["t"], d["decodes"], " ".join(f"{id}{n}" for id, n, _ in d["chunks"])) for d in observed.log.lines
    ]


def oversized(observed: Observed) -> int:
    return observed.served.scheduler.num_oversized


# Static.


def test_a_static_batch_runs_to_its_slowest_member_and_keeps_what_ended_as_padding() -> None:
    """A ends at 2 s; its row and its two blocks stay until B ends at 5 s; C, there since 1.5 s, is next."""
    observed = run("static", request("A", 4, 2), request("B", 4, 5), request("C", 4, 1, 1.5))
    assert steps(observed) == [(0, 0, "A4 B4"), (1, 2, ""), (2, 2, ""), (3, 2, ""), (4, 2, ""), (5, 0, "C4")]
    assert [d["free_blocks"] for d in observed.log.lines] == [98, 96, 96, 96, 96, 99]
    assert [d["finished"] for d in observed.log.lines] == [[], ["A"], [], [], ["B"], ["C"]]
    table = observed.served.recorder.step_table()
    assert table.decode_kv.tolist() == [
        0,
        5 + 5,
        6 + 6,
        7 + 6,
        8 + 6,
        0,
    ]  # padding reads A's five rows and its own
    assert table.decode_kv_max.tolist() == [0, 5, 6, 7, 8, 0]
    assert table.num_seqs.tolist() == [2, 2, 2, 2, 2, 1]
    assert table.num_running.tolist() == [2, 2, 1, 1, 1, 1]
    assert observed.table.finish.tolist() == [2, 5, 6]
    assert observed.kv.num_used == 0


def test_padding_is_no_output() -> None:
    observed = run("static", request("A", 4, 2), request("B", 4, 5))
    assert observed.served.recorder.step_table().num_sampled.tolist() == [2, 2, 1, 1, 1]


def test_a_row_that_ends_with_its_prompt_is_padding_too() -> None:
    observed = run("static", request("A", 4, 1), request("B", 4, 3))
    assert steps(observed) == [(0, 0, "A4 B4"), (1, 2, ""), (2, 2, "")]
    assert observed.table.finish.tolist() == [1, 3]


def test_nothing_decodes_until_all_prompts_of_a_static_batch_are_done() -> None:
    observed = run("static", request("A", 6, 2), request("B", 6, 2), max_num_batched_tokens=8)
    assert steps(observed) == [(0, 0, "A6"), (1, 0, "B6"), (2, 2, "")]
    assert observed.table.first_token.tolist() == [1, 2]
    assert observed.table.finish.tolist() == [3, 3]


def test_static_starts_when_enough_wait() -> None:
    observed = run("static", request("A", 4, 1), request("B", 4, 1, 3.0), min_batch=2, max_wait=10.0)
    assert steps(observed) == [(3, 0, "A4 B4")]


def test_static_starts_when_the_oldest_has_waited_long_enough() -> None:
    """B comes along at 2.5 s; C, which came a moment later, waits from then on, and then for its own time."""
    late = [request("B", 4, 1, 1.0), request("C", 4, 1, 2.75)]
    observed = run("static", request("A", 4, 1), *late, min_batch=3, max_wait=2.5)
    assert steps(observed) == [(2.5, 0, "A4 B4"), (5.25, 0, "C4")]


def test_static_waits_for_no_more_than_it_can_seat() -> None:
    four = [request(id, 4, 2) for id in "ABCD"]
    observed = run("static", *four, min_batch=16, max_wait=99.0, max_num_seqs=2)
    assert steps(observed) == [(0, 0, "A4 B4"), (1, 2, ""), (2, 0, "C4 D4"), (3, 2, "")]


def test_static_takes_those_whose_prompt_and_max_tokens_fit() -> None:
    """Each may come to need 12 tokens, 3 of 6 blocks, though its answer is short."""
    observed = run("static", *[request(id, 4, 2, max_tokens=8) for id in "ABC"], num_blocks=6)
    assert steps(observed) == [(0, 0, "A4 B4"), (1, 2, ""), (2, 0, "C4"), (3, 1, "")]


def test_one_whose_max_tokens_exceed_the_memory_runs_alone() -> None:
    observed = run("static", request("A", 4, 2, max_tokens=99), request("B", 4, 2), num_blocks=6)
    assert steps(observed) == [(0, 0, "A4"), (1, 1, ""), (2, 0, "B4"), (3, 1, "")]


def test_static_never_preempts_save_what_runs_alone_past_its_end() -> None:
    """Async: the row that shows that A has ended would need a block that is not there."""
    lone = request("A", 4, 5, max_tokens=99)
    observed = run("static", lone, request("B", 4, 1), num_blocks=2, async_scheduling=True)
    assert observed.table.status.tolist() == [COMPLETED] * 2
    assert observed.table.finish.tolist() == [5, 6]
    assert observed.table.num_preemptions.tolist() == [1, 0]


def test_a_client_that_leaves_takes_its_row_out_of_the_static_batch() -> None:
    observed = run("static", request("A", 4, 9, timeout=1.5), request("B", 4, 4))
    assert steps(observed) == [(0, 0, "A4 B4"), (1, 2, ""), (2, 1, ""), (3, 1, "")]
    assert [d["free_blocks"] for d in observed.log.lines] == [98, 96, 98, 98]


def test_one_that_ended_keeps_its_row_though_its_client_hangs_up() -> None:
    observed = run("static", request("A", 4, 2, timeout=2.5), request("B", 4, 4))
    assert observed.table.reason == ["stop", "stop"]
    assert steps(observed)[-1] == (3, 2, "")


def test_a_static_batch_finds_what_the_one_before_computed() -> None:
    twins = [request(id, 8, 1, block_hashes=((0, 2),)) for id in "AB"]
    later = request("C", 12, 1, 0.5, block_hashes=((0, 3),))
    observed = run("static", *twins, later, enable_prefix_caching=True)
    assert [d["chunks"] for d in observed.log.lines] == [[("A", 8, 0), ("B", 8, 0)], [("C", 4, 8)]]
    assert observed.table.num_cached.tolist() == [0, 0, 8]


def built(**keys: Any) -> Scheduler:
    scenario = load_scenario("tiny-cpu").with_(**{f"scheduler.{key}": value for key, value in keys.items()})
    return build_scheduler(scenario, build_machine(scenario), Policies())


@pytest.mark.parametrize("name", COLLECT_PRESETS)
def test_a_collect_rule_may_be_named(name: str) -> None:
    min_batch, max_wait_ms = {"realtime": (4, 50), "offline": (16, 200)}[name]
    scheduler = built(batching="static", min_batch=name)
    assert (scheduler.min_batch, scheduler.max_wait) == (min_batch, max_wait_ms / 1e3)


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
@pytest.mark.parametrize("rule", [{"min_batch": 4}, {"max_wait_ms": 5}, {"min_batch": "realtime"}])
def test_a_collect_rule_that_nobody_heeds_is_refused(batching: str, rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^scheduler.min_batch, max_wait_ms: .* never waits"):
        built(batching=batching, **rule)


# Continuous.


def test_continuous_computes_whole_prompts_beside_the_decodes() -> None:
    """Of 8 tokens, A's decode and B's 6 leave one: C's 3 are not cut but come a step later."""
    observed = run(
        "continuous",
        request("A", 4, 4),
        request("B", 6, 2, 0.5),
        request("C", 3, 1, 0.5),
        max_num_batched_tokens=8,
    )
    assert steps(observed) == [(0, 0, "A4"), (1, 1, "B6"), (2, 2, "C3"), (3, 1, "")]
    assert observed.table.finish.tolist() == [4, 3, 3]


def test_a_prompt_that_fits_the_budget_but_not_beside_the_decodes_goes_before_them() -> None:
    """Two decodes leave 6 of 8 tokens: B's 7 go without them, and C's 1 fills up."""
    observed = run(
        "continuous",
        request("A", 3, 3),
        request("D", 3, 3),
        request("B", 7, 1, 0.5),
        request("C", 1, 1, 0.5),
        max_num_batched_tokens=8,
    )
    assert steps(observed) == [(0, 0, "A3 D3"), (1, 0, "B7 C1"), (2, 2, ""), (3, 2, "")]
    assert oversized(observed) == 0


def test_continuous_runs_an_oversized_prompt_alone() -> None:
    observed = run(
        "continuous",
        request("A", 4, 4),
        request("B", 20, 2, 0.5),
        request("C", 4, 2, 0.5),
        max_num_batched_tokens=8,
    )
    assert steps(observed) == [(0, 0, "A4"), (1, 0, "B20"), (2, 2, "C4"), (3, 2, ""), (4, 1, "")]
    assert observed.observer.tokens["A"] == [1, 3, 4, 5]
    assert oversized(observed) == 1


def test_an_oversized_prompt_waits_for_its_blocks_and_others_behind_it() -> None:
    observed = run(
        "continuous",
        request("A", 8, 3),
        request("B", 20, 1, 0.5),
        request("C", 4, 1, 0.5),
        max_num_batched_tokens=8,
        num_blocks=6,
    )
    assert steps(observed) == [(0, 0, "A8"), (1, 1, ""), (2, 1, ""), (3, 0, "B20"), (4, 0, "C4")]


def test_a_prompt_mostly_cached_is_not_oversized() -> None:
    old, new = (
        request(id, n, 1, at, block_hashes=((0, n // 4),)) for id, n, at in (("A", 16, 0), ("B", 20, 1.5))
    )
    observed = run("continuous", old, new, enable_prefix_caching=True, max_num_batched_tokens=8)
    assert steps(observed) == [(0, 0, "A16"), (1.5, 0, "B4")]
    assert oversized(observed) == 1


def test_continuous_collects_while_others_run_and_never_idles() -> None:
    """A starts at once. B waits for C, there at 2.25 s; D for its 3 s; E for nobody: the GPU is idle."""
    observed = run(
        "continuous",
        request("A", 4, 9),
        request("B", 4, 1, 0.5),
        request("C", 4, 1, 2.25),
        request("D", 4, 1, 4.5),
        request("E", 4, 1, 20.0),
        min_batch=2,
        max_wait=3.0,
    )
    assert steps(observed) == [
        (0, 0, "A4"),
        (1, 1, ""),
        (2, 1, ""),
        (3, 1, "B4 C4"),
        *[(t, 1, "") for t in (4, 5, 6, 7)],
        (8, 1, "D4"),
        (20, 0, "E4"),
    ]


def test_the_collect_rule_holds_for_an_oversized_prompt_too() -> None:
    observed = run(
        "continuous",
        request("A", 4, 4),
        request("B", 20, 1, 0.5),
        max_num_batched_tokens=8,
        min_batch=2,
        max_wait=2.0,
    )
    assert steps(observed) == [(0, 0, "A4"), (1, 1, ""), (2, 1, ""), (3, 0, "B20"), (4, 1, "")]


def test_what_was_preempted_is_not_collected_again() -> None:
    """B loses its blocks at 2 s, when A opens its second, and gets them back when A has ended at 3 s."""
    observed = run(
        "continuous",
        request("A", 3, 3),
        request("C", 1, 6),
        request("B", 4, 3),
        num_blocks=4,
        min_batch=9,
        max_wait=99.0,
    )
    assert steps(observed) == [
        (0, 0, "A3 C1 B4"),
        (1, 3, ""),
        (2, 2, ""),
        (3, 1, "B6"),
        (4, 1, ""),
        (5, 1, ""),
    ]


# Prefill first.


def test_prefill_first_lets_decodes_stand_still_while_prompts_can_start() -> None:
    observed = run(
        "prefill_first", request("A", 4, 3), request("B", 4, 2, 0.5), request("C", 4, 1, 1.5), max_num_seqs=3
    )
    assert steps(observed) == [(0, 0, "A4"), (1, 0, "B4"), (2, 0, "C4"), (3, 2, ""), (4, 1, "")]
    assert observed.observer.tokens == {"A": [1, 4, 5], "B": [2, 4], "C": [3]}


def test_prefill_first_decodes_when_no_prompt_can_start() -> None:
    """Two seats: C waits for B's; then A stands still for it."""
    observed = run(
        "prefill_first", request("A", 4, 4), request("B", 4, 2), request("C", 4, 1), max_num_seqs=2
    )
    assert steps(observed) == [(0, 0, "A4 B4"), (1, 2, ""), (2, 0, "C4"), (3, 1, ""), (4, 1, "")]


def test_prefill_first_runs_an_oversized_prompt_alone() -> None:
    observed = run(
        "prefill_first",
        request("A", 4, 2),
        request("B", 20, 1, 0.5),
        request("C", 4, 1, 0.5),
        max_num_batched_tokens=8,
    )
    assert steps(observed) == [(0, 0, "A4"), (1, 0, "B20"), (2, 0, "C4"), (3, 1, "")]
    assert oversized(observed) == 1


# What they share.


@pytest.mark.parametrize("batching", WHOLE)
def test_sc_03_without_chunking_a_prompt_larger_than_the_budget_runs_alone(batching: str) -> None:
    observed = run(
        batching, request("A", 600, 2), request("B", 100, 1), block_size=16, max_num_batched_tokens=512
    )
    assert steps(observed)[:2] == [(0, 0, "A600"), (1, int(batching == "continuous"), "B100")]
    assert oversized(observed) == 1
    assert observed.table.first_token.tolist() == [1, 2]


@pytest.mark.parametrize("batching", WHOLE)
def test_sc_07_without_chunking_a_waiting_request_holds_nothing(batching: str) -> None:
    two = [request(id, 32, 1) for id in "AB"]
    observed = run(batching, *two, num_blocks=10, block_size=16, max_num_batched_tokens=32)
    assert steps(observed) == [(0, 0, "A32"), (1, 0, "B32")]
    assert observed.log.lines[0]["free_blocks"] == 8


def test_an_oversized_prompt_is_counted_once_though_it_is_computed_again() -> None:
    """B, admitted last, loses its 5 blocks when A needs a third, and is computed anew."""
    observed = run(
        "continuous", request("A", 8, 4), request("B", 18, 3), num_blocks=7, max_num_batched_tokens=9
    )
    assert observed.table.num_preemptions.tolist() == [0, 1]
    assert oversized(observed) == 1


@pytest.mark.parametrize("batching", BATCHING)
def test_a_run_says_how_many_prompts_were_oversized(batching: str) -> None:
    made = run_scenario(load_scenario("tiny-cpu").with_(**{"scheduler.batching": batching}))
    expected = 0 if batching == "chunked" else int((made.requests.num_prompt > 96).sum())
    assert made.own["oversized_prompts"] == expected
    judge(made)
    line = f"Oversized: {expected} prompts longer than max_num_batched_tokens, each computed alone in a step"
    assert (line in outcome(made, [Path("out/summary.json")])) == (expected > 0)
    banner = f"{expected} prompts exceed the token budget of a step; each was computed alone."
    assert (("warning", banner) in warnings(made.summary)) == (expected > 0)


@pytest.mark.parametrize(("victim", "lost"), [(None, [0, 1]), (first_admitted, [1, 0])])
@pytest.mark.parametrize("batching", ["continuous", "prefill_first", "chunked"])
def test_the_naive_victim_is_the_oldest(batching: str, victim: Any, lost: list[int]) -> None:
    """A has 9 rows and B 5 when both are due a block of the last one: who goes is computed again."""
    observed = run(batching, request("A", 8, 4), request("B", 4, 4), num_blocks=4, victim=victim)
    assert observed.table.num_preemptions.tolist() == lost
    assert observed.table.status.tolist() == [COMPLETED] * 2


# Every policy, order and victim rule.


@pytest.mark.parametrize("batching", BATCHING)
@few_or_many(40, 120, data=st.data())
def test_every_policy_order_and_victim_serves_all_and_keeps_its_limits(batching: str, data: Any) -> None:
    """`Scheduler.check` runs after every step; the observer stops a run that makes no progress."""
    load = data.draw(loads(batching))
    observed = observe(**load)
    counts(observed.table)
    assert not (observed.table.status == UNFINISHED).any()
    assert observed.kv.num_used == 0
    prompts = {r.id: r.num_prompt for r in load["requests"]}
    num_oversized = 0
    for line in observed.log.lines:
        tokens = line["decodes"] + sum(n for _, n, _ in line["chunks"])
        assert line["running"] <= load["max_num_seqs"]
        assert line["decodes"] + len(line["chunks"]) <= load["max_num_seqs"]
        if tokens > load["max_num_batched_tokens"]:
            assert (line["decodes"], len(line["chunks"])) == (0, 1)
            num_oversized += 1
        if batching != "chunked":
            assert all(start + n >= prompts[id] for id, n, start in line["chunks"])
    assert oversized(observed) <= num_oversized
    assert (oversized(observed) > 0) <= (batching != "chunked")


class Seats:
    """Notes when a static batch is seated, whom it seats, and when the step before it began."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, set[str], float | None]] = []
        self._seated: set[str] = set()
        self._last: float | None = None

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        seated = {seq.id for seq in scheduler.running}
        if seated and not seated & self._seated:
            self.batches.append((now, seated, self._last))
        if seated:
            self._seated = seated
        if batch:
            self._last = now

    def finished(self, sequences: Iterable[Sequence], now: float) -> None:
        pass


@few_or_many(60, 200, load=loads("static"))
def test_a_static_batch_starts_as_soon_as_its_rule_allows(load: dict[str, Any]) -> None:
    """Rule: so many wait, or the oldest has waited so long; worked out from arrivals and ends of batches."""
    load |= {"requests": [replace(r, timeout=None) for r in load["requests"]], "plan": OPEN_LOOP}
    seats = Seats()
    observed = observe(**load, observers=[seats])
    table = observed.table
    if table.num_preemptions.any():  # by a row past the end of one that runs alone, with async scheduling
        return
    step_table = observed.served.recorder.step_table()
    end_of = dict(zip(step_table.start.tolist(), step_table.end.tolist(), strict=True))
    rows = zip(table.id, table.arrival.tolist(), table.status, strict=True)
    waiting = {id: arrival for id, arrival, status in rows if status == COMPLETED}
    need = min(load["min_batch"], load["max_num_seqs"])
    for start, members, last in seats.batches:
        times = sorted(waiting.values())
        enough = times[need - 1] if len(times) >= need else float("inf")
        due = max(0.0 if last is None else end_of[last], min(enough, times[0] + load["max_wait"]))
        assert start == pytest.approx(due, abs=1e-12)
        for id in members:
            del waiting[id]
    assert not waiting
