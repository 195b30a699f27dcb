"""Sweep files and designs: what is drawn, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin

from simulator.errors import ConfigError
from simulator.experiments.pareto import pareto_front
from simulator.experiments.sweep.designs import Choices, Range, draw_design
from simulator.experiments.sweep.plan import read_plan
from simulator.experiments.sweep.points import build_sweep

GOOD: dict[str, Any] = {"base": "tiny-cpu", "vary": {"scheduler.max_num_seqs": [2, 4]}}

WRONG = {
    "unknown key": (
        {"vary": {"scheduler.max_num_sqes": [1]}},
        "unknown key 'max_num_sqes'; did you mean max_num_seqs?",
    ),
    "unknown word": ({"repetitions": 3}, "'repetitions': unknown key; did you mean replications?"),
    "empty list": (
        {"vary": {"scheduler.max_num_seqs": []}},
        "vary.scheduler.max_num_seqs: the list is empty",
    ),
    "empty vary": ({"vary": {}}, "vary: must map scenario keys to values"),
    "a value refused": (
        {"vary": {"scheduler.max_num_seqs": [2, 0]}},
        "point 1 (max_num_seqs=0): scheduler.max_num_seqs: must be greater than or equal to 1, got 0",
    ),
    "keys that do not go together": (
        {"vary": {"scheduler.max_num_seqs": [2, 64], "scheduler.max_num_batched_tokens": [32, 96]}},
        "point 2 (max_num_seqs=64 max_num_batched_tokens=32): scheduler: max_num_batched_tokens (32) must be",
    ),
    "twice": ({"vary": {"scheduler.max_num_seqs": [2, 4, 2]}}, "2 is given twice"),
    "no base": ({"base": "tiny-cup"}, "base: scenario 'tiny-cup': no such file"),
    "no such design": ({"design": "sobel", "points": 4}, "design: unknown 'sobel'; did you mean sobol?"),
    "points of a grid": ({"points": 4}, "points: a grid has as many as its lists give, got 4"),
    "no points": ({"design": "lhs"}, "points: lhs needs a number, got None"),
    "a range in a grid": ({"vary": {"seed": {"low": 1, "high": 2}}}, "vary.seed: a grid needs a list"),
    "a range upside down": (
        {"vary": {"seed": {"low": 3, "high": 2}}, "design": "random", "points": 2},
        "vary.seed: low must be < high, got 3 and 2",
    ),
    "log of 0": (
        {
            "vary": {"workload.arrivals.rate": {"low": 0, "high": 2, "log": True}},
            "design": "lhs",
            "points": 2,
        },
        "low must be > 0 for a logarithmic range",
    ),
    "unknown policy": (
        {"vary": {"scheduler.order": ["fcfs", "fcsf"]}},
        "point 1 (order=fcsf): scheduler.order: unknown 'fcsf'; did you mean fcfs?",
    ),
    "unknown distribution": (
        {"vary": {"workload.arrivals.kind": ["poisson", "poison"]}},
        "point 1 (kind=poison): workload.arrivals",
    ),
    "too long a context": (
        {"vary": {"model.max_model_len": [512, 10**6]}},
        "point 1 (max_model_len=1000000): model.max_model_len: 1000000 exceeds",
    ),
    "text for a list": ({"vary": {"scheduler.order": "fcfs"}}, "must be a list of values, or all"),
    "replications": ({"replications": 0}, "replications: must be a whole number from 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_sweep_is_refused_and_says_where(case: str) -> None:
    changes, words = WRONG[case]
    with pytest.raises(ConfigError) as refused:
        build_sweep(read_plan(GOOD | changes))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_metric_that_no_run_has_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("base: tiny-cpu\nvary: {seed: [1, 2]}\nmetrics: [p99_tftt_ms]\n")
    told = servetwin("sweep", file, "-o", tmp_path / "out").complaint
    assert "metrics: no such metric 'p99_tftt_ms'; did you mean p99_ttft_ms?" in told
    assert not (tmp_path / "out").exists()


def test_a_missing_file_and_one_that_is_no_mapping_are_named(tmp_path: Path) -> None:
    assert "no such file" in servetwin("sweep", tmp_path / "none.yaml").complaint
    file = tmp_path / "s.yaml"
    file.write_text("- 1\n")
    assert "a sweep is a mapping of keys to values" in servetwin("sweep", file).complaint


def test_a_grid_is_the_product_with_the_last_key_fastest() -> None:
    points, _ = draw_design({"a": Choices([1, 2]), "b": Choices(["x", "y"])}, "grid", None, 0)
    assert points == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize("design", ["random", "lhs", "sobol"])
def test_drawn_points_stay_within_and_come_again_with_the_seed(design: str) -> None:
    axes = {"r": Range(2, 32, log=True), "n": Range(1, 6, whole=True), "c": Choices(["a", "b", "c"])}
    points, _ = draw_design(axes, design, 64, 5)
    assert points == draw_design(axes, design, 64, 5)[0]
    assert points != draw_design(axes, design, 64, 6)[0]
    assert all(2 <= p["r"] <= 32 for p in points)  # type: ignore[operator]
    assert {p["n"] for p in points} == {1, 2, 3, 4, 5, 6}
    assert {p["c"] for p in points} == {"a", "b", "c"}
    if design != "random":  # evenly by factors: half of the points below the geometric mean
        assert sum(p["r"] < 8 for p in points) == 32  # type: ignore[operator]


def test_whole_numbers_that_meet_are_one_point_and_it_is_said() -> None:
    points, notes = draw_design({"n": Range(1, 4, whole=True)}, "sobol", 16, 0)
    assert sorted(p["n"] for p in points) == [1, 2, 3, 4]  # type: ignore[type-var]
    assert notes == ["12 of 16 points equal others and are left out"]


def test_sobol_says_that_forty_points_are_no_power_of_two() -> None:
    _, notes = draw_design({"x": Range(0, 1)}, "sobol", 40, 0)
    assert "40 points are no power of two" in notes[0]
    assert "32 or 64" in notes[0]


def test_all_is_every_policy_of_the_table() -> None:
    from simulator import ORDERS

    plan = read_plan(GOOD | {"vary": {"scheduler.order": "all"}})
    assert plan.axes["scheduler.order"] == Choices(list(ORDERS))


def test_the_front_is_what_nobody_beats() -> None:
    rng = np.random.default_rng(0)
    for columns in (1, 2, 3):
        for _ in range(30):
            values = rng.integers(0, 6, (25, columns)).astype(float)
            values[rng.random(25) < 0.1, 0] = np.nan
            beaten = [
                np.isnan(one).any() or any((other >= one).all() and (other > one).any() for other in values)
                for one in values
            ]
            assert pareto_front(values).tolist() == [not each for each in beaten]
    assert pareto_front(np.empty((0, 2))).tolist() == []
