"""Model draws: the same draws for all, intervals that hold what they promise, common errors that cancel."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin

import simulator
from simulator.config.build import Policies, build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.compare import Comparison, candidates_of, compare
from simulator.experiments.compare_draws import DrawnComparison
from simulator.experiments.compare_report import comparison_html
from simulator.experiments.intervals import interval_of
from simulator.experiments.jobs import SETTINGS, numbers
from simulator.experiments.model_draws import ModelDraws, draw_models
from simulator.experiments.run_folder import load_run
from simulator.latency.drafting import WithDraftModel, with_draft_model
from simulator.latency.estimate import estimate
from simulator.latency.linear import LinearModel
from simulator.latency.profile import Errors, Profile
from simulator.latency.uncertainty import draw_deviates, drawn, error_terms

ROOFLINE = {"latency.kind": "roofline", "latency.coefficients": None, "workload.arrivals.rate": 30.0}
FOUR = "scheduler.batching=static,chunked"
NO_ERRORS = Errors(0.0, 0.0, 0.0, 0.0)
ALIKE = Errors(0.1, 0.1, 0.1, 0.1)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tiny(**changes: object) -> Scenario:
    return load_scenario("tiny-cpu").with_(**{**ROOFLINE, **changes})


@cache
def profile(errors: Errors = ALIKE) -> Profile:
    """A hand-made profile: the roofline of one CPU core in small tables, with errors that are chosen."""
    machine = build_machine(tiny())
    made = estimate(machine.hardware, machine.model)
    return replace(made, dense=made.dense[:513], head=made.head[:65], errors=errors)


def run_with(latency: Profile, **changes: object) -> Run:
    scenario = tiny(**changes)
    return run_scenario(scenario, machine=replace(build_machine(scenario), latency=latency))


def times(draws: ModelDraws, name: str = "a", metric: str = "mean_tpot_ms") -> list[float]:
    return [values[metric] for values in draws.values[name]]


# Draws of a profile.


def test_a_draw_multiplies_each_term_by_its_own_factor() -> None:
    base = profile(Errors(0.1, 0.2, 0.3, 0.4))
    made = base.drawn({"dense": 1.0, "decode": -1.0, "prefill": 2.0, "host": 0.5})
    dense, decode, prefill, host = np.exp([0.1, -0.2, 0.6, 0.2])
    assert made.dense == pytest.approx(base.dense * dense)
    assert made.head == pytest.approx(base.head * dense)
    assert made.decode.seconds == pytest.approx(base.decode.seconds * decode)
    assert list(made.prefill) == pytest.approx([term * prefill for term in base.prefill])
    assert list(made.host) == pytest.approx([term * host for term in base.host])
    assert (made.name, made.errors, made.reach) == (base.name, base.errors, base.reach)
    assert base.overlapped().drawn(dict.fromkeys(base.error_terms, 1.0)).overlap


def test_draws_have_median_one_and_the_stated_spread() -> None:
    errors = Errors(0.05, 0.1, 0.2, 0.3)
    draws = draw_deviates(errors._fields, 400, seed=3)
    for term, error in errors._asdict().items():
        logs = np.array([z[term] * error for z in draws])
        assert abs(np.median(logs)) < 4 * 1.25 * error / np.sqrt(400)
        assert np.std(logs) == pytest.approx(error, rel=0.15)
    columns = np.array([list(z.values()) for z in draws])
    assert abs(np.corrcoef(columns.T) - np.eye(4)).max() < 0.2, "terms err independently"


def test_more_draws_or_other_terms_keep_the_first_draws() -> None:
    few, many = draw_deviates(["dense", "host"], 3, 7), draw_deviates(["mixed", "host", "dense"], 9, 7)
    assert [{term: z[term] for term in ("dense", "host")} for z in many[:3]] == few
    assert draw_deviates(["dense"], 3, 8) != draw_deviates(["dense"], 3, 7)
    assert draw_deviates(["dense"], 3, 7, "one gpu") != draw_deviates(["dense"], 3, 7, "another")
    generator = (np.random.default_rng(5), np.random.default_rng(5))
    one, other = profile().draws(2, generator[0]), profile().draws(6, generator[1])
    assert [each.host for each in one] == [each.host for each in other[:2]]


def test_a_negative_number_of_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be >= 0, got -1"):
        profile().draws(-1)


def test_a_draft_model_errs_on_its_own() -> None:
    machine = build_machine(tiny())
    both = with_draft_model(profile(), machine.hardware, machine.model, 2)
    terms = error_terms(both)
    assert list(terms) == [*Errors._fields, *(f"draft {term}" for term in Errors._fields)]
    moved = drawn(both, dict.fromkeys(terms, 0.0) | {"draft dense": 1.0})
    assert isinstance(moved, WithDraftModel)
    assert isinstance(moved.target, Profile)
    assert moved.target.dense.tolist() == profile().dense.tolist()
    assert isinstance(moved.draft, Profile)
    assert isinstance(both.draft, Profile)
    assert moved.draft.dense[1] > both.draft.dense[1]


# Intervals.


@pytest.mark.parametrize("n", [19, 20, 39, 100])
def test_a_further_draw_is_inside_as_often_as_the_level_says(n: int) -> None:
    rng = np.random.default_rng(n)
    trials = 4000
    inside = 0
    for row in rng.standard_normal((trials, n + 1)).tolist():
        found = interval_of(row[:-1])
        assert found is not None
        inside += found.low <= row[-1] <= found.high
    assert inside / trials == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / trials))


def test_few_draws_give_all_they_span_and_say_how_little_that_holds() -> None:
    assert interval_of([5.0, 1.0, 3.0]) == (1.0, 5.0, 3, 0.5)
    assert interval_of([float(i) for i in range(9)]) == (0.0, 8.0, 9, 0.8)
    assert interval_of([1.0]) is None
    assert interval_of([0.1] * 20) == (0.1, 0.1, 20, 0.9)
    ours = interval_of([float(i * i) for i in range(25)])
    assert ours is not None
    assert ours[:2] == pytest.approx(np.quantile([i * i for i in range(25)], [0.05, 0.95], method="weibull"))


# Runs.


def test_draws_of_a_run_reproduce_and_start_alike() -> None:
    run = run_with(profile())
    made = draw_models({"a": run}, 6, seed=1)
    assert draw_models({"a": run}, 6, seed=1) == made
    assert draw_models({"a": run}, 3, seed=1).values["a"] == made.values["a"][:3]
    assert draw_models({"a": run}, 3, seed=2).values["a"] != made.values["a"][:3]
    assert len(set(times(made))) == 6


def test_workers_give_the_same_bytes() -> None:
    runs = {"a": run_with(profile()), "b": run_with(profile(), **{"scheduler.batching": "static"})}
    here, there = (draw_models(runs, 3, seed=1, workers=n) for n in (1, 2))
    assert repr(here) == repr(there)


def test_without_errors_the_interval_is_the_run_to_the_bit() -> None:
    run = run_with(profile(NO_ERRORS))
    draws = draw_models({"a": run}, 5, seed=0)
    assert {name: (each.low, each.high) for name, each in draws.intervals("a").items()} == {
        name: (value, value) for name, value in numbers(run).items()
    }


def test_what_was_asked_for_gets_no_interval() -> None:
    found = numbers(run_with(profile()))
    assert not SETTINGS & set(found)
    assert {"attainment", "p99_ttft_ms", "output_throughput", "num_preemptions", "completed"} <= set(found)


def test_policies_plan_with_the_profile_and_not_with_the_truth() -> None:
    seen: list[float] = []

    def by_price(seq: simulator.Sequence, ctx: simulator.Context) -> float:
        seen.append(ctx.step_time(simulator.Batch(1)))
        return seq.arrival

    scenario = tiny(**{"workload.num_requests": 3})
    machine = replace(build_machine(scenario), latency=profile())
    run = run_scenario(scenario, machine=machine, policies=Policies(order=by_price))
    draw_models({"a": run}, 2, seed=0, workers=1)
    assert len(set(seen)) == 1
    assert len(seen) > 3


@pytest.mark.slow
def test_coverage_a_truth_from_the_error_distribution_is_inside_in_nine_of_ten_cases() -> None:
    """100 cases, each with draws and a truth of its own; 81 to 97 hits have 99.7 % of the binomial."""
    errors = Errors(0.1, 0.1, 0.15, 0.3)
    run = run_with(profile(errors), **{"workload.num_requests": 8})
    hits = 0
    for case in range(100):
        found = draw_models({"a": run}, 19, seed=case, workers=1).interval("a", "mean_ttft_ms")
        (z,) = draw_deviates(errors._fields, 1, seed=10_000 + case)
        true = profile(errors).drawn(z)
        truth = run_scenario(run.scenario, machine=run.machine, workload=run.workload, latency=true)
        assert found is not None
        hits += found.low <= numbers(truth)["mean_ttft_ms"] <= found.high
    assert 81 <= hits <= 97


# Comparisons.


def judged(latency: Profile, metric: str = "mean_tpot_ms", k: int = 20) -> DrawnComparison:
    runs = {name: run_with(latency, **{"scheduler.batching": name}) for name in ("static", "chunked")}
    return DrawnComparison(draw_models(runs, k, seed=0), runs, "static", metric, "chunked")


def test_equal_policies_differ_by_nothing_in_any_draw() -> None:
    runs = {"one": run_with(profile()), "same": run_with(profile())}
    found = DrawnComparison(draw_models(runs, 8, seed=0), runs, "one", "p99_ttft_ms", "one")
    for metric in found.draws.intervals("same"):
        interval = found.difference("same", metric)
        assert interval is not None
        assert (interval.low, interval.high) == (0.0, 0.0)
    assert found.tally("same", "one")[2:] == (0, 8, 8)
    assert found.draws.interval("same", "p99_ttft_ms") == found.draws.interval("one", "p99_ttft_ms")


def test_an_error_common_to_all_terms_cancels_in_the_ratio() -> None:
    """Arrivals at once and no SLO: time scales as a whole, and the ratio stays."""
    runs = {
        name: run_with(
            profile(), **{"scheduler.batching": name, "workload.arrivals": {"kind": "all_at_once"}}
        )
        for name in ("static", "chunked")
    }
    factors = [0.8, 0.9, 1.1, 1.25]
    values: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for factor in factors:
        common = profile().drawn(dict.fromkeys(Errors._fields, float(np.log(factor) / 0.1)))
        for name, run in runs.items():
            values[name].append(
                numbers(
                    run_scenario(run.scenario, machine=run.machine, workload=run.workload, latency=common)
                )
            )
    sources = dict.fromkeys(runs, "x")
    found = DrawnComparison(ModelDraws(4, 0, {}, sources, values), runs, "static", "mean_e2el_ms", "chunked")
    ratio, level = found.change("chunked", "mean_e2el_ms"), found.draws.interval("chunked", "mean_e2el_ms")
    assert ratio is not None
    assert level is not None
    assert level.high / level.low == pytest.approx(1.25 / 0.8, rel=1e-6)
    assert ratio.high - ratio.low < 1e-6


def test_a_difference_is_surer_than_its_sides() -> None:
    found = judged(profile())
    sides = [found.draws.interval(name, "mean_tpot_ms") for name in ("static", "chunked")]
    apart = sides[1].low / sides[0].high - 1.0, sides[1].high / sides[0].low - 1.0  # type: ignore[union-attr]
    paired = found.change("chunked", "mean_tpot_ms")
    assert paired is not None
    assert paired.high - paired.low < 0.5 * (apart[1] - apart[0])


def test_the_tally_counts_draws_in_the_metric_s_direction() -> None:
    latencies = judged(profile(), "mean_ttft_ms").tally("chunked", "static")
    throughput = judged(profile(), "output_throughput").tally("chunked", "static")
    assert latencies == ("chunked", "static", 20, 0, 20)
    assert throughput.better == 20
    assert judged(profile(), "completed").tally("chunked", "static").equal == 20
    words = "chunked is better than static in 20 of 20 draws of the model's error"
    assert judged(profile(), "mean_ttft_ms").words() == [words]


def test_sources_of_their_own_are_drawn_independently() -> None:
    gpus = candidates_of(["hardware.gpu=a100-80gb-sxm,l40s"])
    base = load_scenario("chat-a100").with_(**{"workload.num_requests": 20})
    found = compare(base, gpus, n_model_draws=3)
    assert found.draws is not None
    assert list(found.draws.sources.values()) == [
        "a100-80gb-sxm.json on a100-80gb-sxm",
        "estimate for l40s",
    ]
    assert found.text().splitlines()[-1].startswith("Drawn independently, as their times have sources")
    same = compare(base, candidates_of(["scheduler.async_scheduling=true,false"]), n_model_draws=2)
    assert same.draws is not None
    assert len(set(same.draws.sources.values())) == 1


def test_draws_do_not_depend_on_who_else_is_compared() -> None:
    both = compare(tiny(), candidates_of([FOUR]), n_model_draws=3)
    alone = compare(tiny(), candidates_of(["scheduler.batching=chunked"]), n_model_draws=3)
    assert both.draws is not None
    assert alone.draws is not None
    assert both.draws.values["batching=chunked"] == alone.draws.values["batching=chunked"]
    single = simulator.simulate(tiny(), batching="chunked", n_model_draws=3, progress=False)
    shown = single.summary["servetwin"]["model_interval"]["p99_ttft_ms"]  # type: ignore[index]
    assert shown == alone.draws.intervals("batching=chunked")["p99_ttft_ms"].to_dict()


# Where it shows.


def compared(k: int = 5) -> Comparison:
    return compare(tiny(), candidates_of([FOUR]), metric="p99_ttft_ms", n_model_draws=k)


def test_a_comparison_shows_intervals_beside_values() -> None:
    found = compared()
    titles, rows = found.cells()
    assert titles[:5] == ["candidate", "TTFT p99 ms", "model interval", "change", "of change"]
    assert rows[0][4] == "+0.0% to +0.0%"
    assert " to " in rows[1][2]
    assert all(len(row) == len(titles) for row in rows)
    assert found.certainty() == [
        "batching=chunked is better than batching=static in 5 of 5 draws of the model's error"
    ]
    assert found.certainty()[0].replace("'", "&#x27;") in comparison_html(found, "t")
    points = compare(tiny(), candidates_of([FOUR]), n_model_draws=2).cells()[1]
    assert all(row[4].endswith(" pt") for row in points)
    assert compare(tiny(), candidates_of([FOUR])).cells()[0][2] == "change"


def test_a_notebook_has_the_intervals_as_a_frame() -> None:
    found = simulator.compare(tiny(), {"a": {}, "b": {"scheduler.batching": "static"}}, n_model_draws=3)
    row = found.intervals.loc[("b", "p99_ttft_ms")]
    assert list(row.index) == ["low", "high", "difference_low", "difference_high"]
    assert 0 < row.difference_low < row.difference_high
    assert (found.intervals.loc["a", ["difference_low", "difference_high"]] == 0).all(axis=None)
    assert "in 3 of 3 draws of the model&#x27;s error" in found._repr_html_()
    with pytest.raises(ConfigError, match="intervals: none were drawn"):
        _ = simulator.compare(tiny(), {"a": {}}).intervals


def test_compare_json_has_every_interval_and_null_for_sampling() -> None:
    servetwin(
        *("compare", "tiny-cpu", "--vary", FOUR, "--set", "latency.kind=roofline", "--model-draws", 4),
        *("--set", "latency.coefficients=null", "-o", "out", "--quiet", "--no-report"),
    )
    data = json.loads(Path("out/compare.json").read_text())
    assert data["model_draws"]["draws"] == 4
    assert data["model_draws"]["quantile_method"] == "weibull"
    assert data["model_draws"]["errors"]["estimate for cpu-1core"]["host"] == 0.3
    static, chunked = data["candidates"]
    assert static["difference"]["p99_ttft_ms"]["model_interval"]["high"] == 0.0
    found = chunked["difference"]["p99_ttft_ms"]
    assert found["value"] == chunked["p99_ttft_ms"] - static["p99_ttft_ms"]
    assert found["sampling_interval"] is chunked["sampling_interval"] is None
    assert set(chunked["model_interval"]["p99_ttft_ms"]) == {"low", "high", "draws", "level"}
    assert "seed" not in chunked["model_interval"]


def test_a_run_shows_its_intervals_and_whether_the_verdict_holds() -> None:
    args = ("--set", "latency.kind=roofline", "--set", "latency.coefficients=null")
    told = servetwin("run", "tiny-cpu", *args, "--model-draws", 3, "-o", "out")
    assert told.code == 0
    assert "Model interval, 50 %, from 3 draws of the profile's errors (dense 15 %, " in told.out
    assert "TTFT p99 ms" in told.out
    assert " Met in 3 of 3 draws of the model's error. " in told.out
    own: Any = json.loads(Path("out/summary.json").read_text())["servetwin"]
    assert own["sampling_interval"] is None
    assert own["model_draws"]["slo_met"] == 3
    assert set(own["model_interval"]["p99_ttft_ms"]) == {"low", "high", "draws", "level"}
    page = Path("out/report.html").read_text()
    assert '<section id="model-interval">' in page
    assert "sampling interval" in page
    assert "model interval" in str(simulator.load_run("out"))
    assert load_run(Path("out")).summary["servetwin"] == own


def test_without_draws_a_summary_is_what_it_was() -> None:
    servetwin("run", "tiny-cpu", "-o", "out", "--quiet")
    assert "model_interval" not in Path("out/summary.json").read_text()
    assert "model-interval" not in Path("out/report.html").read_text()


def test_a_verdict_may_flip_within_the_interval() -> None:
    limit = run_with(profile()).summary["median_ttft_ms"]
    result = simulator.simulate(
        tiny(**{"slo.ttft_ms": limit, "slo.tpot_ms": None, "slo.attainment": 0.5}),
        n_model_draws=20,
        progress=False,
        bottleneck=False,
    )
    own: Any = result.summary["servetwin"]
    assert 0 < own["model_draws"]["slo_met"] < 20
    assert f"Met in {own['model_draws']['slo_met']} of 20 draws" in own["verdict"]
    no_slo = tiny(**{"slo.ttft_ms": None, "slo.tpot_ms": None})
    bare: Any = simulator.simulate(no_slo, n_model_draws=2, progress=False, bottleneck=False).summary
    assert bare["servetwin"]["model_draws"]["slo_met"] is None
    assert bare["servetwin"]["verdict"] == "No SLO given."


def test_check_says_what_would_be_drawn() -> None:
    assert "Model draws: none, this latency model states no errors" in servetwin("check", "tiny-cpu").out
    told = servetwin("check", "chat-a100", "--num-requests", 5).out
    assert "K more such runs, shared by the cores; errors dense 10.8 %, decode" in told


# What cannot be.


@pytest.mark.parametrize("k", [-1, 1, True, 2.0, "20"])
def test_a_number_of_draws_that_cannot_be_is_told(k: Any) -> None:
    with pytest.raises(ConfigError, match=r"^n_model_draws \(--model-draws\): must be 0 or at least 2, got"):
        simulator.simulate("chat-a100", n_model_draws=k, progress=False)
    with pytest.raises(ConfigError, match="must be 0 or at least 2"):
        compare(tiny(), candidates_of([FOUR]), n_model_draws=k)


@pytest.mark.parametrize("command", [("run",), ("compare", "--vary", FOUR)])
def test_a_model_without_errors_is_refused_before_anything_runs(command: tuple[str, ...]) -> None:
    name, *rest = command
    told = servetwin(name, "tiny-cpu", *rest, "--model-draws", 5, "-o", "out")
    assert told.complaint == (
        "n_model_draws: the latency model 'linear' states no errors that could be drawn; "
        "latency.kind must be profile or roofline"
    )
    assert not Path("out").exists()
    with pytest.raises(ConfigError, match="states no errors"):
        drawn(LinearModel(0.01), {})
