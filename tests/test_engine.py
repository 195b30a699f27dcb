"""One replica: a run worked by hand, ties in time, aborts in every state, rejections, async scheduling."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from engine_runs import Observed, observe, recorded_gaps, scenarios
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.decisions import Decision
from simulator.latency.linear import LinearModel
from simulator.metrics.summary import counts
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED, STATUS, UNFINISHED
from simulator.request import Request

SECOND = LinearModel(constant=1.0)  # every step takes a second


def request(id: str, prompt: int, output: int, arrival: float = 0.0, **facts: Any) -> Request:
    return Request(id, arrival, prompt, output, facts.pop("max_tokens", output), **facts)


def run(requests: list[Request], **changes: Any) -> Observed:
    defaults = {"latency": SECOND, "num_blocks": 100, "block_size": 4, "enable_prefix_caching": False}
    return observe(requests, **defaults | {"max_num_seqs": 8, "max_num_batched_tokens": 64} | changes)


def decisions(observed: Observed) -> list[Decision]:
    return observed.log.lines


def statuses(observed: Observed) -> list[str]:
    return [STATUS[status] for status in observed.table.status]


# A run worked by hand.


def test_a_run_of_three_requests_matches_its_working_by_hand() -> None:
    """Two seats, 8 tokens a step, 4 blocks of 4 tokens; a step takes 1/2 s and 1/8 s a token.

    0      A's prompt of 6 and 2 of B's 5: 1 + 2 blocks... A holds 2, B 1, 1 is free; 1.5 s; A's 1st token
    1.5    C arrives as the step ends and finds both seats taken; A decodes, B's last 3; 1 s; A's 2nd, B's 1st
    2.5    both decode within their blocks; 0.75 s; A's 3rd, B's 2nd
    3.25   A's 9th row needs a block, none is free: B, admitted last, loses its two; 0.625 s; A's 4th and last
    3.875  B recomputes 5 + 2 tokens, C gets what is left of 8; 1.5 s; B's 3rd and last
    5.375  the rest of C's prompt; 0.75 s; its 1st
    6.125  C decodes; 0.625 s; its 2nd and last, at 6.75
    """
    observed = run(
        [request("A", 6, 4), request("B", 5, 3), request("C", 3, 2, 1.5)],
        latency=LinearModel(constant=0.5, per_token=0.125),
        num_blocks=4,
        max_num_seqs=2,
        max_num_batched_tokens=8,
    )
    lines = [
        (
            d["t"],
            d["decodes"],
            d["chunks"],
            d["preempted"],
            d["free_blocks"],
            d["running"],
            d["waiting"],
            d["finished"],
        )
        for d in decisions(observed)
    ]
    assert lines == [
        (0.0, 0, [("A", 6, 0), ("B", 2, 0)], [], 1, 2, 0, []),
        (1.5, 1, [("B", 3, 2)], [], 0, 2, 1, []),
        (2.5, 2, [], [], 0, 2, 1, []),
        (3.25, 1, [], ["B"], 1, 1, 2, ["A"]),
        (3.875, 0, [("B", 7, 0), ("C", 1, 0)], [], 1, 2, 0, ["B"]),
        (5.375, 0, [("C", 2, 1)], [], 3, 1, 0, []),
        (6.125, 1, [], [], 3, 1, 0, ["C"]),
    ]
    table = observed.table
    assert table.scheduled.tolist() == [0.0, 0.0, 3.875]
    assert table.first_token.tolist() == [1.5, 2.5, 6.125]
    assert table.finish.tolist() == [3.875, 5.375, 6.75]
    assert table.num_output.tolist() == [4, 3, 2]
    assert table.num_preemptions.tolist() == [0, 1, 0]
    assert table.reason == ["stop", "stop", "stop"]
    steps = observed.served.recorder.step_table()
    assert steps.start.tolist() == [0.0, 1.5, 2.5, 3.25, 3.875, 5.375, 6.125]
    assert steps.end.tolist() == [1.5, 2.5, 3.25, 3.875, 5.375, 6.125, 6.75]
    assert steps.num_tokens.tolist() == [8, 4, 2, 1, 8, 2, 1]
    assert steps.num_sampled.tolist() == [1, 2, 2, 1, 1, 1, 1]
    assert steps.decode_kv.tolist() == [0, 7, 8 + 6, 9, 0, 0, 4]
    assert steps.prefill_work.tolist() == [18.0 + 2.0, 3 * 3.5, 0.0, 0.0, 24.5 + 0.5, 2 * 2.0, 0.0]
    assert steps.used_blocks.tolist() == [3, 4, 4, 3, 3, 1, 1]
    assert steps.kv_tokens.tolist() == [8, 12, 14, 9, 8, 3, 4]
    assert recorded_gaps(observed) == {0.625: 2, 0.75: 2, 1.0: 1, 2.125: 1}


def test_a_decision_log_is_one_json_object_a_line() -> None:
    observed = run([request("A", 6, 4), request("B", 5, 3)])
    file = io.StringIO()
    observed.log.write(file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(decisions(observed))))
    assert lines[0]["chunks"] == [["A", 6, 0], ["B", 5, 0]]


# Ties in time.


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_de_04_a_completion_at_the_horizon_counts(async_scheduling: bool) -> None:
    observed = run([request("A", 4, 10)], horizon=10, async_scheduling=async_scheduling)
    assert statuses(observed) == ["completed"]
    assert observed.table.finish[0] == 10.0


def test_de_04_equal_stamps_keep_the_order_of_the_file() -> None:
    observed = run([request(id, 3, 1, 1.0) for id in "CABD"], max_num_seqs=1)
    assert [d["chunks"][0][0] for d in decisions(observed)] == list("CABD")


@pytest.mark.parametrize(("first", "second"), [(1.18, 3.48), (0.6, 1.91), (0.7, 3.6)])
def test_requests_with_equal_stamps_are_all_seen_at_that_very_stamp(first: float, second: float) -> None:
    """The delay between these stamps, added to the first, misses the second by a rounding."""
    assert first + (second - first) != second
    observed = run(
        [request("A", 1, 1, first), *(request(id, 1, 1, second) for id in "BCD")], latency=LinearModel(0.25)
    )
    assert [(d["t"], len(d["chunks"])) for d in decisions(observed)] == [(first, 1), (second, 3)]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_arrival_as_a_step_ends_is_seen_by_the_next_step(async_scheduling: bool) -> None:
    """C's arrival enters SimPy's queue, at 0.5 s, after the end of A's first step did."""
    requests = [request("A", 4, 4), request("B", 4, 1, 0.5), request("C", 4, 1, 1.0)]
    observed = run(requests, async_scheduling=async_scheduling)
    assert observed.table.scheduled.tolist() == [0.0, 1.0, 1.0]


def test_arrivals_at_the_start_and_long_after_an_idle_time_are_served_at_once() -> None:
    observed = run([request(id, 4, 2, at) for id, at in (("A", 0.0), ("B", 5.0), ("C", 10.0))])
    assert observed.table.scheduled.tolist() == [0.0, 5.0, 10.0]
    assert observed.observer.idle == [(2.0, 5.0), (7.0, 10.0)]


# Aborts.

STATES = {
    # state in which the timeout finds C: (timeout, tokens it had by then)
    "on arrival": (0.0, 0),
    "waiting": (0.5, 0),
    "mid-prefill": (3.5, 0),
    "as its prefill ends": (6.0, 1),
    "decoding": (6.5, 2),
    "as it would finish": (9.0, 4),
}


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_a_timeout_frees_everything_in_every_state(state: str, async_scheduling: bool) -> None:
    """C waits for A's seat until 1 or 2 s, prefills 4 tokens a step, decodes for three steps."""
    timeout, num_output = STATES[state]
    late = float(async_scheduling)  # A ends at 2 s by a stop that the next step does not know of
    observed = run(
        [request("A", 1, 2, max_tokens=9), request("C", 16, 4, timeout=timeout + late * (timeout > 1))],
        max_num_seqs=1,
        max_num_batched_tokens=4,
        async_scheduling=async_scheduling,
    )
    assert statuses(observed) == ["completed", "aborted"]
    assert counts(observed.table) == {
        "injected": 2,
        "completed": 1,
        "rejected": 0,
        "aborted": 1,
        "unfinished": 0,
    }
    assert observed.table.reason == ["stop", "timeout"]
    assert observed.table.num_output.tolist() == [2, num_output]
    assert observed.table.finish[1] == timeout + late * (timeout > 1)
    assert observed.kv.num_used == 0
    assert [id for d in decisions(observed) for id in d["finished"]].count("C") == (state != "on arrival")


def test_a_timeout_frees_a_preempted_sequence() -> None:
    """As in the run worked by hand, but B's client leaves at 3.5 s, when A has just taken B's blocks."""
    observed = run(
        [request("A", 6, 4), request("B", 5, 3, timeout=3.5), request("C", 3, 2, 1.5)],
        latency=LinearModel(constant=0.5, per_token=0.125),
        num_blocks=4,
        max_num_seqs=2,
        max_num_batched_tokens=8,
    )
    assert statuses(observed) == ["completed", "aborted", "completed"]
    assert observed.table.num_output.tolist() == [4, 2, 2]
    assert observed.table.num_preemptions.tolist() == [0, 1, 0]
    assert decisions(observed)[4]["chunks"] == [("C", 3, 0)]
    assert recorded_gaps(observed) == {0.625: 2, 0.75: 1, 1.0: 1}


def test_a_timeout_after_the_last_token_changes_nothing() -> None:
    observed = run([request("A", 4, 3, timeout=3.0 + 1e-9)])
    assert statuses(observed) == ["completed"]


def test_a_client_that_left_before_the_horizon_is_aborted_though_its_step_goes_on() -> None:
    observed = run([request("A", 4, 9, timeout=2.25), request("B", 4, 9)], horizon=2.5)
    assert statuses(observed) == ["aborted", "unfinished"]
    assert observed.table.finish[0] == 2.25
    assert observed.table.num_output.tolist() == [2, 2]  # the third step has not ended


@given(scenarios(horizons=True))
@settings(max_examples=100, deadline=None)
def test_every_request_ends_once_and_for_the_right_reason(scenario: dict[str, Any]) -> None:
    observed = observe(**scenario)
    table, horizon = observed.table, scenario["horizon"]
    counts(table)
    sent = {r.id: r for r in scenario["requests"]}
    for i, r in enumerate(sent[id] for id in table.id):
        gone = float("inf") if r.timeout is None else r.arrival + r.timeout
        last = observed.observer.tokens[r.id][-1:] if observed.observer.target[r.id] else []
        if table.status[i] == COMPLETED:
            assert r.arrival < table.scheduled[i] + 1e-12
            assert table.first_token[i] <= table.finish[i] < gone
            assert table.num_output[i] == observed.observer.target[r.id]
            assert table.reason[i] == ("length" if r.num_output > observed.observer.target[r.id] else "stop")
        elif table.status[i] == ABORTED:
            assert table.finish[i] == gone
            assert horizon is None or gone <= horizon
            assert table.num_output[i] < observed.observer.target[r.id] or last[0] >= gone
        elif table.status[i] == REJECTED:
            assert table.finish[i] == r.arrival
            assert table.reason[i]
        else:
            assert horizon is not None
            assert gone > horizon or r.arrival > horizon
    log = [id for d in decisions(observed) for id in d["finished"]]
    ended = [id for id, status in zip(table.id, table.status, strict=True) if status in (COMPLETED, ABORTED)]
    assert len(log) == len(set(log))
    assert set(log) <= set(ended)


# Rejections.


def test_requests_that_could_never_be_served_are_rejected_with_a_reason() -> None:
    observed = run(
        [
            request("long", 20, 1),
            request("fits", 19, 9),
            request("big", 12, 6, max_tokens=99),
            request("ok", 12, 5),
        ],
        max_model_len=20,
        num_blocks=4,
    )
    # `fits` stops at max_model_len: 20 tokens are 19 rows, 5 blocks; `big` has 17 rows, `ok` has 16
    assert statuses(observed) == ["rejected", "rejected", "rejected", "completed"]
    assert observed.table.reason == [
        "prompt >= max_model_len",
        "needs more KV blocks than there are",
        "needs more KV blocks than there are",
        "stop",
    ]


def test_a_sequence_stops_at_max_model_len_and_at_max_tokens_with_the_reason_length() -> None:
    observed = run(
        [request("A", 19, 9), request("B", 5, 9, max_tokens=3), request("C", 5, 9)], max_model_len=20
    )
    assert observed.table.num_output.tolist() == [1, 3, 9]
    assert observed.table.reason == ["length", "length", "stop"]


# Async scheduling (rule 8.4).


def test_async_scheduling_delivers_the_last_token_in_time_and_frees_one_step_late() -> None:
    """A stops by itself at its third token: its client has it at 3 s, its seat is free at 4 s."""
    requests = [request("A", 4, 3, max_tokens=9), request("B", 4, 1)]
    lines = {}
    for async_scheduling in (False, True):
        observed = run(requests, max_num_seqs=1, async_scheduling=async_scheduling)
        lines[async_scheduling] = [
            (d["t"], d["decodes"], d["chunks"], d["finished"]) for d in decisions(observed)
        ]
        assert observed.table.finish[0] == 3.0
        assert observed.table.scheduled[1] == 3.0 + async_scheduling
    wasted = (3.0, 1, [], [])
    assert lines[True][3] == wasted
    assert lines[True][2] == lines[False][2] == (2.0, 1, [], ["A"])


def test_async_scheduling_wastes_no_row_on_a_sequence_that_reaches_max_tokens() -> None:
    observed = run([request("A", 4, 3)], async_scheduling=True)
    assert [d["decodes"] for d in decisions(observed)] == [0, 1, 1]


def test_the_row_wasted_after_a_stop_is_no_token() -> None:
    """The wasted row may even be the last that max_tokens allows."""
    for max_tokens in (4, 9):
        observed = run([request("A", 4, 3, max_tokens=max_tokens)], async_scheduling=True)
        assert recorded_gaps(observed) == {1.0: 2}
        assert observed.table.num_output[0] == 3


def test_a_sequence_that_has_ended_may_be_preempted_before_the_scheduler_knows() -> None:
    """A's wasted row needs a fourth block of three: it preempts itself, and is then seen to have ended."""
    observed = run(
        [request("A", 9, 4, max_tokens=9), request("B", 4, 1)],
        num_blocks=3,
        max_num_seqs=1,
        async_scheduling=True,
    )
    assert statuses(observed) == ["completed", "completed"]
    assert observed.table.finish.tolist() == [4.0, 5.0]
    assert observed.table.num_preemptions.tolist() == [1, 0]
    assert observed.kv.num_used == 0


# Properties of every run.


@given(scenarios(horizons=True))
@settings(max_examples=100, deadline=None)
def test_the_engine_rests_only_when_nobody_is_there(scenario: dict[str, Any]) -> None:
    observed = observe(**scenario)
    table = observed.table
    left = np.where(table.status == UNFINISHED, np.inf, table.finish)
    for rest, resume in observed.observer.idle:
        assert not (np.maximum(table.arrival, rest) < np.minimum(left, resume)).any()


@given(scenarios(horizons=True))
@settings(max_examples=100, deadline=None)
def test_step_counters_are_those_of_the_scheduler_while_the_step_runs(scenario: dict[str, Any]) -> None:
    observed = observe(**scenario)
    steps = observed.served.recorder.step_table()
    ran = steps.num_tokens > 0
    recorded = zip(steps.num_running, steps.num_waiting, steps.used_blocks, steps.kv_tokens, strict=True)
    seen = observed.observer.states[: int(ran.sum())]
    assert [row for row, kept in zip(recorded, ran, strict=True) if kept] == seen
    assert (steps.start[~ran] == steps.end[~ran]).all()
    assert (steps.start[1:] >= steps.end[:-1]).all()
    assert steps.num_preempted.sum() <= observed.observer.preempted.total()


@given(scenarios(), st.integers(2, 3))
@settings(max_examples=100, deadline=None)
def test_more_blocks_change_nothing_where_blocks_were_never_short(
    scenario: dict[str, Any], factor: int
) -> None:
    if scenario["batching"] == "static":
        scenario["batching"] = "chunked"  # static's reservations are refused where nobody can count them
    first = observe(**scenario)
    evicted = first.kv.pool.num_evicted
    if (
        first.kv.num_refused
        or evicted
        or (first.table.status == REJECTED).any()
        or sum(first.observer.preempted.values())
    ):
        return
    scenario["num_blocks"] *= factor
    more = observe(**scenario)

    def without_free(observed: Observed) -> list[dict[str, object]]:
        return [{key: value for key, value in d.items() if key != "free_blocks"} for d in decisions(observed)]

    assert without_free(more) == without_free(first)


def test_unfinished_requests_are_those_the_horizon_cut_off() -> None:
    observed = run([request("A", 4, 3), request("B", 4, 9), request("C", 4, 9, 7.0)], horizon=5)
    assert statuses(observed) == ["completed", "unfinished"]
    assert observed.table.num_output.tolist() == [3, 5]
