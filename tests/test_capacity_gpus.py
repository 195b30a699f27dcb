"""The fewest GPUs for a load: the search, its theory, brute force, and what a user sees of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from command import servetwin
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator import FewestGpus, capacity, compare
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.capacity.gpus import find_fewest
from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_load import wanted_requests
from simulator.experiments.capacity.gpus_plots import GPUS_PLOTS
from simulator.experiments.capacity.gpus_report import gpus_html, gpus_text
from simulator.experiments.capacity.gpus_search import fewest, last_step, search_fewest
from simulator.experiments.capacity.measure import measure
from simulator.experiments.capacity.point import Point
from simulator.experiments.capacity.server import Search
from simulator.experiments.jobs import serve_all

RATE = 24.0


def quick(**changes: object) -> Scenario:
    """Tiny-cpu with short answers at a rate for several replicas."""
    keys: dict[str, object] = {
        "workload.lengths": {"kind": "uniform", "prompt": [24, 270], "output": [1, 2]},
        "workload.arrivals": {"kind": "poisson", "rate": RATE},
        "slo.ttft_ms": 400,
    }
    return load_scenario("tiny-cpu").with_(**keys | changes)


def only(found: Fewest) -> FleetAnswer:
    return next(iter(found.answers.values()))


@pytest.fixture(scope="module")
def plain() -> Fewest:
    return find_fewest(quick(**{"hardware.price_per_gpu_hour": 0.5}), max_gpus=16, replications=3, workers=1)


def searched(meets: set[int], start: int, most: int) -> dict[int, bool]:
    """Search a curve that is known exactly and return what was tested."""
    met: dict[int, bool] = {}
    for numbers in search_fewest(met, start, most):
        assert all(1 <= n <= most for n in numbers)
        assert not met.keys() & set(numbers), "nothing is served twice"
        met.update({n: n in meets for n in numbers})
    return met


@pytest.mark.parametrize("start", [1, 3, 40])
@pytest.mark.parametrize("truth", [1, 2, 3, 7, 16, 39, 40])
def test_a_monotone_curve_is_found_exactly_from_any_start(truth: int, start: int) -> None:
    met = searched(set(range(truth, 41)), start, 40)
    assert fewest(met) == truth
    assert truth == 1 or not met[truth - 1]


@few_or_many(60, 1000, meets=st.sets(st.integers(1, 24)), start=st.integers(1, 24), most=st.integers(1, 24))
def test_whatever_the_curve_the_answer_meets_and_one_less_misses(
    meets: set[int], start: int, most: int
) -> None:
    met = searched(meets, start, most)
    n = fewest(met)
    if n is None:
        assert not any(met.values())
        return
    assert n in meets
    assert n == 1 or (n - 1 in met and n - 1 not in meets) or last_step(met) is None


def test_a_number_of_the_curve_that_misses_moves_the_answer_above_it() -> None:
    """It meets from 4 on but for 5: whoever buys one more than the fewest must not be worse off."""
    met = searched({4, *range(6, 33)}, 1, 32)
    assert fewest(met) == 6
    assert met[4]


def test_a_search_that_goes_on_asks_for_nothing_twice() -> None:
    met = {n: n >= 9 for n in searched(set(range(9, 31)), 1, 30)}
    assert list(search_fewest(met, 9, 30)) == []
    none = dict.fromkeys((1, 2, 4, 5), False)
    assert list(search_fewest(none, 1, 5)) == []


def brute_force(found: Fewest, most: int) -> int:
    """Serve the same replications with 1, 2, .. replicas and return the first that meets."""
    answer = only(found)
    name = answer.name
    each = Search(answer, iter(()), found.num_replications, found.policies[name], found.machines[name])
    for n in range(1, most + 1):
        values = tuple(serve_all(each.jobs(n), 1, None, measure))
        if Point(n, values).margin(found.target, 0.02) >= 0:
            return n
    return most + 1


def test_the_answer_is_that_of_brute_force(plain: Fewest) -> None:
    assert only(plain).replicas == brute_force(plain, 16)


@pytest.mark.slow
@pytest.mark.parametrize("router", ["round_robin", "random", "power_of_two"])
@pytest.mark.parametrize("rate", [5.0, 40.0])
def test_the_answer_is_that_of_brute_force_for_any_router(router: str, rate: float) -> None:
    keys = {"cluster": {"router": router}, "workload.arrivals.rate": rate}
    found = find_fewest(quick(**keys), max_gpus=24, replications=3, workers=1)
    assert only(found).replicas == brute_force(found, 24)


def one_server(rate: float, limit_s: float, router: str) -> Scenario:
    """One seat a replica, exponential prompts of one second on average, one token of output."""
    return load_scenario("chat-a100").with_(
        **{
            "model.max_model_len": 131_072,
            "kv.num_gpu_blocks_override": 20_000,
            "kv.enable_prefix_caching": False,
            "scheduler.max_num_seqs": 1,
            "scheduler.max_num_batched_tokens": 131_072,
            "latency.kind": "linear",
            "latency.coefficients": {"constant": 0.0, "per_token": 2e-4},
            "workload.arrivals": {"kind": "poisson", "rate": rate},
            "workload.lengths": {"kind": "exponential", "prompt": 5000, "output": 1},
            "workload.num_requests": 500,
            "slo.tpot_ms": None,
            "slo.ttft_ms": 1e3 * limit_s,
            "cluster": {"router": router},
        }
    )


def within(c: int, load: float, limit: float) -> float:
    """P(T <= limit) of M/M/c with mean service 1: Erlang's C and an exponential wait (Kleinrock, 1975)."""
    if load >= c:
        return 0.0
    last = load**c / math.factorial(c) * c / (c - load)
    wait = last / (sum(load**k / math.factorial(k) for k in range(c)) + last)
    rate = c - load
    if abs(rate - 1) < 1e-9:
        return 1 - math.exp(-limit) * (1 + wait * limit)
    late = (1 - wait) * math.exp(-limit)
    return 1 - late - wait * (rate * math.exp(-limit) - math.exp(-rate * limit)) / (rate - 1)


def test_the_fewest_of_a_random_split_are_those_of_theory() -> None:
    """Each of n replicas is M/M/1 at rate / n: 90 % within t hold up to mu - ln(10) / t = 0.7 a replica."""
    limit = math.log(10) / 0.3
    split, shared = (
        only(find_fewest(one_server(3.0, limit, name), attainment=0.9, max_gpus=9, replications=4, workers=1))
        for name in ("random", "least_outstanding")
    )
    assert split.replicas == math.ceil(3.0 / 0.7) == 5
    assert split.surely == 5
    common = next(c for c in range(1, 9) if within(c, 3.0, limit) >= 0.9)
    assert shared.replicas is not None
    assert common <= shared.replicas <= split.replicas, "one queue for all is best, blind routing worst"


def test_unlike_gpus_at_one_price_and_with_times_of_two_sources_are_pointed_out() -> None:
    keys = {"latency.kind": "roofline", "latency.coefficients": None, "hardware.price_per_gpu_hour": 2.0}
    vary = {gpu: {"hardware.gpu": gpu} for gpu in ("a100-80gb-sxm", "h100-80gb-sxm")}
    found = find_fewest(quick(**keys), vary, max_gpus=4, replications=1, workers=1)
    told = str(FewestGpus(found))
    assert "step times come from different sources" in told
    assert "all have the same hardware.price_per_gpu_hour" in told
    assert found.best == list(vary), "one is enough of either"


def test_every_number_of_replicas_serves_the_same_requests(plain: Fewest) -> None:
    answer = only(plain)
    assert answer.loads.workload(1, 2) is answer.loads.workload(7, 2)
    assert answer.loads.replica(3, 1).seed == answer.loads.replica(4, 1).seed


def test_the_winner_runs_as_it_was_found(plain: Fewest) -> None:
    answer = only(plain)
    assert answer.at is not None
    assert answer.scenario is not None
    assert measure(run_scenario(answer.scenario)) == answer.at.values[0]
    assert answer.scenario.cluster is not None
    assert answer.scenario.cluster.router == "least_outstanding"


def test_the_price_is_that_of_all_gpus(plain: Fewest) -> None:
    answer = only(plain)
    assert answer.replicas is not None
    assert answer.price == pytest.approx(0.5 * answer.replicas)
    assert plain.rule == "cheapest"
    cost = answer.cost(answer.replicas)
    values = answer.tested[answer.replicas].values
    seconds, tokens = (sum(each[key] for each in values) for key in ("duration", "output_tokens"))
    assert cost is not None
    assert cost.value == pytest.approx(answer.price / 3600 * seconds / tokens * 1e6)


def test_short_runs_are_drawn_longer(plain: Fewest) -> None:
    """A request may stay 0.4 s until its first token: 24 * 0.4 / (0.02 * 0.95) requests, 500 at least."""
    answer = only(plain)
    have = plain.base.workload.num_requests
    assert have >= wanted_requests(answer.loads.base, answer.at, plain.target) >= 500
    assert "instead of 40" in plain.notes[0]


def test_a_run_lasts_many_stays_of_a_request() -> None:
    """20 stays of 5 s at 100 requests/s, if more requests make a longer run and no higher load."""
    at = Point(1.0, ({"injected": 1000.0, "span": 10.0, "stay": 5.0},))
    slow = quick(**{"slo.ttft_ms": 10})
    assert wanted_requests(slow, at, 0.95) == 20 * 100 * 5
    batch = slow.with_(**{"workload.arrivals": {"kind": "all_at_once"}})
    assert wanted_requests(batch, at, 0.95) == 500


@pytest.mark.slow
def test_neither_workers_nor_the_order_of_candidates_change_an_answer() -> None:
    vary = {"a": {}, "b": {"cluster.router": "random"}}
    few: dict[str, Any] = {"max_gpus": 12, "replications": 2}
    one = find_fewest(quick(), vary, workers=1, **few)
    two = find_fewest(quick(), vary, workers=2, **few)
    turned = find_fewest(quick(), {"b": vary["b"], "a": {}}, workers=1, **few)
    assert gpus_text(one) == gpus_text(two)
    assert [turned.answers[name].tested for name in vary] == [one.answers[name].tested for name in vary]


def test_candidates_are_ranked_by_price_or_else_by_gpus_and_ties_are_named() -> None:
    seats = {"latency.coefficients": {"constant": 0.03, "per_token": 0.0012}}
    dear = {"hardware.price_per_gpu_hour": 9.0}
    cheap = {**seats, "hardware.price_per_gpu_hour": 1.0}
    few: dict[str, Any] = {"max_gpus": 16, "replications": 1, "workers": 1}
    unpriced = find_fewest(quick(), {"few": seats, "many": {}, "same": {}}, **few)
    assert (unpriced.rule, unpriced.best) == ("fewest GPUs", ["many", "same"])
    assert "just as good: same" in str(FewestGpus(unpriced))
    half = find_fewest(quick(), {"cheap": cheap, "many": {}}, **few)
    assert (half.rule, half.winner) == ("fewest GPUs", "many")
    assert "not all have a price" in half.why_rule
    priced = find_fewest(quick(), {"cheap": cheap, "dear": dear}, **few)
    assert (priced.rule, priced.winner) == ("cheapest", "cheap")


def test_loads_may_be_varied_and_that_is_said() -> None:
    vary = ["workload.arrivals.rate=6,24"]
    found = capacity(quick(), vary, max_gpus=16, replications=2, progress=False, workers=1)
    low, high = found.table.replicas
    assert low < high
    assert "different loads" in str(found)


def test_clients_of_a_closed_loop_and_a_batch_get_gpus_too() -> None:
    few: dict[str, Any] = {"max_gpus": 32, "replications": 2, "workers": 1}
    clients = {"kind": "closed_loop", "clients": 24, "think_s": 0.5}
    closed = find_fewest(quick(**{"workload.arrivals": clients}), **few)
    assert "24 clients" in str(FewestGpus(closed))
    assert only(closed).outcome == "found"
    batch = quick(**{"workload.arrivals": {"kind": "all_at_once"}, "slo.ttft_ms": 4000})
    at_once = find_fewest(batch, **few)
    assert at_once.base.workload.num_requests == 40, "more requests were another load"
    assert only(at_once).replicas == brute_force(at_once, 32)


def test_model_draws_give_a_distribution_of_gpus() -> None:
    keys = {"latency.kind": "roofline", "latency.coefficients": None, "slo.ttft_ms": 400}
    keys["workload.arrivals"] = {"kind": "poisson", "rate": 30.0}
    found = find_fewest(quick(**keys), max_gpus=12, replications=1, n_model_draws=6, workers=1)
    answer = only(found)
    assert answer.replicas is not None
    assert len(answer.drawn) == sum(answer.counts.values()) == 6
    assert answer.enough == sum(n <= answer.replicas for n in answer.drawn) / 6
    assert len(answer.counts) > 1, "the roofline's error is large enough to matter"
    assert "of the draws" in str(FewestGpus(found))


def test_more_than_there_are_is_told_with_what_is_missed() -> None:
    found = capacity(
        "tiny-cpu", set={"workload.arrivals.rate": 40.0}, max_gpus=2, replications=1, progress=False
    )
    assert (found.gpus, found.scenario, found.winner) == (None, None, None)
    assert "2 GPUs are too few for 40 requests/s" in str(found)
    assert "TTFT within its limit" in str(found)


def test_one_replica_that_is_enough_needs_no_lower_neighbour() -> None:
    found = capacity(
        "tiny-cpu", set={"workload.arrivals.rate": 1.0}, max_gpus=3, replications=2, progress=False
    )
    assert (found.gpus, found.replicas) == (1, 1)
    assert "1 GPU serves 1 requests/s" in str(found)


TWO_KINDS = [{"count": 1}, {"count": 1, "set": {"scheduler.max_num_seqs": 4}}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_gpus": 0}, "--max-gpus: must be 1 to 4,096, got 0"),
        ({"max_gpus": -2}, "--max-gpus: must be 1 to 4,096"),
        ({"max_gpus": 10**30}, "--max-gpus: must be 1 to 4,096"),
        ({"max_gpus": True}, "--max-gpus: must be 1 to 4,096"),
        ({"max_gpus": 2.5}, "--max-gpus: must be 1 to 4,096"),
        ({"rates": (1.0, 2.0)}, "--rates has no meaning"),
        ({"tolerance": 0.02}, "--tolerance has no meaning"),
        ({"set": {"slo.ttft_ms": None, "slo.tpot_ms": None}}, "no SLO"),
        ({"set": {"cluster": {"replicas": TWO_KINDS}}}, "leave out cluster.replicas with kinds"),
        ({"set": {"cluster": {"autoscaler": {"max_replicas": 4}}}}, "leave out cluster.autoscaler"),
        ({"set": {"cluster": {"outages": [{"replica": 0, "at_s": 1}]}}}, "leave out cluster.outages"),
        ({"vary": ["cluster.replicas=1,2"]}, "cluster.replicas cannot be varied"),
        ({"vary": ["seed=1,2"]}, "seed cannot be varied"),
        ({"vary": {"a": {"cluster.autoscaler": {"max_replicas": 4}}}}, "leave out cluster.autoscaler"),
        ({"vary": ["cluster.router=randon,random"]}, "did you mean random"),
        ({"n_model_draws": 4}, "states no errors"),
    ],
)
def test_what_cannot_be_counted_is_told_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        capacity("tiny-cpu", **{"max_gpus": 4, "progress": False, **options})
    assert "\n" not in str(caught.value)


def test_a_replica_with_more_gpus_than_there_are_is_told() -> None:
    vary = ["parallel.tensor_parallel_size=2,4"]
    with pytest.raises(ConfigError, match=r"--max-gpus 3: tensor_parallel_size=4: one replica has 4 GPUs"):
        capacity("chat-a100", vary, max_gpus=3, progress=False)


@pytest.mark.parametrize("key", ["workload.arrivals.rate", "workload.rate_scale", "seed"])
def test_the_search_for_a_rate_refuses_to_vary_what_it_sets(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} cannot be varied"):
        capacity("tiny-cpu", [f"{key}=1,2"], progress=False)


def test_compare_refuses_what_would_mean_nothing() -> None:
    none = load_scenario("tiny-cpu").with_(**{"slo.ttft_ms": None, "slo.tpot_ms": None})
    vary: dict[str, dict[str, object]] = {"a": {}, "b": {"scheduler.max_num_seqs": 2}}
    with pytest.raises(ConfigError, match="a has no SLO"):
        compare(none, vary, metric="attainment", replications=None)
    with pytest.raises(ConfigError, match="b has no SLO"):
        compare("tiny-cpu", {"a": {}, "b": {"slo.ttft_ms": None, "slo.tpot_ms": None}}, replications=None)
    seeds: dict[str, dict[str, object]] = {"a": {"seed": 1}, "b": {"seed": 2}}
    with pytest.raises(ConfigError, match="every replication has a seed of its own"):
        compare("tiny-cpu", seeds, replications=2)
    made = compare("tiny-cpu", seeds)
    with pytest.raises(ConfigError, match="every replication has a seed of its own"):
        _ = made.verdicts


def test_the_command_writes_a_folder_whose_winner_is_a_fleet(tmp_path: Path) -> None:
    flags = ("--max-gpus", 8, "--replications", 1, "--json", "-o", tmp_path)
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(quick().to_yaml())
    done = servetwin("capacity", scenario, *flags, "--vary", "cluster.router=random,least_outstanding")
    assert done.code == 0
    summary = json.loads(done.out)
    assert json.loads((tmp_path / "capacity.json").read_text()) == summary
    assert summary["question"] == "fewest_gpus"
    won = load_scenario(tmp_path / "winner" / "scenario.yaml")
    assert won.cluster is not None
    assert won.cluster.num_replicas == summary["winner_gpus"]
    assert won.cluster.router == "least_outstanding"
    page = (tmp_path / "report.html").read_text()
    assert 'id="figure-gpus-goodput"' in page
    assert 'id="figure-gpus-cost"' not in page  # no price
    assert 'id="figure-gpus-model"' not in page  # no draws
    again = find_fewest(won, max_gpus=8, replications=1, workers=1)
    assert only(again).gpus == summary["winner_gpus"]


def test_se_02_hostile_names_are_shown_and_never_run() -> None:
    evil = "<script>alert(1)</script>"
    vary = {evil: {}, "other": {"scheduler.max_num_seqs": 4}}
    found = find_fewest(quick(name=evil), vary, max_gpus=6, replications=1, workers=1)
    page = gpus_html(found)
    assert evil not in page
    assert "&lt;script&gt;" in page


def test_every_figure_is_drawn_and_the_answer_marked(plain: Fewest) -> None:
    for draw in GPUS_PLOTS.values():
        fig = draw(plain)
        assert fig.layout.xaxis.title.text or fig.layout.annotations
    assert any(shape.x0 == only(plain).gpus for shape in GPUS_PLOTS["goodput"](plain).layout.shapes)


def test_a_notebook_gets_frames(plain: Fewest) -> None:
    found = FewestGpus(plain)
    assert found.table.loc["scenario", "gpus"] == found.gpus
    curve = found.curve.loc["scenario"]
    assert curve.index.is_monotonic_increasing
    assert curve.meets.loc[found.replicas]
    assert not curve.meets.loc[found.replicas - 1]
    assert "requests/s" in found._repr_html_()
    with pytest.raises(ConfigError, match="did you mean"):
        found.plot("godput")
