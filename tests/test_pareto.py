"""The front against its definition and against Optuna's, the hypervolume against a count of cells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.experiments.pareto import pareto_front
from simulator.experiments.search.volume import hypervolume, trace


def front(values: np.ndarray, maximize: list[bool]) -> np.ndarray:
    return pareto_front(np.where(maximize, values, -values))


GRID = st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan")])


def brute_force(rows: np.ndarray, maximize: list[bool]) -> list[bool]:
    costs = [[-v if up else v for v, up in zip(row, maximize, strict=True)] for row in rows.tolist()]

    def beats(a: list[float], b: list[float]) -> bool:
        pairs = list(zip(a, b, strict=True))
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    return [
        not any(x != x for x in row) and not any(beats(other, row) for other in costs if other == other)
        for row in costs
    ]


@given(
    st.integers(1, 4).flatmap(
        lambda d: st.tuples(
            st.lists(st.lists(GRID, min_size=d, max_size=d), max_size=25),
            st.lists(st.booleans(), min_size=d, max_size=d),
        )
    )
)
def test_the_front_is_what_nothing_beats(case: tuple[list[list[float]], list[bool]]) -> None:
    rows, maximize = case
    values = np.array(rows, dtype=float).reshape(-1, len(maximize))
    assert front(values, maximize).tolist() == brute_force(values, maximize)


def test_optuna_finds_the_same_front() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    values = np.random.default_rng(1).integers(0, 12, (60, 3)).astype(float)
    study = optuna.create_study(directions=["minimize", "maximize", "minimize"])
    study.add_trials(
        [
            optuna.trial.create_trial(values=row.tolist(), state=optuna.trial.TrialState.COMPLETE)
            for row in values
        ]
    )
    ours = np.flatnonzero(front(values, [False, True, False])).tolist()
    assert ours == sorted(trial.number for trial in study.best_trials)
    assert 0 < len(ours) < 60


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_hypervolume_is_the_number_of_dominated_cells(dims: int) -> None:
    points = np.random.default_rng(dims).integers(0, 6, (12, dims)).astype(float)
    cells = itertools.product(range(6), repeat=dims)
    dominated = sum(any((row <= cell).all() for row in points) for cell in map(np.array, cells))
    assert hypervolume(points, np.full(dims, 6.0)) == dominated


def test_the_trace_rises_to_one_and_a_dominated_point_adds_nothing() -> None:
    costs = np.array([[2.0, 2.0], [3.0, 3.0], [0.0, 4.0], [1.0, 1.0]])
    shares = trace(costs, [0, 1, 3, 4], 6)
    assert (np.diff(shares) >= 0).all()
    assert shares[0] == shares[1] == shares[2] < shares[3] < shares[4] == shares[5] == pytest.approx(1.0)
