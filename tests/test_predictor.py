"""The noisy predictor: how wrong it is, what it never says, and what policies see without it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from simulator.config.build import Policies
from simulator.config.build_workload import build_workload
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.engine.decisions import Decision
from simulator.errors import ConfigError
from simulator.request import Sequence
from simulator.schedulers.context import Context
from simulator.schedulers.orders import fcfs
from simulator.workload import Workload, generate

N = 20_000


def answers(output: int = 5000) -> Workload:
    lengths = {"kind": "constant", "prompt": 10, "output": output}
    return generate({"kind": "all_at_once"}, lengths, N).with_max_tokens(1000, 10**6)


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0])
def test_the_factor_is_lognormal_with_median_one(sigma: float) -> None:
    """The truth is the answer as max_tokens cuts it: 1,000 of 5,000 tokens."""
    predicted = answers().with_predicted_len(sigma, rng()).predicted_len
    assert predicted is not None
    logs = np.log(predicted / 1000)
    assert abs(np.median(logs)) < 5 * 1.2533 * sigma / np.sqrt(N)  # a median's error is sqrt(pi / 2) larger
    assert logs.std() == pytest.approx(sigma, rel=5 / np.sqrt(2 * N))
    assert stats.kstest(logs / sigma, "norm").pvalue > 1e-3


def test_sigma_0_is_the_truth_as_max_tokens_cuts_it() -> None:
    w = build_workload(load_scenario("chat-a100").with_(**{"workload.predicted_len.sigma": 0}), 1500)
    assert w.predicted_len is not None
    assert w.predicted_len.tolist() == np.minimum(w.num_output, w.max_tokens).tolist()
    assert (w.num_output > w.max_tokens).any()


def test_a_prediction_is_at_least_one_token() -> None:
    predicted = answers(output=1).with_predicted_len(2.0, rng()).predicted_len
    assert predicted is not None
    assert predicted.min() == 1.0
    assert (predicted == 1.0).mean() == pytest.approx(0.5, abs=0.02)


def test_a_prediction_before_max_tokens_is_settled_takes_the_default() -> None:
    lengths = {"kind": "constant", "prompt": 10, "output": 9000}
    w = generate({"kind": "all_at_once"}, lengths, 3).with_predicted_len(0.0, rng())
    assert w.predicted_len is not None
    assert w.predicted_len.tolist() == [2048.0] * 3


@pytest.mark.parametrize("sigma", [-0.1, 10.5, float("nan"), float("inf")])
def test_a_sigma_that_cannot_be_is_told(sigma: float) -> None:
    with pytest.raises(ConfigError, match=r"workload.predicted_len.sigma: must be 0 to 10"):
        answers().with_predicted_len(sigma, rng())


@pytest.mark.parametrize("sigma", [None, 0.0, 0.5])
def test_policies_see_the_prediction_and_nothing_without_the_key(sigma: float | None) -> None:
    seen: dict[int, float | None] = {}

    def spy(seq: Sequence, ctx: Context) -> object:
        seen[seq.index] = seq.predicted_len
        return fcfs(seq, ctx)

    key = None if sigma is None else {"sigma": sigma}
    scenario = load_scenario("tiny-cpu").with_(**{"workload.predicted_len": key})
    run = run_scenario(scenario, policies=Policies(order=spy))
    told = run.workload.predicted_len
    assert seen == {i: None if told is None else told[i] for i in range(len(run.workload))}
    if sigma:
        assert all(told is not None and told[i] != run.workload.num_output[i] for i in seen)


def test_a_prediction_that_nobody_uses_changes_no_decision() -> None:
    scenario = load_scenario("tiny-cpu")
    logs: list[list[Decision]] = []
    for key in (None, {"sigma": 0.5}):
        log = run_scenario(scenario.with_(**{"workload.predicted_len": key}), decisions=True).log
        assert log is not None
        logs.append(log.lines)
    assert logs[0] == logs[1]
