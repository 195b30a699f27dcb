"""Capacity: the search, its theory, its agreement with a dense sweep, and what a user sees of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import servetwin

from simulator import capacity
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.capacity.answer import Answer
from simulator.experiments.capacity.crossing import crossing
from simulator.experiments.capacity.find import find_capacity
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.knee import knee
from simulator.experiments.capacity.measure import measure
from simulator.experiments.capacity.plots import CAPACITY_PLOTS
from simulator.experiments.capacity.point import Point, ratio
from simulator.experiments.capacity.report import capacity_html, capacity_text
from simulator.experiments.capacity.search import CLOSE, first_edge, search
from simulator.experiments.capacity.server import Search
from simulator.experiments.jobs import serve_all

TOLERANCE = 0.02


def tiny(**changes: object) -> Scenario:
    return load_scenario("tiny-cpu").with_(**changes)


def quick(**changes: object) -> Scenario:
    """Tiny-cpu with short answers, for what does not depend on them."""
    lengths = {"kind": "uniform", "prompt": [24, 270], "output": [1, 2]}
    return tiny(**{"workload.lengths": lengths, "slo.ttft_ms": 400, **changes})


def only(found: Found) -> Answer:
    return next(iter(found.answers.values()))


@pytest.fixture(scope="module")
def plain() -> Found:
    """Tiny-cpu as it is, three replications."""
    return find_capacity(tiny(**{"hardware.price_per_gpu_hour": 0.1}), replications=3, workers=1)


def searched(meets: Callable[[float], bool], **options: Any) -> dict[float, bool]:
    """Search a curve that is known exactly and return what was tested."""
    met: dict[float, bool] = {}
    for rates in search(met, options.pop("start", 5.0), TOLERANCE, **options):
        met.update({rate: meets(rate) for rate in rates})
    return met


@pytest.mark.parametrize("truth", [0.02, 0.9, 4.99, 5.0, 7.3, 400.0])
def test_a_monotone_curve_is_found_within_tolerance_from_any_start(truth: float) -> None:
    edge = first_edge(searched(lambda rate: rate <= truth))
    assert edge is not None
    assert edge.met <= truth < edge.missed <= edge.met * (1 + TOLERANCE)


def test_a_dip_that_the_curve_finds_moves_the_answer_below_it() -> None:
    """It misses between 4.0 and 4.6, and for good from 8: every rate tested below the answer meets."""
    met = searched(lambda rate: rate < 4.0 or 4.6 < rate < 8.0, start=1.0)
    edge = first_edge(met)
    assert edge is not None
    assert edge.met < 4.0 <= edge.missed <= edge.met * (1 + TOLERANCE)
    assert any(met[rate] for rate in met if rate > edge.missed)


def test_rates_that_miss_at_the_low_end_do_not_hide_the_capacity() -> None:
    edge = first_edge(searched(lambda rate: 1.0 < rate < 6.0, low=0.1, high=20.0))
    assert edge is not None
    assert edge.met < 6.0 <= edge.missed <= edge.met * (1 + TOLERANCE)


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("given", [{}, {"low": 1.0, "high": 9.0}])
def test_a_search_without_an_answer_ends(always: bool, given: dict[str, float]) -> None:
    met = searched(lambda rate: always, **given)
    assert first_edge(met) is None
    assert set(met.values()) == {always}
    assert not given or (min(met), max(met)) == (1.0, 9.0)


def test_a_range_is_kept() -> None:
    assert all(2.0 <= rate <= 9.0 for rate in searched(lambda rate: rate < 5.0, low=2.0, high=9.0))


def test_crossings_lie_on_the_line_between_two_rates() -> None:
    assert crossing([1, 2, 4], [0.3, 0.1, -0.3]) == 2.5
    assert crossing([1, 2, 4], [-0.1, 0.1, -0.1]) == 3.0
    assert crossing([1, 2], [0.1, 0.1]) == 2
    assert crossing([1, 2], [-0.1, -0.1]) == 1


def test_shares_are_ratios_of_sums_with_an_interval_of_student() -> None:
    """Equal weights: the textbook's t-interval; a busy window counts by its requests."""
    found = ratio([90, 80, 100], [100, 100, 100])
    assert found is not None
    assert found.value == pytest.approx(0.9)
    assert found.high == pytest.approx(0.9 + 4.302653 * 0.1 / math.sqrt(3))
    busy = ratio([100, 500], [100, 1000])
    assert busy is not None
    assert busy.value == pytest.approx(600 / 1100)


def test_the_knee_is_where_goodput_leaves_its_line() -> None:
    assert knee([1, 2, 3, 4, 5], [1, 2, 2.6, 2.9, 3.0]) == 3
    assert knee([1, 2, 4], [1, 2, 0.5]) == 2
    assert knee([1, 2], [0, 0]) is None


def one_server(**changes: object) -> Scenario:
    """M/M/1: one seat, exponential prompts of one second on average, one token of output."""
    return load_scenario("chat-a100").with_(
        **{
            "model.max_model_len": 131_072,
            "kv.num_gpu_blocks_override": 20_000,
            "kv.enable_prefix_caching": False,
            "scheduler.max_num_seqs": 1,
            "scheduler.max_num_batched_tokens": 131_072,
            "latency.kind": "linear",
            "latency.coefficients": {"constant": 0.0, "per_token": 2e-4},
            "workload.arrivals": {"kind": "poisson", "rate": 0.5},
            "workload.lengths": {"kind": "exponential", "prompt": 5000, "output": 1},
            "workload.num_requests": 2000,
            "slo.tpot_ms": None,
            **changes,
        }
    )


@pytest.mark.parametrize(("n", "width"), [(500, 0.25), pytest.param(4000, 0.08, marks=pytest.mark.slow)])
def test_the_capacity_of_mm1_is_that_of_theory(n: int, width: float) -> None:
    """P(T <= t) = 1 - exp(-(mu - rate) t), so 90 % within t hold up to mu - ln(10) / t."""
    limit = math.log(10) / 0.3
    scenario = one_server(**{"slo.ttft_ms": 1e3 * limit, "workload.num_requests": n})
    answer = only(find_capacity(scenario, attainment=0.9, rates=(0.6, 0.8), workers=1))
    assert answer.interval is not None
    _, low, high = answer.interval
    assert low is not None
    assert high is not None
    assert low < 0.7 < high
    assert high - low < width


def test_an_slo_that_a_growing_queue_meets_does_not_flatter_an_overloaded_server() -> None:
    """TPOT of one token is always met: only the queue tells that the server serves one a second."""
    keys: dict[str, object] = {"slo.ttft_ms": None, "slo.tpot_ms": 50.0, "workload.num_requests": 1000}
    keys["workload.lengths"] = {"kind": "constant", "prompt": 5000, "output": 1}  # M/D/1
    found = find_capacity(one_server(**keys), rates=(0.7, 1.5), replications=5, tolerance=0.05, workers=1)
    answer = only(found)
    assert answer.rate == pytest.approx(1.0, abs=0.08)
    missed = answer.points[-1]
    assert missed.attainment.value == 1.0
    assert missed.growth == pytest.approx(1 - 1 / missed.rate, abs=0.05)
    assert "queue grows" in answer.why(missed)


def test_short_runs_are_drawn_longer(plain: Found) -> None:
    """Forty requests drain before they show an overload: the answer would be 5.4 requests/s."""
    assert plain.base.workload.num_requests == 500
    assert "instead of 40" in plain.notes[0]
    rate = only(plain).rate
    assert rate is not None
    assert rate < 4.8


def sweep(found: Found, rates: list[float]) -> list[Point]:
    """Serve the same replications at each of these rates."""
    answer = only(found)
    name = answer.name
    each = Search(answer, iter(()), found.num_replications, found.policies[name], found.machines[name])
    return [Point(rate, tuple(serve_all(each.jobs(rate), 1, None, measure))) for rate in rates]


def check_against_sweep(found: Found) -> None:
    answer = only(found)
    assert answer.rate is not None
    rates = [answer.rate * (1 + TOLERANCE / 2 * i) for i in range(-8, 9)]
    met = [point.margin(found.target, TOLERANCE) >= 0 for point in sweep(found, rates)]
    first = met.index(False)
    assert all(met[:first])
    assert rates[first - 1] / (1 + TOLERANCE) <= answer.rate <= rates[first]


def test_bisection_agrees_with_a_dense_sweep(plain: Found) -> None:
    check_against_sweep(plain)


@pytest.mark.slow
def test_bisection_agrees_with_a_dense_sweep_on_chat() -> None:
    check_against_sweep(find_capacity(load_scenario("chat-a100"), replications=4))


def test_every_rate_serves_the_same_requests_closer_together(plain: Found) -> None:
    loads = only(plain).loads
    slow, fast = loads.workload(1.0, 2), loads.workload(4.0, 2)
    assert slow.num_prompt.tolist() == fast.num_prompt.tolist()
    assert (slow.arrival / fast.arrival).tolist() == pytest.approx([4.0] * len(slow))


def test_the_winner_runs_as_it_was_found(plain: Found) -> None:
    """Replication 0 at the capacity is a plain run of the winner."""
    answer = only(plain)
    assert answer.at is not None
    assert answer.scenario is not None
    assert measure(run_scenario(answer.scenario)) == answer.at.values[0]


def test_a_batch_that_waits_to_fill_misses_at_low_rates() -> None:
    """Eight must come, or 5 s pass: at 0.3 requests/s TTFT is 5 s, at 2.5 the batch fills in time."""
    keys = {
        "scheduler.batching": "static",
        "scheduler.min_batch": 8,
        "scheduler.max_wait_ms": 5000,
        "slo.ttft_ms": 4500,
        "slo.attainment": 0.8,
    }
    answer = only(find_capacity(tiny(**keys), rates=(0.3, 20.0), replications=1, workers=1))
    assert answer.rate is not None
    assert answer.missed_below
    assert all(answer.met[r] for r in answer.met if max(answer.missed_below) < r <= answer.rate)


def test_candidates_get_paired_differences_and_a_winner() -> None:
    vary = {"seats": {}, "same": {}, "few": {"scheduler.max_num_seqs": 1}}
    found = find_capacity(quick(), vary, rates=(2, 9), tolerance=0.1, replications=3, workers=1)
    assert [found.verdict(name) for name in vary] == ["baseline", "identical", "lower"]
    assert found.winner == "seats"
    apart = found.difference("few")
    assert apart is not None
    assert apart.high is not None
    assert apart.high < 0


@pytest.mark.slow
def test_neither_workers_nor_the_order_of_candidates_change_an_answer() -> None:
    vary = {"a": {}, "b": {"scheduler.max_num_seqs": 1}}
    few = {"rates": (2.0, 9.0), "tolerance": 0.5, "replications": 2}
    one = find_capacity(quick(), vary, workers=1, **few)  # type: ignore[arg-type]
    two = find_capacity(quick(), vary, workers=2, **few)  # type: ignore[arg-type]
    turned = find_capacity(quick(), {"b": vary["b"], "a": {}}, workers=1, **few)  # type: ignore[arg-type]
    assert capacity_text(one) == capacity_text(two)
    assert [turned.answers[name].tested for name in vary] == [one.answers[name].tested for name in vary]


def test_model_draws_give_an_interval_of_the_rate_and_of_differences() -> None:
    keys = {"latency.kind": "roofline", "latency.coefficients": None}
    vary = {"seats": {}, "few": {"scheduler.max_num_seqs": 1}}
    found = find_capacity(quick(**keys), vary, replications=1, n_model_draws=3, tolerance=0.2, workers=1)
    answer, moved = found.answers["seats"], found.model_difference("few")
    assert answer.model_interval is not None
    assert answer.rate is not None
    assert answer.model_interval.low < answer.rate < answer.model_interval.high
    assert moved is not None
    assert moved.draws == 3


def test_a_trace_is_cut_or_resampled_and_compressed(tmp_path: Path) -> None:
    rows = "\n".join(f"{i * 0.5},{40 + i % 90},{8 + i % 20}" for i in range(700))
    trace = tmp_path / "t.csv"
    trace.write_text(f"arrival,prompt,output\n{rows}\n")
    keys = {"workload.trace": str(trace), "workload.time_unit": "s", "slo.ttft_ms": 400}
    keys["workload.columns"] = {"arrival": "arrival", "prompt": "prompt", "output": "output"}  # type: ignore[assignment]
    found = find_capacity(tiny(**keys), replications=2, tolerance=0.1, workers=1)
    answer = only(found)
    assert found.replications.kind == "bootstrap"
    assert answer.loads.own_rate == pytest.approx(2.0, rel=0.01)
    assert answer.rate is not None
    slow, fast = answer.loads.workload(1.0, 1), answer.loads.workload(2.0, 1)
    assert (slow.arrival[1:] / fast.arrival[1:]).tolist() == pytest.approx([2.0] * (len(slow) - 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"set": {"slo.ttft_ms": None, "slo.tpot_ms": None}}, "no SLO"),
        ({"set": {"workload.arrivals": {"kind": "closed_loop", "clients": 4}}}, "closed_loop"),
        ({"attainment": 99}, "--attainment"),
        ({"rates": (5.0, 1.0)}, "--rates"),
        ({"tolerance": 0.0}, "--tolerance"),
        ({"replications": 0}, "--replications"),
        ({"n_model_draws": 1}, "n_model_draws"),
        ({"n_model_draws": 4}, "states no errors"),
        ({"vary": ["scheduler.max_num_seqs"]}, "--vary"),
        ({"vary": {"a": {"scheduler.max_num_seq": 3}}}, "max_num_seqs"),
    ],
)
def test_what_cannot_be_searched_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        capacity("tiny-cpu", progress=False, **options)


def test_an_slo_that_no_rate_meets_is_told_with_the_least_that_there_is() -> None:
    found = capacity("tiny-cpu", slo={"ttft": 5.0}, replications=1, progress=False, workers=1)
    assert found.rate is None
    assert found.scenario is None
    assert "No rate tested meets TTFT <= 5 ms" in str(found)
    assert "the least TTFT is" in str(found)


def test_an_slo_that_every_rate_meets_is_told() -> None:
    found = capacity("tiny-cpu", rates=(0.5, 1.0), replications=2, progress=False, workers=1)
    assert found.rate == 1.0
    assert found.interval is None
    assert "At least 1 requests/s" in str(found)


@pytest.mark.parametrize("text", ["5", "1:", "a:b", "::", "nan:1", "0:1", "1:inf", "2:1", "1e300:1e308"])
def test_a_range_that_is_none_is_told_in_one_line(text: str) -> None:
    assert "--rates" in servetwin("capacity", "tiny-cpu", "--rates", text).complaint


@pytest.mark.parametrize("num", [0, -1, 10**9])
def test_a_number_of_replications_that_never_ends_is_told(num: int) -> None:
    found = servetwin("capacity", "tiny-cpu", "--replications", num).complaint
    assert found == f"--replications: must be 1 to 10,000, got {num}"


def test_the_command_writes_a_folder_whose_winner_is_a_scenario(tmp_path: Path) -> None:
    flags = ("--rates", "2:9", "--tolerance", 0.5, "--replications", 1, "--json", "-o", tmp_path)
    done = servetwin("capacity", "tiny-cpu", *flags, "--vary", "scheduler.max_num_seqs=4,12")
    assert done.code == 0
    summary = json.loads(done.out)
    assert json.loads((tmp_path / "capacity.json").read_text()) == summary
    assert summary["winner"] == "max_num_seqs=12"
    won = load_scenario(tmp_path / "winner" / "scenario.yaml")
    assert won.scheduler.max_num_seqs == 12
    assert won.workload.arrivals["rate"] == summary["winner_capacity"]
    assert "Wrote" in done.err
    page = (tmp_path / "report.html").read_text()
    assert 'id="figure-capacity-difference"' in page
    assert 'id="figure-capacity-cost"' not in page  # no price


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    flags = ("--rates", "2:9", "--tolerance", 0.5, "--replications", 1, "-o", tmp_path)
    assert "holds a run" in servetwin("capacity", "tiny-cpu", *flags).complaint


def test_se_02_hostile_names_are_shown_and_never_run() -> None:
    evil = "<script>alert(1)</script>"
    vary = {evil: {}, "other": {"scheduler.max_num_seqs": 4}}
    found = find_capacity(quick(name=evil), vary, rates=(2, 9), tolerance=0.5, replications=1, workers=1)
    assert evil not in capacity_html(found)


def test_every_figure_is_drawn_and_the_answer_marked(plain: Found) -> None:
    for draw in CAPACITY_PLOTS.values():
        fig = draw(plain)
        assert fig.layout.xaxis.title.text or fig.layout.annotations
    fig = CAPACITY_PLOTS["goodput"](plain)
    assert any(shape.x0 == only(plain).rate for shape in fig.layout.shapes)
    assert CLOSE > TOLERANCE  # the curve does not test what the bisection did


def test_a_notebook_gets_frames(plain: Found) -> None:
    from simulator.experiments.capacity.result import Capacity

    found = Capacity(plain)
    assert found.table.loc["scenario", "rate"] == found.rate
    assert found.interval is not None
    curve = found.curve.loc["scenario"]
    assert curve.index.is_monotonic_increasing
    assert (curve.attainment.loc[: found.rate] >= plain.target).all()
    assert "requests/s" in found._repr_html_()
    with pytest.raises(ConfigError, match="did you mean"):
        found.plot("godput")
