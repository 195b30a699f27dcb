"""Fairness: Jain's index and the oldest wait by hand, and each tenant's figures against one loop a tenant."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from engine_runs import observe
from hypothesis import given
from hypothesis import strategies as st

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.experiments.compare import compare, lower_is_better
from simulator.experiments.tenant_tables import SHOWN, tenants_html, tenants_text
from simulator.experiments.verdict import verdict
from simulator.latency.linear import LinearModel
from simulator.metrics.fairness import MAX_GROUPS, fairness, jain, waited
from simulator.metrics.percentiles import METHODS, grouped_percentiles, percentiles
from simulator.metrics.summary import Slo, latencies, meets_slo
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED, UNFINISHED, RequestTable
from simulator.request import Request

NAN = float("nan")
TENANTS = [
    {"name": "a", "share": 3, "slo": {"ttft_ms": 20}, "priority": 1},
    {"name": "<b>", "share": 1, "weight": 2},
]


def table(rows: list[dict[str, Any]]) -> RequestTable:
    """Make a table; a row names what is not the default."""
    plain: dict[str, Any] = {
        "arrival": 0.0,
        "num_prompt": 10,
        "num_output": 1,
        "status": COMPLETED,
        "reason": "",
        "scheduled": 0.0,
        "first_token": 1.0,
        "finish": 1.0,
        "num_cached": 0,
        "num_preemptions": 0,
        "priority": 0,
        "tenant": "",
        "id": "r",
    }
    columns = {name: [(plain | row)[name] for row in rows] for name in plain}
    texts = ("id", "tenant", "reason")
    made: dict[str, Any] = {n: x if n in texts else np.array(x) for n, x in columns.items()}
    return RequestTable(**made)


def fairness_of(requests: RequestTable, slo: Slo | None = None, **options: Any) -> dict[str, Any]:
    measured = latencies(requests, options.pop("warmup", "none"))
    found = fairness(requests, measured, meets_slo(measured, slo or {}), has_slo=bool(slo), **options)
    json.dumps(found, allow_nan=False)
    return found


# Jain's index.


def test_jains_index_by_hand() -> None:
    assert jain(np.array([1.0, 3.0])) == pytest.approx(16 / 20)
    assert jain(np.array([2.0, 2.0, 2.0])) == pytest.approx(1.0)
    assert jain(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(100 / 120)


@pytest.mark.parametrize("x", [[], [1.0], [0.0, 0.0], [1.0, NAN]])
def test_jains_index_is_none_where_there_is_nothing_to_compare(x: list[float]) -> None:
    assert jain(np.array(x)) is None


@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e12), min_size=2).filter(any), st.floats(1e-3, 1e3))
def test_jains_index_lies_between_one_nth_and_one_and_knows_no_unit(x: list[float], unit: float) -> None:
    index = jain(np.array(x))
    assert index is not None
    assert 1 / len(x) - 1e-9 <= index <= 1 + 1e-9
    assert jain(np.array(x) * unit) == pytest.approx(index, rel=1e-9)


def test_service_is_prompt_and_output_per_weight_up_to_the_end() -> None:
    """a: 10 + 4 and 10 + 2 (unfinished); b: 30 + 10, and one that has no token yet."""
    rows = [
        {"tenant": "a", "num_output": 4},
        {"tenant": "a", "num_output": 2, "status": UNFINISHED, "finish": NAN},
        {"tenant": "b", "num_prompt": 30, "num_output": 10},
        {"tenant": "b", "num_output": 0, "status": UNFINISHED, "finish": NAN, "first_token": NAN},
    ]
    assert fairness_of(table(rows))["jain_service"] == pytest.approx(66**2 / (2 * (26**2 + 40**2)))
    weighted = fairness_of(table(rows), weights={"b": 2.0})["jain_service"]
    assert weighted == pytest.approx(46**2 / (2 * (26**2 + 20**2)))


def test_latency_is_judged_by_its_mean_per_output_token() -> None:
    """a: 2 s / 4 and 1 s / 1, mean 0.75; b: 3 s / 2, mean 1.5."""
    rows: list[dict[str, Any]] = [
        {"tenant": "a", "num_output": 4, "finish": 2.0},
        {"tenant": "a"},
        {"tenant": "b", "num_output": 2, "finish": 3.0},
    ]
    expected = 2.25**2 / (2 * (0.75**2 + 1.5**2))
    assert fairness_of(table(rows))["jain_latency"] == pytest.approx(expected)
    refused: dict[str, Any] = {"tenant": "c", "status": REJECTED, "num_output": 0, "scheduled": NAN}
    assert fairness_of(table([*rows, refused]))["jain_latency"] == pytest.approx(expected)


def test_a_tenant_that_got_nothing_done_leaves_no_index_of_latency() -> None:
    """Else starving somebody would make a policy look fair."""
    waiting = {"tenant": "b", "status": UNFINISHED, "num_output": 0, "scheduled": NAN, "finish": NAN}
    found = fairness_of(table([{"tenant": "a"}, {"tenant": "c"}, waiting]))
    assert found["jain_latency"] is None
    assert found["jain_service"] == pytest.approx(2 / 3)


# Waits.


def test_the_oldest_wait_by_hand() -> None:
    """One seat, a second a step: A runs 0-3, then B 3-4 and E 4-; C leaves at 2.5, D is refused."""
    latency = LinearModel(constant=1.0)
    requests = [
        Request("A", 0.0, 4, 3, 3),
        Request("B", 0.5, 4, 1, 1),
        Request("C", 1.0, 4, 1, 1, timeout=1.5),
        Request("D", 1.5, 999, 1, 1),
        Request("E", 2.0, 4, 5, 5),
        Request("F", 3.25, 4, 1, 1),
    ]
    run = observe(requests, latency=latency, num_blocks=99, max_num_seqs=1, max_model_len=100, horizon=5.5)
    assert run.table.id == list("ABCDEF")
    assert waited(run.table, 5.5).tolist() == [0.0, 2.5, 1.5, 0.0, 2.0, 2.25]
    found = fairness_of(run.table, end=5.5)
    assert found["oldest_wait_s"] == 2.5
    assert fairness_of(run.table, end=9.0)["oldest_wait_s"] == 5.75  # F would have waited on


def test_a_wait_without_an_end_lasts_until_the_last_moment_on_record() -> None:
    rows = [{"finish": 7.0}, {"arrival": 2.0, "scheduled": NAN, "finish": NAN, "status": UNFINISHED}]
    assert waited(table(rows)).tolist() == [0.0, 5.0]
    assert fairness_of(table([]))["oldest_wait_s"] is None


# Figures by group, against one loop a group.


@given(
    groups=st.lists(st.lists(st.floats(-1e6, 1e6), max_size=9), min_size=1, max_size=6),
    rank=st.sampled_from([0, 7, 50, 99, 99.9, 100]),
    method=st.sampled_from(METHODS),
    order=st.randoms(use_true_random=False),
)
def test_percentiles_by_group_are_those_of_each_group(
    groups: list[list[float]], rank: float, method: str, order: Any
) -> None:
    pairs = [(i, x) for i, values in enumerate(groups) for x in values]
    order.shuffle(pairs)
    number = np.array([i for i, _ in pairs], np.int64)
    found = grouped_percentiles(np.array([x for _, x in pairs]), number, len(groups), rank, method)
    for values, value in zip(groups, found.tolist(), strict=True):
        (expected,) = percentiles(np.array(values), [rank], method)
        assert (None if np.isnan(value) else value) == expected


ROWS = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["", "a", "b", "c"]),
        "priority": st.integers(-1, 1),
        "status": st.sampled_from([COMPLETED, COMPLETED, COMPLETED, REJECTED, ABORTED, UNFINISHED]),
        "num_output": st.integers(1, 4),
        "times": st.tuples(*[st.integers(0, 8)] * 4),
    }
)
LIMITS = {"ttft": st.sampled_from([0.5, 2.0, np.inf]), "tpot": st.sampled_from([0.25, np.inf])}


def written(rows: list[dict[str, Any]]) -> RequestTable:
    """Make the table of drawn rows: a time is the one before it and so many quarters of a second."""
    full = []
    for row in rows:
        arrival, scheduled, first, finish = (np.cumsum(row["times"]) / 4).tolist()
        never = row["status"] in (REJECTED, UNFINISHED)
        full.append(
            {key: value for key, value in row.items() if key != "times"}
            | {"arrival": arrival, "scheduled": NAN if never else scheduled, "num_prompt": 3}
            | {"first_token": NAN if never else first, "finish": finish}
            | ({"num_output": 0} if never else {})
            | ({"finish": NAN} if row["status"] == UNFINISHED else {})
            | ({"finish": first} if row["num_output"] == 1 and row["status"] == COMPLETED else {})
        )
    return table(sorted(full, key=lambda row: row["arrival"]))


def met_by_loop(requests: RequestTable, counted: list[int], slo: dict[str, Any]) -> list[int]:
    """Return the rows among those counted that meet the limits of their row."""
    met = []
    for i in counted:
        ttft = requests.first_token[i] - requests.arrival[i]
        gaps = requests.num_output[i] - 1
        tpot = (requests.finish[i] - requests.first_token[i]) / gaps if gaps else 0.0
        if ttft <= slo["ttft"][i] and tpot <= slo["tpot"][i]:
            met.append(i)
    return met


def wait_by_loop(requests: RequestTable, i: int, end: float) -> float:
    """Return how long one request waited until it was scheduled, ended, or the run was over."""
    moments = (float(requests.scheduled[i]), float(requests.finish[i]), end)
    return next(moment for moment in moments if moment == moment) - float(requests.arrival[i])


@given(rows=st.lists(ROWS, min_size=1, max_size=12), data=st.data(), warmup=st.sampled_from(["none", 0.3]))
def test_figures_and_slos_of_rows_against_one_loop_a_tenant(
    rows: list[dict[str, Any]], data: st.DataObject, warmup: Any
) -> None:
    requests, n, end = written(rows), len(rows), 99.0
    slo = {name: np.array(data.draw(st.lists(x, min_size=n, max_size=n))) for name, x in LIMITS.items()}
    found = fairness_of(requests, slo, end=end, warmup=warmup)
    measured = latencies(requests, warmup)
    counted = measured.rows.tolist()
    seconds = measured.window[1] - measured.window[0]
    met = met_by_loop(requests, counted, slo)
    assert measured.rows[meets_slo(measured, slo)].tolist() == met
    for what, of in (("tenants", requests.tenant), ("classes", [str(p) for p in requests.priority])):
        names = set(of)
        assert set(found[what]) == (names if len(names) > 1 else set())
        for name, figures in found[what].items():
            mine = [i for i in range(n) if of[i] == name]
            done = [i for i in mine if requests.status[i] == COMPLETED]
            kept = [i for i in counted if i in mine]
            more = [i for i in kept if requests.num_output[i] > 1]
            ttfts = 1e3 * (requests.first_token - requests.arrival)[kept]
            tpots = 1e3 * (requests.finish - requests.first_token)[more] / (requests.num_output[more] - 1)
            e2els = 1e3 * (requests.finish - requests.arrival)[kept]
            base, good = len(mine) - len(done) + len(kept), len(set(met) & set(mine))
            assert figures == {
                "injected": len(mine),
                "completed": len(done),
                "output_tokens": int(requests.num_output[mine].sum()),
                "attainment": good / base if base else None,
                "request_goodput": pytest.approx(good / seconds if seconds else 0.0),
                "oldest_wait_s": max(wait_by_loop(requests, i, end) for i in mine),
                "mean_ttft_ms": pytest.approx(ttfts.mean()) if kept else None,
                "median_ttft_ms": pytest.approx(percentiles(ttfts, [50])[0]) if kept else None,
                "p99_ttft_ms": pytest.approx(percentiles(ttfts, [99])[0]) if kept else None,
                "p99_tpot_ms": pytest.approx(percentiles(tpots, [99])[0]) if more else None,
                "mean_e2el_ms": pytest.approx(e2els.mean()) if kept else None,
            }


def test_an_slo_of_one_number_is_one_of_equal_rows() -> None:
    requests = table([{"first_token": x, "finish": x + 1, "num_output": 3} for x in (0.25, 0.5, 0.75)])
    measured = latencies(requests)
    rows = meets_slo(measured, {"ttft": np.full(3, 0.5), "tpot": np.array([np.inf, 0.5, 0.5])})
    assert rows.tolist() == meets_slo(measured, {"ttft": 0.5}).tolist() == [True, True, False]
    for bad in (np.array([1.0, NAN, 1.0]), np.array([1.0, -1.0, 1.0])):
        with pytest.raises(ValueError, match=r"an SLO is one of ttft, tpot, e2el and >= 0 s"):
            meets_slo(measured, {"ttft": bad})


def test_of_very_many_tenants_those_with_the_most_requests_are_listed() -> None:
    n = MAX_GROUPS + 50
    rows = [{"tenant": f"user-{i}"} for i in range(n)] + [{"tenant": f"user-{i}"} for i in range(50, n)]
    found = fairness_of(table(rows))
    assert found["num_tenants"] == n
    assert set(found["tenants"]) == {f"user-{i}" for i in range(50, n)}
    text = tenants_text({"servetwin": found})
    assert text.count("\n") == SHOWN + 3  # titles, rows, what is left out, a blank line, Jain's index
    assert f"the {SHOWN} with the most requests of {n:,}" in text


# A whole run.


@pytest.fixture(scope="module")
def made() -> Run:
    keys = {"workload.tenants": TENANTS, "workload.num_requests": 60, "slo.ttft_ms": 50}
    return run_scenario(load_scenario("tiny-cpu").with_(**keys))


def test_the_parts_of_a_run_add_up_to_the_whole(made: Run) -> None:
    own, tenants = made.own, made.own["tenants"]
    assert isinstance(tenants, dict)
    assert list(tenants) == ["<b>", "a"]
    assert made.own["classes"] == {"0": tenants["<b>"], "1": tenants["a"]}
    for key in ("injected", "completed"):
        assert sum(row[key] for row in tenants.values()) == own[key]
    assert sum(row["output_tokens"] for row in tenants.values()) == made.summary["total_output_tokens"]
    good = sum(row["attainment"] * row["injected"] for row in tenants.values())
    assert good / 60 == pytest.approx(own["attainment"])
    assert sum(row["request_goodput"] for row in tenants.values()) == pytest.approx(
        made.summary["request_goodput"]
    )
    assert max(row["oldest_wait_s"] for row in tenants.values()) == own["oldest_wait_s"]
    assert own["slo"] == {"ttft_ms": 50.0, "tpot_ms": 100.0}
    assert own["slo_by_tenant"] == {"a": {"ttft_ms": 20.0, "tpot_ms": 100.0}}
    assert "or their tenant's own limits" in verdict(own, None)


def test_a_run_without_tenants_has_no_table() -> None:
    run = run_scenario(load_scenario("tiny-cpu"))
    assert run.own["tenants"] == run.own["classes"] == run.own["slo_by_tenant"] == {}
    assert run.own["jain_service"] is run.own["jain_latency"] is None
    assert tenants_text(run.summary) == tenants_html(run.summary) == ""


def test_the_report_shows_tenants_and_runs_nothing_of_their_names(made: Run) -> None:
    page = tenants_html(made.summary)
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<table") == 2
    assert "Jain" in page


def test_a_name_does_nothing_to_a_terminal() -> None:
    rows = {name: {"injected": 1} for name in ("\x1b[2J", "x" * 99, "")}
    text = tenants_text({"servetwin": {"tenants": rows}})
    assert text.replace("\n", "").isprintable()
    assert "(none)" in text
    assert "x" * 24 not in text


def test_run_prints_the_tenants_and_compare_takes_jains_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ("--set", "workload.tenants=[{name: a}, {name: b, weight: 3}]")
    made = servetwin("run", "tiny-cpu", *keys, "-o", "out")
    assert made.code == 0
    assert "tenant  requests" in made.out
    assert "Jain's index" in made.out
    assert "Tenants and classes" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["servetwin"]
    assert set(summary["tenants"]) == {"a", "b"}
    with (tmp_path / "out" / "requests.csv").open() as file:
        assert {row["tenant"] for row in csv.DictReader(file)} == {"a", "b"}
    vary = ("--vary", "scheduler.max_num_seqs=1,8", "--metric", "jain_latency")
    compared = servetwin("compare", "tiny-cpu", *keys, *vary, "-o", "cmp")
    assert compared.code == 0, compared
    assert "Best jain_latency" in compared.out


def test_more_evenness_and_less_waiting_are_better() -> None:
    assert not lower_is_better("jain_service")
    assert not lower_is_better("jain_latency")
    assert lower_is_better("oldest_wait_s")


def test_a_comparison_without_a_common_slo_is_decided_by_the_tenants_own() -> None:
    base = load_scenario("tiny-cpu").with_(
        **{f"slo.{key}": None for key in ("ttft_ms", "tpot_ms", "e2el_ms")}
    )
    assert compare(base, {"x": {}}).metric == "output_throughput"
    found = compare(base.with_(**{"workload.tenants": TENANTS}), {"x": {}})
    assert found.metric == "attainment"
    assert "within their tenant's own limits" in verdict(found.runs["x"].own, None)
