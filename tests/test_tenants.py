"""Tenants: who is drawn, who is matched, what policies and SLOs make of them, and what stays as it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config.build import Policies, build_machine
from simulator.config.build_scheduler import build_scheduler
from simulator.config.build_workload import _STREAMS, build_workload
from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.config.tenants import slo_of, tenant_limits, with_deadlines
from simulator.errors import ConfigError
from simulator.experiments.compare import compare
from simulator.request import Request, Sequence
from simulator.schedulers.context import Context
from simulator.schedulers.orders import fcfs
from simulator.workload import Workload, generate, read_trace
from simulator.workload.tenants import Tenant

TRACE = "ts,in,out,user,priority\n0,10,3,ann,4\n1,20,2,bob,5\n2,30,1,,6\n3,10,9,ann,7\n"
COLUMNS = {"arrival": "ts", "prompt": "in", "output": "out", "tenant": "user", "priority": "priority"}


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def workload(n: int) -> Workload:
    return generate({"kind": "all_at_once"}, {"kind": "constant", "prompt": 10, "output": 1}, n)


def drawn(n: int, *tenants: Tenant, seed: int = 3) -> Counter[str]:
    return Counter(workload(n).with_tenants(tenants, rng(seed)).tenants)


def scenario(tenants: list[dict[str, Any]] | None, **changes: object) -> Scenario:
    """Return a small scenario; of `changes`, keys have a dot written as two underscores."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return load_scenario("tiny-cpu").with_(**{"workload.tenants": tenants} | keys)


@pytest.fixture
def trace(tmp_path: Path) -> dict[str, object]:
    """The keys of a scenario that replays the trace."""
    path = tmp_path / "users.csv"
    path.write_text(TRACE)
    return {"workload__trace": str(path), "workload__columns": COLUMNS, "workload__time_unit": "s"}


# Draws.


def test_shares_are_those_asked_for_within_five_standard_deviations() -> None:
    n, shares = 20_000, {"a": 3.0, "b": 1.0, "c": 0.5, "nobody": 0.0}
    found = drawn(n, *(Tenant(name, share) for name, share in shares.items()))
    assert set(found) == {"a", "b", "c"}
    for name, share in shares.items():
        p = share / sum(shares.values())
        assert abs(found[name] - n * p) <= 5 * np.sqrt(n * p * (1 - p))


def test_tenants_without_shares_have_equal_parts() -> None:
    found = drawn(10_000, *(Tenant(name) for name in "abcde"))
    assert max(abs(times - 2000) for times in found.values()) <= 5 * np.sqrt(10_000 * 0.2 * 0.8)


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=6).filter(any), st.integers(0, 2**32))
def test_any_shares_draw_somebody_who_has_one(shares: list[float], seed: int) -> None:
    found = drawn(50, *(Tenant(str(i), share) for i, share in enumerate(shares)), seed=seed)
    assert found.total() == 50
    assert all(shares[int(name)] > 0 for name in found)


def test_a_draw_is_repeated_by_its_seed_and_by_nothing_else() -> None:
    tenants = [Tenant("a", 1), Tenant("b", 2)]
    once, again, other = (workload(200).with_tenants(tenants, rng(seed)).tenants for seed in (1, 1, 2))
    assert once == again != other


def test_the_turns_of_a_session_have_one_tenant_and_keep_it_in_a_window() -> None:
    keys = {"workload.lengths": {"kind": "sessions", "name": "agentic"}, "workload.num_requests": 600}
    keys |= {"workload.tenants": [{"name": "a"}, {"name": "b"}], "workload.arrivals": {"kind": "all_at_once"}}
    whole = build_workload(Scenario().with_(**keys), 16384)
    assert whole.session is not None
    assert whole.tenants is not None
    owners = set(zip(whole.session, whole.tenants, strict=True))
    assert len(owners) == whole.num_sessions > 10
    assert {tenant for _, tenant in owners} == {"a", "b"}
    part = build_workload(Scenario().with_(**keys | {"workload.limit": 40}), 16384)
    assert part.session is not None
    assert part.tenants is not None
    assert set(zip(part.session, part.tenants, strict=True)) <= owners


def columns_of(w: Workload, *without: str) -> dict[str, object]:
    found = {field.name: getattr(w, field.name) for field in fields(w) if field.name not in without}
    arrays = {name: np.nan_to_num(x, nan=-1.0).tolist() for name, x in found.items() if hasattr(x, "dtype")}
    return found | arrays


def test_nothing_else_of_the_workload_changes_with_tenants_or_a_predictor() -> None:
    """Every random part is there: arrivals, lengths, spreading, delays, cancels."""
    keys: dict[str, object] = {
        "workload.spread_ms": 100,
        "workload.pre_delay_s": {"lognormal": {"mean": 0.1, "sigma": 0.5}},
        "workload.cancel": {"fraction": 0.3, "after_s": 1},
    }
    plain = build_workload(Scenario().with_(**keys), 16384)
    keys |= {"workload.tenants": [{"name": "a"}, {"name": "b"}], "workload.predicted_len": {"sigma": 1}}
    both = build_workload(Scenario().with_(**keys), 16384)
    assert both.tenants is not None
    assert both.predicted_len is not None
    new = ("tenants", "predicted_len")
    assert columns_of(both, *new) == columns_of(plain, *new)
    assert plain.tenants is None
    assert plain.predicted_len is None


def test_every_component_draws_from_a_stream_of_its_own() -> None:
    keys = [*_STREAMS.values(), 0, 1]  # generate() has 0 and 1
    assert len(set(keys)) == len(keys)


# Traces that name tenants.


def test_tenants_of_a_trace_are_matched_by_name(trace: dict[str, object]) -> None:
    matched = build_workload(scenario([{"name": "ann", "priority": -2}, {"name": "bob"}], **trace), 1000)
    assert matched.tenants == ["ann", "bob", "", "ann"]
    assert matched.priority.tolist() == [-2, 5, 6, -2]  # bob keeps what the trace says


def test_a_trace_is_as_it_was_if_no_tenant_is_named(trace: dict[str, object]) -> None:
    matched = build_workload(scenario(None, **trace), 1000)
    assert (matched.tenants, matched.priority.tolist()) == (["ann", "bob", "", "ann"], [4, 5, 6, 7])


def test_an_order_by_priority_serves_the_important_tenant_first(trace: dict[str, object]) -> None:
    tenants = [{"name": "bob", "priority": 9}, {"name": "ann", "priority": 1}]
    keys = trace | {"scheduler__order": "priority", "scheduler__max_num_seqs": 1, "workload__rate_scale": 1e6}
    table = run_scenario(scenario(tenants, **keys)).requests
    names = [table.tenant[i] for i in np.argsort(table.scheduled)]
    assert names == ["ann", "ann", "", "bob"]


@pytest.mark.parametrize(
    ("tenants", "message"),
    [
        ([{"name": "anna"}], "users.csv has no tenant 'anna'; did you mean ann?"),
        ([{"name": "zoe"}], "users.csv has no tenant 'zoe'; known: ann, bob"),
        ([{"name": "ann", "share": 0.5}], "says whose each request is, so 'ann' cannot have a share"),
    ],
)
def test_tenants_that_do_not_fit_a_trace_are_told(
    tenants: list[dict[str, Any]], message: str, trace: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_workload(scenario(tenants, **trace), 1000)
    assert str(caught.value).startswith("workload.tenants: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([1.0, None], "give a share to every tenant or to none; '1' has none"),
        ([0.0, 0.0], "shares must be >= 0, finite, and one > 0"),
        ([1.0, -1.0], "shares must be >= 0, finite, and one > 0"),
        ([1.0, float("inf")], "shares must be >= 0, finite, and one > 0"),
    ],
)
def test_shares_that_cannot_be_are_told(shares: list[float | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(3, *(Tenant(str(i), share) for i, share in enumerate(shares)))


# What the engine and the policies are told.


class Spy:
    """An order that writes down what it sees."""

    def __init__(self) -> None:
        self.seen: dict[str, Sequence] = {}
        self.weights: dict[str, float] = {}

    def __call__(self, seq: Sequence, ctx: Context) -> object:
        self.seen[seq.id] = seq
        self.weights[seq.tenant] = ctx.weight(seq.tenant)
        return fcfs(seq, ctx)


def watch(scenario: Scenario) -> tuple[Spy, Run]:
    spy = Spy()
    return spy, run_scenario(scenario, policies=Policies(order=spy))


def test_weights_reach_the_policies(trace: dict[str, object]) -> None:
    spy, _ = watch(scenario([{"name": "ann", "weight": 3}, {"name": "bob"}], **trace))
    assert spy.weights == {"ann": 3.0, "bob": 1.0, "": 1.0}
    plain = scenario(None)
    assert build_scheduler(plain, build_machine(plain), Policies()).weights == {}


def test_a_deadline_is_the_arrival_and_the_ttft_limit_of_the_tenant(trace: dict[str, object]) -> None:
    tenants = [{"name": "ann", "slo": {"ttft_ms": 250}}, {"name": "bob", "slo": {"ttft_ms": None}}]
    keys = trace | {"slo__ttft_ms": 800, "workload__timeout_s": 77, "workload__pre_delay_s": 0.5}
    spy, _ = watch(scenario(tenants, **keys))
    found = {seq.arrival: seq.deadline for seq in spy.seen.values()}
    assert found == {0.5: 0.75, 1.5: None, 2.5: 3.3, 3.5: 3.75}


def test_without_a_ttft_limit_there_is_no_deadline_even_with_a_timeout() -> None:
    spy, run = watch(scenario(None, slo__ttft_ms=None, workload__timeout_s=5))
    assert run.workload.ttft_limit is None
    assert {seq.deadline for seq in spy.seen.values()} == {None}


def test_candidates_of_another_slo_have_other_deadlines() -> None:
    """They share the workload, which knows nothing of the SLO until a run begins."""
    found = compare(scenario(None), {str(ms): {"slo.ttft_ms": ms} for ms in (100, 300)})
    limits = [run.workload.ttft_limit for run in found.runs.values()]
    assert [set(column.tolist()) for column in limits if column is not None] == [{0.1}, {0.3}]


def test_candidates_with_other_shares_are_not_sent_the_same_requests() -> None:
    tenants = [[{"name": "a", "share": share}, {"name": "b", "share": 1}] for share in (1, 9)]
    by_share = {str(i): {"workload.tenants": each} for i, each in enumerate(tenants)}
    assert not compare(scenario(None), by_share).same_requests
    weights = [[{"name": "a", "weight": weight}, {"name": "b"}] for weight in (1, 9)]
    by_weight = {str(i): {"workload.tenants": each} for i, each in enumerate(weights)}
    assert compare(scenario(None), by_weight).same_requests


def test_rows_become_requests_with_their_limit_and_prediction() -> None:
    w = Workload(
        np.array([0.0, 1.0]),
        np.array([4, 5]),
        np.array([2, 3]),
        ttft_limit=np.array([0.5, np.nan]),
        predicted_len=np.array([2.5, 1.0]),
    )
    assert list(w.requests) == [
        Request("0", 0.0, 4, 2, 2048, ttft_limit=0.5, predicted_len=2.5),
        Request("1", 1.0, 5, 3, 2048, predicted_len=1.0),
    ]
    assert w.requests[1] == list(w.requests)[1]
    assert w.take(np.array([1])).requests[0].predicted_len == 1.0


# SLOs.

LIMITS = st.dictionaries(
    st.sampled_from(["ttft_ms", "tpot_ms", "e2el_ms"]), st.none() | st.sampled_from([1.0, 30.0, 500.0])
)


@given(
    common=LIMITS,
    own=st.dictionaries(st.sampled_from("abc"), st.none() | LIMITS, min_size=1),
    who=st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=8),
)
def test_limits_of_a_request_are_its_tenants_else_the_scenarios(
    common: dict[str, float | None], own: dict[str, dict[str, float | None] | None], who: list[str]
) -> None:
    base = {"ttft_ms": None, "tpot_ms": None, "e2el_ms": None} | common
    given = Scenario().with_(
        **{f"slo.{key}": value for key, value in base.items()},
        **{"workload.tenants": [{"name": name, "slo": slo} for name, slo in own.items()]},
    )
    found = slo_of(given, who)
    for key in base:
        column = np.broadcast_to(found.get(key.removesuffix("_ms"), np.inf), len(who))
        for tenant, limit in zip(who, column.tolist(), strict=True):
            ms = (base | (own.get(tenant) or {}))[key]
            assert limit == (np.inf if ms is None else ms / 1e3)
    if all(slo is None for slo in own.values()):
        assert found == given.slo.seconds()
    assert set(tenant_limits(given)) == {name for name, slo in own.items() if slo is not None}


def test_deadlines_are_set_anew_for_each_scenario() -> None:
    w = with_deadlines(scenario(None, slo__ttft_ms=100), workload(3))
    assert w.ttft_limit is not None
    assert w.ttft_limit.tolist() == [0.1] * 3
    assert with_deadlines(scenario(None, slo__ttft_ms=None), w).ttft_limit is None


def test_a_trace_read_by_columns_keeps_its_users(trace: dict[str, object], tmp_path: Path) -> None:
    w = read_trace(tmp_path / "users.csv", columns=COLUMNS, time_unit="s")
    assert w.tenants == ["ann", "bob", "", "ann"]
    assert all(a <= b for a, b in pairwise(w.arrival.tolist()))
    assert run_scenario(scenario(None, **trace)).requests.tenant == w.tenants
