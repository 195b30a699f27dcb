"""For every answer that a bottleneck can be, a scenario built so that it is the answer."""

from __future__ import annotations

import pytest

from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.experiments.bottleneck import ARRIVALS, DOUBLINGS, find_bottleneck
from simulator.experiments.judge import judge

BASE: dict[str, object] = {
    "model": {"name": "llama-3.1-8b", "max_model_len": 8192},
    "kv": {"num_gpu_blocks_override": 20_001},
    "latency": {"kind": "linear", "coefficients": {"host": 0.005}},
    "scheduler": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
    "workload": {
        "arrivals": {"kind": "deterministic", "rate": 10},
        "lengths": {"kind": "constant", "prompt": 320, "output": 64},
        "num_requests": 200,
    },
    "slo": {"ttft_ms": 300, "tpot_ms": None},
}
CASES: dict[str, dict[str, object]] = {
    # 4 requests of 24 blocks fit at once; each takes 64 steps of 5 ms: 12.5 requests/s at most, 20 arrive
    "KV blocks": {"kv.num_gpu_blocks_override": 101, "workload.arrivals.rate": 20},
    "max_num_seqs": {"scheduler.max_num_seqs": 4, "workload.arrivals.rate": 20},
    # a prompt of 320 tokens takes 5 steps of 64 tokens and the steps cost the same: 40 requests/s at most
    "max_num_batched_tokens": {
        "scheduler.max_num_seqs": 16,
        "scheduler.max_num_batched_tokens": 64,
        "workload.lengths.output": 1,
        "workload.arrivals.rate": 60,
    },
    "FLOP/s": {
        "latency.coefficients": {"host": 0.0001, "per_token": 4e-4},
        "workload.lengths.output": 1,
    },
    "memory bandwidth": {
        "latency.coefficients": {"host": 0.0001, "per_kv_token": 4e-6},
        "workload.arrivals.rate": 40,
        "slo.ttft_ms": None,
        "slo.tpot_ms": 10,
    },
    ARRIVALS: {},
}


@pytest.mark.parametrize("answer", [*DOUBLINGS, ARRIVALS])
def test_bottleneck_is_what_the_scenario_lacks(answer: str) -> None:
    made = run_scenario(load_scenario(BASE).with_(**CASES[answer]))
    found = find_bottleneck(made)
    assert found.name == answer, found
    assert [row.what for row in found.doublings] == list(DOUBLINGS)


def test_verdict_names_limits_share_and_bottleneck() -> None:
    made = run_scenario(load_scenario(BASE))
    judge(made)
    assert made.own["verdict"] == (
        "SLO met: 100.0 % of 200 requests within TTFT <= 300 ms, target 99 %. "
        "Bottleneck: none, the server keeps up with what arrives."
    )


def test_a_long_run_is_not_rerun_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run_scenario(load_scenario(BASE))
    monkeypatch.setattr("simulator.experiments.judge.QUICK_STEPS", len(made.steps) - 1)
    judge(made)
    assert made.own["bottleneck"] is None
    judge(made, bottleneck=True)
    assert made.own["bottleneck"] is not None
