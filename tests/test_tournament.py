"""Tournaments: the statistics of verdicts, the queue with a known answer, the command, the same bytes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin, spawn
from scipy import stats
from tournament_queue import METRIC, orders

import simulator
from simulator.config.loading import load_scenario
from simulator.errors import ConfigError
from simulator.experiments.compare import candidates_of, compare
from simulator.experiments.compare_report import comparison_html, comparison_text, save_comparison
from simulator.experiments.tournament import tables
from simulator.experiments.tournament.figures import difference_plot
from simulator.experiments.tournament.paired import (
    IDENTICAL,
    LOSS,
    MORE,
    TIE,
    WIN,
    difference,
    is_settled,
    margin_of,
    t_interval,
    verdict_of,
)
from simulator.experiments.tournament.turning import TOLERANCE, crossing

THREE = "scheduler.batching=static,continuous,chunked"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tiny(**changes: object) -> simulator.Scenario:
    return load_scenario("tiny-cpu").with_(**{"workload.arrivals.rate": 5.0, **changes})


def held(num: int | str = 4, **options: Any) -> Any:
    return compare(tiny(), candidates_of([THREE]), replications=num, **options)


# Statistics.


def test_the_interval_is_scipys_paired_t_interval() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(1, 2, 9).tolist()
    found = t_interval(values)
    assert found is not None
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert t_interval([1.0]) is None


def test_the_paired_interval_covers_a_known_difference() -> None:
    """2,000 tournaments of 8: what both share is ten times the difference and cancels."""
    rng = np.random.default_rng(6)
    shared = rng.normal(100, 5, (2000, 8))
    ours = shared + 0.5 + rng.normal(0, 0.3, (2000, 8))
    found = [difference((a - b).tolist(), [], 1.0) for a, b in zip(ours, shared, strict=True)]
    covered = np.mean([each is not None and each.sampling.low <= 0.5 <= each.sampling.high for each in found])
    assert covered == pytest.approx(0.95, abs=0.02)


def test_the_combined_interval_covers_when_requests_and_model_both_err() -> None:
    """The truth is off the model by one more draw of its error; 40 draws can say 95 %."""
    rng = np.random.default_rng(7)
    covered = []
    for _ in range(1500):
        off = rng.normal(0, 0.4)
        found = difference(rng.normal(1 - off, 0.8, 10).tolist(), rng.normal(0, 0.4, 40).tolist(), 1.0)
        assert found is not None
        covered.append(found.combined.low <= 1.0 <= found.combined.high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize(
    ("values", "metric", "margin", "verdict"),
    [
        ([-2.0, -2.1, -1.9], "p99_ttft_ms", 0.1, WIN),
        ([-2.0, -2.1, -1.9], "attainment", 0.1, LOSS),
        ([2.0, 2.1, 1.9], "attainment", 0.1, WIN),
        ([0.1, -0.1, 0.0], "attainment", 0.3, TIE),
        ([0.1, -0.1, 0.0], "attainment", 0.2, MORE),
        ([0.0, 0.0], "attainment", 0.0, TIE),
        ([1.0], "attainment", 5.0, MORE),
    ],
)
def test_a_verdict_follows_its_rule(values: list[float], metric: str, margin: float, verdict: str) -> None:
    assert verdict_of(difference(values, [], margin), metric) == verdict


def test_a_models_error_can_take_a_win_away_and_no_replication_brings_it_back() -> None:
    values = [-2.0, -2.1, -1.9, -2.05, -1.95]
    assert verdict_of(difference(values, [], 0.1), METRIC) == WIN
    found = difference(values, [-1.0, 3.0, 0.5], 0.1)
    assert found is not None
    assert verdict_of(found, METRIC) == MORE
    assert found.combined.high == pytest.approx(-2 + np.hypot(found.sampling.high + 2, 3.0))
    assert is_settled(found, values)


def test_a_margin_is_relative_or_in_points() -> None:
    assert margin_of("p99_ttft_ms", -200.0, None) == pytest.approx(10)
    assert margin_of("attainment", 0.5, None) == pytest.approx(0.01)
    assert margin_of("attainment", 0.5, 0.03) == pytest.approx(0.03)


@pytest.mark.parametrize("root", [1.013, 1.09, 1.72, 0.97, 0.61])
def test_a_crossing_is_found_within_its_tolerance(root: float) -> None:
    def value(factor: float) -> float:
        return factor**5 - root**5

    search = crossing(value(1.0), root > 1)
    tried = [next(search)]
    found = None
    while found is None and len(tried) < 20:
        try:
            tried.append(search.send(value(tried[-1])))
        except StopIteration as end:
            found = end.value
    assert found == pytest.approx(root, abs=2 * TOLERANCE)


def test_a_difference_that_stays_has_no_crossing() -> None:
    search = crossing(-1.0, True)
    next(search)
    for _ in range(3):
        search.send(-1.0)
    with pytest.raises(StopIteration) as end:
        search.send(-1.0)
    assert end.value.value is None


# The queue.


def test_orders_with_equal_means_tie_and_a_quicker_one_wins() -> None:
    """A small part of the slow tests below; the cut of the warm-up is the same for all."""
    found = orders(1, quick=0.97).replicate(10, margin=0.1, workers=1)
    assert found.verdicts == {"lifo": TIE, "quick": WIN}
    assert found.turning is not None
    factor = found.turning["quick"].factor
    assert factor == pytest.approx(1 / 0.97, abs=0.02)


def test_what_draws_the_same_is_identical() -> None:
    candidates: dict[str, Any] = {
        "a": {},
        "same": {"scheduler.order": "fcfs"},
        "b": {"scheduler.max_num_seqs": 2},
    }
    found = compare(tiny(), candidates, replications=3)
    assert found.tournament is not None
    assert found.tournament.verdicts["same"] == IDENTICAL
    assert found.tournament.verdicts["b"] != IDENTICAL
    assert "every number of every replication equals the baseline's" in found.text()


@pytest.mark.slow
def test_lifo_ties_with_fcfs_in_178_to_199_of_200() -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(200):
        found = orders(seed).replicate(max_seconds=3600, find_turning=False, workers=1)
        verdicts[found.verdicts["lifo"]] += 1
    assert 178 <= verdicts[TIE] <= 199, verdicts


@pytest.mark.slow
def test_lifo_with_steps_3_percent_shorter_wins_in_190_of_200() -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(200):
        found = orders(seed, quick=0.97).replicate(10, find_turning=False, workers=1)
        verdicts[found.verdicts["quick"]] += 1
    assert verdicts[WIN] >= 190, verdicts


# What is served.


def test_one_huge_loss_is_told_at_the_edge_and_squeezes_nobody() -> None:
    standing = held().tournament
    near, far = list(standing.differences)
    for name, mean in ((near, 0.004), (far, -0.9)):
        bounds = t_interval([mean - 0.001, mean, mean + 0.001])
        found = standing.differences[name]
        standing.differences[name] = found._replace(sampling=bounds, combined=bounds, margin=0.01)
    cut = difference_plot(standing)
    assert [note.text for note in cut.layout.annotations] == ["\u2190 -90.0 pt"]
    low, high = cut.layout.xaxis.range
    assert -1.5 < low < 0.4 < high < 1.5
    del standing.differences[far]
    assert not difference_plot(standing).layout.annotations


def test_replication_0_is_the_plain_run_and_the_others_differ() -> None:
    found, plain = held(), compare(tiny(), candidates_of([THREE]))
    assert {name: run.summary for name, run in found.runs.items()} == {
        name: run.summary for name, run in plain.runs.items()
    }
    rows = found.tournament.rounds.values["batching=chunked"]
    assert rows[0]["mean_ttft_ms"] == plain.runs["batching=chunked"].summary["mean_ttft_ms"]
    assert len({row["mean_ttft_ms"] for row in rows}) == 4


def test_auto_ends_when_all_is_settled_and_can_be_repeated_by_number() -> None:
    two = candidates_of(["scheduler.batching=chunked,static"])
    auto = compare(tiny(), two, metric="mean_ttft_ms").replicate("auto", find_turning=False)
    assert auto.rounds.stopped_by == "settled"
    again = compare(tiny(), two, metric="mean_ttft_ms").replicate(auto.rounds.num, find_turning=False)
    assert again.rounds.values == auto.rounds.values


def test_no_time_leaves_two_replications_and_says_how_to_repeat() -> None:
    found = held("auto", max_seconds=1e-9)
    assert found.tournament.rounds.num == 2
    assert (
        "Stopped by --max-seconds after 2; the same again on any machine: --replications 2." in found.text()
    )


def test_a_trace_is_cut_into_windows_or_resampled_and_keeps_its_warm_up() -> None:
    rows = "".join(f"{i * 0.5},{20 + i % 50},{1 + i % 2}\n" for i in range(1100))
    Path("t.csv").write_text("arrival,prompt,output\n" + rows)
    flags = {"workload.trace": "t.csv", "workload.time_unit": "s"}
    flags["workload.columns"] = {"arrival": "arrival", "prompt": "prompt", "output": "output"}  # type: ignore[assignment]
    base = load_scenario("tiny-cpu").with_(**flags)
    two: dict[str, Any] = {"a": {}, "b": {"scheduler.max_num_seqs": 4}}

    def told(num: int) -> str:
        found = compare(base, two)
        found.replicate(num, find_turning=False)
        return found.text()

    cut = told(2)
    assert "2 replications, each one of 2 equal windows of the trace; no warm-up left out (a trace" in cut
    assert "3 replications, each a circular block bootstrap" in told(3)
    with pytest.raises(ConfigError, match=r"has another workload\.trace than the baseline"):
        compare(base, {"a": {}, "none": {"workload.trace": None}}, replications=2)


def test_de_01_the_same_bytes_whatever_the_workers_and_the_order() -> None:
    def made(workers: int, turned: bool = False) -> Any:
        named = list(candidates_of([THREE]).items())
        found = compare(tiny(), dict(named[::-1] if turned else named), baseline="batching=chunked")
        found.replicate(3, workers=workers)
        return found

    one, two, turned = made(1), made(2), made(1, turned=True)
    assert comparison_text(one) == comparison_text(two)
    assert comparison_html(one, "t") == comparison_html(two, "t")
    assert turned.tournament.rounds.values == one.tournament.rounds.values
    assert turned.tournament.verdicts == one.tournament.verdicts
    assert turned.tournament.differences == one.tournament.differences


@pytest.mark.slow
def test_de_02_the_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    written = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        args = ("compare", "tiny-cpu", "--vary", THREE, "--replications", 3, "-o", "out")
        assert spawn(*args, cwd=folder, env={"PYTHONHASHSEED": seed}).code == 0
        written.append({p.name: p.read_bytes() for p in (folder / "out").iterdir() if p.is_file()})
    assert written[0] == written[1]


# What is told.


def test_the_command_writes_verdicts_as_text_json_latex_and_page() -> None:
    told = servetwin("compare", "tiny-cpu", "--vary", THREE, "--rate", 5, "--replications", 3, "-o", "out")
    assert told.code == 0
    assert "3 replications, requests drawn with another seed each; " in told.out
    assert "Best mean attainment: " in told.out
    data = json.loads(Path("out/compare.json").read_text())
    assert data["tournament"]["replications"] == 3
    assert set(data["tournament"]["verdicts"]) == {"batching=continuous", "batching=chunked"}
    assert all(len(rows) == 3 for rows in data["tournament"]["values"].values())
    row = data["candidates"][1]
    assert set(row["sampling_interval"]["p99_ttft_ms"]) == {"mean", "low", "high", "replications", "level"}
    assert row["difference"]["p99_ttft_ms"]["sampling_interval"]["replications"] == 3
    assert Path("out/compare.tex").read_text().count(r"\\") == 4
    page = Path("out/report.html").read_text()
    assert 'id="figure-tournament-difference"' in page
    assert load_scenario("out/winner").scheduler.batching == data["winner"].partition("=")[2]


def test_without_replications_the_command_says_what_it_said() -> None:
    told = servetwin("compare", "tiny-cpu", "--vary", THREE, "-o", "out")
    assert "replications" not in told.out
    assert "tournament" not in json.loads(Path("out/compare.json").read_text())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--replications", "1"), "replications (--replications): must be auto or 2 to 10,000, got 1"),
        (
            ("--replications", "many"),
            "replications (--replications): must be auto or 2 to 10,000, got 'many'",
        ),
        (
            ("--replications", "auto", "--max-seconds", "0"),
            "max_seconds (--max-seconds): must be > 0, got 0.0",
        ),
        (("--replications", "2", "--margin", "-1"), "margin (--margin): must be >= 0 and finite, got -1 %"),
        (("--max-seconds", "5"), "--max-seconds and --margin belong to --replications"),
    ],
)
def test_what_cannot_be_replicated_is_told(flags: tuple[str, ...], message: str) -> None:
    assert servetwin("compare", "tiny-cpu", "--vary", THREE, *flags, "-o", "out").complaint == message


def test_model_intervals_stand_beside_sampling_intervals() -> None:
    base = tiny(**{"latency.kind": "roofline", "latency.coefficients": None})
    found = compare(base, candidates_of([THREE]), metric="p99_ttft_ms", replications=3, n_model_draws=3)
    assert found.tournament is not None
    assert tables.cells(found.tournament)[0][4:7] == ["sampling", "model", "combined"]
    each = found.tournament.differences["batching=chunked"]
    assert each is not None
    assert each.model is not None
    assert each.combined.low <= min(each.sampling.low, each.model.low)
    data = json.loads(comparison_text(found))
    assert set(data["candidates"][1]["difference"]["p99_ttft_ms"]) >= {"model_interval", "sampling_interval"}


def test_a_notebook_gets_verdicts_when_it_asks() -> None:
    made = simulator.compare(tiny(), {"a": {}, "b": {"scheduler.batching": "static"}}, metric="p99_ttft_ms")
    assert made._found.tournament is None, "auto waits until it is asked for"
    assert ".verdicts serves replications" in made._repr_html_()
    assert made.verdicts == {"b": LOSS}
    assert made.frame.loc["b", "difference"] > 0
    assert made.frame.loc["a", "verdict"] == "baseline"
    served = made.replications.p99_ttft_ms.unstack(0)
    assert list(made.replications.index.names) == ["candidate", "replication"]
    assert (served.b - served.a).mean() == pytest.approx(made.frame.loc["b", "difference"])
    assert served.a[0] == made.table.loc["a", "p99_ttft_ms"]
    assert r"\toprule" in made.latex()
    assert len(made.plot("difference").data) == 1
    assert "loss" in made._repr_html_()
    with pytest.raises(ConfigError, match="verdicts: need replications"):
        _ = simulator.compare(tiny(), {"a": {}}, replications=None).verdicts


def test_se_02_hostile_names_are_shown_and_never_run() -> None:
    hostile = "</script><script>x()</script>&_%"
    made = compare(tiny(), {"a": {}, hostile: {"scheduler.max_num_seqs": 2}}, replications=2)
    assert hostile not in comparison_html(made, "t")
    assert made.tournament is not None
    assert r"\&\_\%" in tables.latex(made.tournament)
    save_comparison(made, Path("out"), "t")
