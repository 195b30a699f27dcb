"""Claims: verdicts follow from numbers alone, a trial gives the intervals of a tournament, and without a KV
cache a token costs the prefill of its context."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.scenario import Scenario
from simulator.experiments.claims import claim as claims
from simulator.experiments.claims.claim import Case, Claim, Number, Said, about, summary
from simulator.experiments.claims.measures import claimed, p99_by_int, wait_in_batches
from simulator.experiments.claims.page import page
from simulator.experiments.claims.trial import alike, serve_trial
from simulator.experiments.compare import compare
from simulator.latency.base import StepFeatures
from simulator.latency.recomputing import Recomputing
from simulator.metrics.tables import RequestTable

BOUNDS = st.floats(-1e6, 1e6)
JUDGED = [claims.HOLDS, claims.WRONG, claims.OPEN]


def case(state: str, when: str = "it rains") -> Case:
    """Return a case that a claim of 1 to 2 is judged so by."""
    low, high = {claims.HOLDS: (1.1, 1.9), claims.WRONG: (3.0, 4.0), claims.OPEN: (1.5, 2.5)}[state]
    return Case(when, Number((low + high) / 2, low, high, 0.9), "seed=1")


def claim(*states: str) -> Claim:
    return Claim(
        "It is so", Said(1, 2, "times"), tuple(case(s, f"case {i}") for i, s in enumerate(states)), ""
    )


@pytest.mark.parametrize("states", [c for n in (1, 2, 3) for c in itertools.product(JUDGED, repeat=n)])
def test_a_verdict_follows_from_its_cases(states: tuple[str, ...]) -> None:
    found = claim(*states)
    held = [f"case {i}" for i, state in enumerate(states) if state == claims.HOLDS]
    if len(held) == len(states):
        expected = "holds"
    elif held:
        expected = f"holds when {'; or '.join(held)}"
    else:
        expected = "open" if claims.OPEN in states else "wrong"
    assert found.words == expected
    assert found.verdict == re.sub("when .*", "when", expected)
    assert list(found.frame.judged) == list(states)


@given(low=BOUNDS, width=st.floats(0, 1e6), said=BOUNDS, span=st.floats(0, 1e6))
def test_a_case_is_judged_by_its_whole_interval(low: float, width: float, said: float, span: float) -> None:
    found = Case("", Number(low, low, low + width, 0.9), "").judged(Said(said, said + span, ""))
    inside = [said <= point <= said + span for point in (low, low + width)]
    assert (found == claims.HOLDS) == all(inside)
    apart = low + width < said or low > said + span
    assert (found == claims.WRONG) == apart
    assert found in JUDGED


def test_arithmetic_is_exact_and_a_claim_without_cases_is_shown_as_such() -> None:
    size = Claim("Bytes", Said(8, 8, "B"), (Case("in 16 bits", Number.exact(8), "2 x 4"),), "Two times four.")
    none = Claim("Pipes", about(1), (), "")
    table = summary([size, claim(claims.WRONG), none])
    assert table.verdict.to_list() == ["holds", "wrong", "not in this version"]
    assert table.interval.to_list() == ["exact", "3 to 4", ""]
    assert none.frame.judged.to_list() == ["not in this version"]
    text = page([size, none])
    assert "2 claims: 1 holds, 1 not in this version." in text
    assert "| in 16 bits | 8 | exact |  | holds | 2 x 4 |" in text
    assert "[Bytes](#bytes)" in text


def small(**keys: object) -> Scenario:
    load = {"workload.num_requests": 20, "workload.arrivals": {"kind": "poisson", "rate": 5}}
    return load_scenario("chat-a100").with_(**load | keys)


def test_a_trial_of_a_difference_is_the_tournaments() -> None:
    servers = {"chunked": small(), "static": small(**{"scheduler.batching": "static"})}
    trial = serve_trial(servers, replications=3, n_model_draws=4, workers=1)
    found = trial.number(lambda s: s["static"]["mean_e2el_ms"] - s["chunked"]["mean_e2el_ms"])
    other = {"chunked": {}, "static": {"scheduler.batching": "static"}}
    same = compare(small(), other, metric="mean_e2el_ms", n_model_draws=4)
    held = same.replicate(3, find_turning=False, workers=1).difference("static", "mean_e2el_ms")
    assert held is not None
    assert found == (held.mean, held.combined.low, held.combined.high, held.combined.level)


def test_a_trial_taken_as_priced_has_the_interval_of_chance_alone() -> None:
    servers = {"chunked": small(), "static": small(**{"scheduler.batching": "static"})}
    trial = serve_trial(servers, replications=3, n_model_draws=4, workers=1)
    again = serve_trial(servers, replications=3, n_model_draws=0, workers=1)
    both = [each.ratio("mean_e2el_ms", "static", "chunked") for each in (trial.as_priced(), again)]
    assert both[0] == both[1]
    assert both[0].level == 0.95
    assert trial.ratio("mean_e2el_ms", "static", "chunked").level != both[0].level


def test_a_server_over_itself_is_one_and_its_case_says_what_was_run() -> None:
    trial = serve_trial({"a": small(seed=3)}, replications=2, n_model_draws=2, workers=1)
    found = trial.case("always", "output_throughput", "a", "a")
    assert found.number[:3] == (1, 1, 1)
    told = "seed=3, workload.arrivals={kind: poisson, rate: 5}, workload.num_requests=20 / as it is"
    assert found.scenario == told


def test_servers_of_one_trial_are_priced_alike() -> None:
    tiny = small(**{"model.name": "mistral-7b-v0.3"})  # no shipped A100 profile has it
    assert {each.latency.kind for each in alike({"a": small(), "b": tiny}).values()} == {"roofline"}
    assert {each.latency.kind for each in alike({"a": small(), "b": small(seed=1)}).values()} == {"profile"}


def table(arrival: list[float], scheduled: list[float], finish: list[float]) -> RequestTable:
    n, zeros = len(arrival), np.zeros(len(arrival), np.int64)
    times = [np.array(each, np.float64) for each in (scheduled, scheduled, finish)]
    names = [""] * n
    return RequestTable(
        names, np.array(arrival), zeros, zeros + 1, zeros, names, *times, zeros, zeros, zeros, names
    )


def test_a_wait_is_told_as_a_share_of_the_batch_that_runs() -> None:
    """At 1 two run, until 4 and 9: who comes then and starts at 3 waits a quarter of the batch's rest."""
    assert wait_in_batches(table([0, 0, 1], [0, 0, 3], [4, 9, 12])) == 0.25
    assert wait_in_batches(table([0, 10], [0, 10], [4, 12])) == 0.0


def test_int_of_099_n_is_the_largest_of_a_hundred() -> None:
    latency = [float(i) for i in range(1, 101)]
    zeros = [0.0] * 100
    assert p99_by_int(table(zeros, zeros, latency)) == pytest.approx(100 / 99.01)


def test_tokens_over_the_longest_latency_is_right_only_for_requests_that_come_together() -> None:
    servers = {"together": small(**{"workload.arrivals": {"kind": "all_at_once"}}), "apart": small()}
    trial = serve_trial(servers, replications=2, n_model_draws=0, measure=claimed, workers=1)
    for name, is_right in (("together", True), ("apart", False)):
        values = trial.replications[name][0]
        assert (values["throughput_by_longest"] == pytest.approx(values["output_throughput"])) == is_right


def test_without_a_kv_cache_a_token_costs_the_prefill_of_its_context() -> None:
    inner = build_machine(small()).latency
    model = Recomputing(inner)
    assert model.step_time(StepFeatures.decode([700])) == inner.step_time(StepFeatures.prefill([(700, 0)]))
    chunk = StepFeatures.prefill([(300, 0)])
    assert model.step_time(chunk) == inner.step_time(chunk)
    pair = StepFeatures.decode([500, 500])
    assert model.step_time(pair) == inner.step_time(StepFeatures.prefill([(500, 0), (500, 0)]))
    later = [model.step_time(StepFeatures.decode([700 + i])) for i in range(4)]
    assert model.decode_times(StepFeatures.decode([700]), 4).tolist() == later


def test_a_run_without_a_kv_cache_takes_the_sum_of_its_prefills() -> None:
    keys = {"scheduler.max_num_seqs": 1, "scheduler.batching": "static", "workload.num_requests": 2}
    keys |= {"workload.lengths": {"kind": "constant", "prompt": 100, "output": 5}}
    alone = small(**keys | {"workload.arrivals": {"kind": "all_at_once"}})
    trial = serve_trial({"a": alone}, replications=2, n_model_draws=0, no_kv_cache=["a"], workers=1)
    inner = build_machine(alone).latency
    once = sum(inner.step_time(StepFeatures.prefill([(100 + i, 0)])) for i in range(5))
    assert trial.replications["a"][0]["duration"] == pytest.approx(2 * once)
    assert "computing each context again" in trial.case("", "duration", "a").scenario
