"""The recorder's columns equal those of an observer that writes down every token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_runs import Observed, loads, observe, recorded_gaps, scenarios
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.latency.linear import LinearModel
from simulator.metrics.tables import COMPLETED, UNFINISHED
from simulator.request import Request
from simulator.schedulers import BATCHING


def tokens_until(run: Observed, i: int, horizon: float | None) -> list[float]:
    times = run.observer.tokens[run.table.id[i]]
    return times if horizon is None else [t for t in times if t <= horizon]


def check_against_observer(run: Observed, horizon: float | None) -> None:
    table, observer = run.table, run.observer
    completed = {id for id, status in zip(table.id, table.status, strict=True) if status == COMPLETED}
    for i, id in enumerate(table.id):
        tokens = tokens_until(run, i, horizon)
        assert table.num_output[i] == len(tokens), id
        assert table.num_preemptions[i] == observer.preempted[id], id
        if tokens:
            assert table.first_token[i] == tokens[0], id
        else:
            assert np.isnan(table.first_token[i]), id
        if id in observer.first_step:
            assert table.scheduled[i] == observer.first_step[id], id
        else:
            assert np.isnan(table.scheduled[i]), id
        if table.status[i] == COMPLETED:
            assert table.finish[i] == tokens[-1], id
            assert len(tokens) == observer.target[id], id
        elif table.status[i] == UNFINISHED:
            assert np.isnan(table.finish[i]), id
            assert len(tokens) < max(1, observer.target[id]), id
    assert recorded_gaps(run) == observer.gaps(completed)


def test_a_decode_may_be_left_out_just_before_its_last_token() -> None:
    """Budgets of 1 and 2 tokens in turn: B and C share them, and C ends in the step after one without it."""
    requests = [Request("A", 0.0, 1, 1, 9), Request("B", 0.0, 1, 4, 9), Request("C", 0.0, 1, 3, 3)]
    run = observe(requests, latency=LinearModel(constant=0.25), num_blocks=24, block_size=1, budgets=[1, 2])
    assert run.observer.tokens["C"] == [0.5, 1.0, 1.5]
    check_against_observer(run, None)


@few_or_many(80, 250, scenario=scenarios())
def test_recorder_equals_an_observer_of_every_token(scenario: dict[str, Any]) -> None:
    run = observe(**scenario)
    check_against_observer(run, None)
    assert not (run.table.status == UNFINISHED).any()


@few_or_many(80, 250, scenario=scenarios(horizons=True))
def test_recorder_equals_an_observer_when_the_horizon_cuts_the_run(scenario: dict[str, Any]) -> None:
    check_against_observer(observe(**scenario), scenario["horizon"])


@pytest.mark.parametrize("batching", BATCHING)
@few_or_many(40, 150, data=st.data())
def test_recorder_equals_an_observer_under_every_policy(batching: str, data: Any) -> None:
    """Decodes that stand still beside prompts, padding, any victim, clients that cancel, collect rules."""
    load = data.draw(loads(batching, horizons=True))
    check_against_observer(observe(**load), load["horizon"])
