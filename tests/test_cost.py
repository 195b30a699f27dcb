"""Cost by tenant and class: shares by hand, nothing lost, nothing charged for nothing, where it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.experiments.report_page import escape
from simulator.experiments.tenant_tables import tenants_html, tenants_text
from simulator.latency.linear import LinearModel
from simulator.metrics.cost import request_costs, request_work
from simulator.metrics.tables import RequestTable, StepTable

PRICE = {"hardware.price_per_gpu_hour": 2.0}
TENANTS = [{"name": "long", "share": 1, "priority": 1}, {"name": "short", "share": 3}]
LINE = LinearModel(constant=1.0, per_token=0.01, per_seq=0.1, per_kv_token=1e-3)


def steps(num_decodes: list[int], decode_kv: list[int]) -> StepTable:
    n = len(num_decodes)
    whole = {name: np.zeros(n, np.int64) for name in StepTable.__slots__}
    whole |= {"start": np.arange(n), "end": np.arange(n) + 1.0, "prefill_work": np.zeros(n)}
    return StepTable(**whole | {"num_decodes": np.array(num_decodes), "decode_kv": np.array(decode_kv)})


def requests(*rows: tuple[int, int, int]) -> RequestTable:
    """Make completed requests from prompt, cached and output tokens."""
    n = len(rows)
    prompt, cached, output = (np.array(column) for column in zip(*rows, strict=True))
    zero, whole = np.zeros(n), np.zeros(n, np.int64)
    texts = [""] * n
    return RequestTable(
        texts, zero, prompt, output, whole, texts, zero, zero, zero, cached, whole, whole, [""] * n
    )


def served(**changes: object) -> Run:
    keys = {"workload.num_requests": 30, "workload.tenants": TENANTS, **PRICE, **changes}
    return run_scenario(load_scenario("tiny-cpu").with_(**keys))


def test_work_by_hand() -> None:
    # a full step of 100 prompt tokens: 1 + 100 x 0.01 + 0.1 = 2.1 s, so 0.021 s a token
    # the mean decode step: 4 sequences of 50 tokens: 1 + 4 x (0.01 + 0.1) + 200 x 0.001 = 1.64 s, of which
    # 0.2 s is context: 0.36 s a sequence, 0.001 s a token of context
    table = requests((10, 0, 3), (10, 10, 1), (7, 0, 0))
    work = request_work(table, steps([2, 6, 0], [100, 300, 0]), LINE, max_tokens=100)
    assert work.tolist() == pytest.approx([10 * 0.021 + 2 * 0.36 + (11 + 12) * 0.001, 0.0, 0.0])


def test_a_share_is_of_the_whole_and_of_those_that_count() -> None:
    table = requests((10, 0, 1), (30, 0, 1), (60, 0, 1))
    counted = np.array([True, True, False])
    costs = request_costs(table, steps([], []), LINE, counted, total=8.0, max_tokens=100)
    assert costs.tolist() == pytest.approx([2.0, 6.0, 0.0])
    nobody = request_costs(table, steps([], []), LINE, ~counted & counted, total=8.0, max_tokens=100)
    assert nobody.tolist() == [0.0, 0.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 900)), min_size=1, max_size=8
    ),
    st.floats(0, 1e6),
)
def test_costs_add_up_and_nobody_is_paid(rows: list[tuple[int, int, int]], total: float) -> None:
    table = requests(*rows)
    everybody = np.ones(len(rows), dtype=np.bool_)
    costs = request_costs(table, steps([3], [999]), LINE, everybody, total=total, max_tokens=2048)
    assert np.all(costs >= 0)
    assert np.all(costs[table.num_output == 0] == 0)
    work = request_work(table, steps([3], [999]), LINE, 2048)
    assert costs.sum() == pytest.approx(total if work.any() else 0.0)
    assert np.array_equal(np.argsort(work, kind="stable"), np.argsort(costs, kind="stable")) or total < 1e-300


def test_tenants_and_classes_pay_what_the_run_cost() -> None:
    run = served()
    own: dict[str, Any] = run.own
    duration = run.summary["duration"]
    assert isinstance(duration, float)
    for groups in (own["tenants"], own["classes"]):
        assert sum(each["cost"] for each in groups.values()) == pytest.approx(2.0 / 3600 * duration)
        assert sum(each["cost_share"] for each in groups.values()) == pytest.approx(1.0)
        for each in groups.values():
            price = 1e6 * each["cost"] / each["output_tokens"]
            assert each["cost_per_million_output_tokens"] == pytest.approx(price)
    tenants = own["tenants"].values()
    weighted = [each["cost_per_million_output_tokens"] * each["output_tokens"] for each in tenants]
    whole = own["cost_per_million_output_tokens"] * run.summary["total_output_tokens"]
    assert sum(weighted) == pytest.approx(whole)


def test_twice_the_price_is_twice_the_cost_and_the_same_shares() -> None:
    once: dict[str, Any] = served().own
    twice: dict[str, Any] = served(**{"hardware.price_per_gpu_hour": 4.0}).own
    for name, each in once["tenants"].items():
        assert twice["tenants"][name]["cost"] == pytest.approx(2 * each["cost"])
        assert twice["tenants"][name]["cost_share"] == each["cost_share"]


def test_the_warm_up_costs_nobody_anything() -> None:
    run = served(**{"run.warmup": {"requests": 10}})
    own: dict[str, Any] = run.own
    duration = run.summary["duration"]
    assert isinstance(duration, float)
    paid = sum(each["cost"] for each in own["tenants"].values())
    assert paid == pytest.approx(2.0 / 3600 * duration)


def test_without_a_price_nothing_changes() -> None:
    run = served(**{"hardware.price_per_gpu_hour": None})
    tenants: Any = run.own["tenants"]
    assert not any("cost" in key for each in tenants.values() for key in each)
    assert "cost" not in tenants_text(run.summary) + tenants_html(run.summary)


def test_the_tables_name_the_cost(tmp_path: Path) -> None:
    run = served()
    tenants: Any = run.own["tenants"]
    text, html = tenants_text(run.summary), tenants_html(run.summary)
    assert "cost / M output tok" in text.splitlines()[0]
    for each in tenants.values():
        assert f"{each['cost_per_million_output_tokens']:,.2f}" in text
        assert escape(f"{each['cost_share']:.1%}") in html
        assert f"{each['cost']:,.4g}" in html
    assert text.splitlines()[-1].startswith("cost: what the GPUs cost")


def test_a_server_that_did_nothing_costs_nobody(tmp_path: Path) -> None:
    changes = {
        "model.max_model_len": "64",
        "hardware.price_per_gpu_hour": "2",
        "workload.lengths": "{kind: constant, prompt: 64, output: 2}",
        "workload.tenants": "[{name: a}, {name: b}]",
        "workload.num_requests": "4",
    }
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    found = servetwin("run", "tiny-cpu", *words, "-o", tmp_path / "r")
    assert found.code == 0, found.err
    assert "Cost:" not in found.out
