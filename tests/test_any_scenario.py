"""Keys of every kind drawn together: a scenario is refused in one line, or it runs and adds up."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError

HOST = {"name": "host", "capacity_gib": 0.5, "bandwidth_gb_s": 5, "offload": True}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.5}
LATE = [{"replica": 1, "at_s": 0.7, "back_s": 1.2}]
VALUES: dict[str, list[Any]] = {
    "scheduler.batching": ["chunked", "static", "continuous", "prefill_first"],
    "scheduler.order": ["fcfs", "priority", "sjf_prompt", "virtual_counters"],
    "scheduler.async_scheduling": [False, True],
    "scheduler.preemption": ["recompute", "swap"],
    "kv.tiers": [[], [HOST]],
    "kv.num_gpu_blocks_override": [None, 60, 120],
    "kv.eviction": ["lru", "gdsf"],
    "kv.kv_cache_dtype": ["auto", "fp8", "int8"],
    "model.quantization": [None, "int8", "int4", "fp8"],
    "speculative": [
        None,
        DRAFTS,
        {**DRAFTS, "num_speculative_tokens_per_batch_size": "auto", "lookup_us": 2},
    ],
    "parallel.pipeline_parallel_size": [1, 2],
    "parallel.tensor_parallel_size": [1, 2],
    "workload.max_concurrency": [None, 6],
    "workload.timeout_s": [None, 3.0],
    "workload.cancel": [None, {"fraction": 0.2, "after_s": 0.5}],
    "run.horizon_s": [None, 2.0],
    "run.warmup": ["none", "auto"],
    "cluster": [
        None,
        {"replicas": 2},
        {"replicas": 3, "router": "prefix_affinity", "signal_delay_s": 0.2, "outages": LATE},
        {"replicas": 2, "retry": False, "outages": LATE},
        {
            "router": "power_of_two",
            "autoscaler": {"max_replicas": 3, "target": 3, "interval_s": 0.2, "start_delay_s": 0.3},
        },
        {"disaggregation": {"prefill": {"count": 2}, "link": {"bandwidth_gb_s": 0.5}}},
        {
            "disaggregation": {
                "layerwise": True,
                "first_token": "decode",
                "lease_s": 1.0,
                "link": {"bandwidth_gb_s": 0.05},
            },
            "outages": LATE,
        },
    ],
}
ROOFLINE = {"latency.kind": "roofline", "latency.coefficients": None}


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """Draw half a dozen keys and a value for each; times are a line's or the roofline's."""
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=8, unique=True))
    found = {key: draw(st.sampled_from(VALUES[key])) for key in keys}
    rate = draw(st.sampled_from([10.0, 30.0]))
    found |= draw(st.sampled_from([{}, ROOFLINE]))
    return found | {"workload.arrivals": {"kind": "poisson", "rate": rate}, "workload.num_requests": 60}


@few_or_many(10, 150, drawn=changes(), seed=st.integers(0, 1000))
def test_a_scenario_is_refused_or_adds_up(drawn: dict[str, Any], seed: int) -> None:
    scenario = load_scenario("tiny-cpu").with_(**drawn, seed=seed)
    try:
        watched = run_scenario(scenario, check_invariants=True)
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
        adds_up(scenario, watched)
    assert "\n" not in refused


def adds_up(scenario: Scenario, watched: Run) -> None:
    """Check a run's counts, and that one whose steps are skipped is the same."""
    own: Any = watched.own
    assert own["injected"] == sum(own[what] for what in ("completed", "rejected", "aborted", "unfinished"))
    plain = run_scenario(scenario)
    assert plain.requests.finish.tobytes() == watched.requests.finish.tobytes()
    assert {**plain.summary, "servetwin": 0} == {**watched.summary, "servetwin": 0}
    whole = own["completed"] == own["injected"] and not own["warmup_dropped"]
    if whole and scenario.speculative is None:  # else a step gives several tokens and one gap
        assert int(watched.gaps[1].sum()) == int((watched.requests.num_output - 1).sum())
