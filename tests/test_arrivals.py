"""Arrival processes: their laws, their edges, and that a seed fixes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.workload import ARRIVALS
from simulator.workload.arrivals import (
    deterministic,
    gamma,
    invert_rate,
    mmpp,
    poisson,
    profile,
    ramp,
)
from simulator.workload.tables import load_table, table_names

EXAMPLES: dict[str, dict[str, object]] = {
    "poisson": {"rate": 10.0},
    "gamma": {"rate": 10.0, "burstiness": 0.5},
    "deterministic": {"rate": 10.0},
    "all_at_once": {},
    "closed_loop": {"clients": 4, "think_s": 1.5},
    "ramp": {"points": [[0, 1], [60, 20]]},
    "mmpp": {},
    "profile": {"name": "azure-conv"},
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def gaps(times: np.ndarray) -> np.ndarray:
    return np.diff(times, prepend=0.0)


@pytest.mark.parametrize("kind", ARRIVALS)
@pytest.mark.parametrize("n", [0, 1, 500])
def test_every_process_gives_n_sorted_finite_times_that_the_seed_fixes(kind: str, n: int) -> None:
    times = ARRIVALS[kind](rng(7), n, **EXAMPLES[kind])
    assert times.shape == (n,)
    assert np.isfinite(times).all()
    assert (gaps(times) >= 0).all()
    assert times.tolist() == ARRIVALS[kind](rng(7), n, **EXAMPLES[kind]).tolist()


@pytest.mark.parametrize("kind", ARRIVALS)
def test_more_requests_leave_the_first_ones_where_they_were(kind: str) -> None:
    few, many = (ARRIVALS[kind](rng(3), n, **EXAMPLES[kind]) for n in (100, 200))
    if kind != "mmpp":  # its states are drawn after the events they must last for
        assert np.allclose(few, many[:100], rtol=0, atol=1e-9)


def test_ar_01_burstiness_is_the_shape_and_cv_its_inverse_root() -> None:
    for params in ({"burstiness": 0.25}, {"cv": 2.0}):
        g = gaps(gamma(rng(1), 100_000, 10.0, **params))
        assert g.mean() == pytest.approx(0.1, abs=0.002)
        assert g.std() / g.mean() == pytest.approx(2.0, abs=0.04)
        assert (g < 1e-3).mean() == pytest.approx(0.2466, abs=0.005)
    assert gamma(rng(1), 50, 10.0, cv=2.0).tolist() == gamma(rng(1), 50, 10.0, burstiness=0.25).tolist()
    assert (gaps(poisson(rng(1), 100_000, 10.0)) < 1e-3).mean() == pytest.approx(0.00995, abs=0.001)


def test_ar_01_infinite_burstiness_is_constant_and_infinite_rate_is_all_at_once() -> None:
    assert gaps(gamma(rng(), 5, 10.0, burstiness=math.inf)) == pytest.approx([0.1] * 5)
    assert gaps(gamma(rng(), 5, 10.0, cv=0.0)) == pytest.approx([0.1] * 5)
    for times in (
        poisson(rng(), 3, math.inf),
        gamma(rng(), 3, math.inf, cv=2),
        deterministic(rng(), 3, math.inf),
    ):
        assert times.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("gamma", {"rate": 10, "burstiness": 0}, "burstiness: must be > 0, got 0"),
        ("gamma", {"rate": 10, "burstiness": -1}, "burstiness"),
        ("gamma", {"rate": 10, "cv": -1}, "cv: must be > 0"),
        ("gamma", {"rate": 10}, "either burstiness or cv"),
        ("gamma", {"rate": 10, "cv": 1, "burstiness": 1}, "either burstiness or cv"),
        ("poisson", {"rate": 0}, "rate: must be > 0, got 0"),
        ("poisson", {"rate": math.nan}, "rate"),
        ("deterministic", {"rate": -1}, "rate"),
        ("ramp", {"points": [[1, 1], [2, 2]]}, "start at 0"),
        ("ramp", {"points": [[0, 1], [2, 0]]}, "last rate"),
        ("ramp", {"points": [1, 2]}, "pairs"),
        ("mmpp", {"rates": [1], "dwell_s": [1]}, "length >= 2"),
        ("mmpp", {"rates": [0, 0], "dwell_s": [1, 1]}, "rates"),
        ("mmpp", {"rates": [0, 1], "dwell_s": [1, 0]}, "dwell_s"),
        ("profile", {"name": "azure-cov"}, "did you mean azure-conv"),
        ("profile", {"name": "agentic"}, "no bundled table 'agentic' of arrivals"),
        ("closed_loop", {"clients": 0}, "clients: must be a whole number >= 1, got 0"),
        ("closed_loop", {"clients": 2.5}, "clients"),
        ("closed_loop", {"clients": 2, "think_s": -1}, "think_s"),
    ],
)
def test_impossible_parameters_are_named(kind: str, params: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ARRIVALS[kind](rng(), 10, **params)


def test_ar_03_stamps_are_a_cumulative_sum_without_drift() -> None:
    assert poisson(rng(5), 10_000, 200.0)[-1] == pytest.approx(50.0, abs=1.5)
    assert deterministic(rng(), 10_000, 200.0)[-1] == pytest.approx(50.0, abs=1e-9)


def test_the_first_gap_precedes_the_first_request() -> None:
    assert deterministic(rng(), 2, 4.0).tolist() == [0.25, 0.5]


@given(
    rates=st.lists(st.floats(0.1, 50), min_size=2, max_size=6),
    events=st.lists(st.floats(0, 100), min_size=1, max_size=20),
)
def test_inverting_a_piecewise_linear_rate_recovers_the_cumulative_rate(
    rates: list[float], events: list[float]
) -> None:
    knots = np.append(np.arange(len(rates), dtype=float), 1e4)
    left, right = np.array(rates), np.array([*rates[1:], rates[-1]])
    times = invert_rate(np.sort(events), knots, left, right)
    i = np.minimum(times.astype(int), len(rates) - 1)
    x = times - knots[i]
    slope = (right - left) / np.diff(knots)
    reached = (
        np.concatenate([[0], np.cumsum(np.diff(knots) * (left + right) / 2)])[i]
        + left[i] * x
        + slope[i] * x**2 / 2
    )
    assert reached == pytest.approx(np.sort(events), abs=1e-6)


def test_a_ramp_has_the_rate_of_its_points() -> None:
    times = ramp(rng(2), 20_000, [(0, 0), (100, 20), (100, 50)])
    counts, _ = np.histogram(times, [0, 50, 100, 200])
    assert counts == pytest.approx([250, 750, 5000], rel=0.12)


def test_a_modulated_process_spends_its_time_as_told() -> None:
    runs = [mmpp(rng(seed), 50_000, [20.0, 0.0], [10.0, 30.0]) for seed in range(20)]
    time = sum(run[-1] for run in runs)
    assert 20 * 50_000 / time == pytest.approx(5.0, rel=0.05)  # 5,000 cycles: a standard error of 2 %
    long = sum((gaps(run) > 5).sum() for run in runs)
    assert long == pytest.approx(time / 40 * math.exp(-5 / 30), rel=0.05)


@pytest.mark.parametrize("name", table_names("arrivals"))
def test_a_profile_has_the_counts_of_its_table_and_repeats(name: str) -> None:
    table = load_table(name, "", "arrivals")["arrivals"]
    total, span = sum(table["counts"]), table["span_s"]
    times = profile(rng(1), 2 * total, name)
    for period in (times[:total], times[total:] - span):
        assert np.bincount((period // table["bin_s"]).astype(int)).tolist() == table["counts"]


def test_the_code_profile_is_bursty_and_the_chat_profile_is_not() -> None:
    cv = {}
    for name in ("azure-conv", "azure-code"):
        g = np.diff(profile(rng(1), sum(load_table(name, "", "arrivals")["arrivals"]["counts"]), name))
        cv[name] = g.std() / g.mean()
    assert cv["azure-conv"] == pytest.approx(1.09, abs=0.05)  # CV of the trace, data/traces/README.md
    assert cv["azure-code"] > 6
