"""What is said about preemptions and tiers is what happened."""

from __future__ import annotations

from simulator.api import simulate

HOST = {"kv.tiers": [{"name": "host", "capacity_gib": 4, "bandwidth_gb_s": 25}]}
FEW = {"workload.num_requests": 250, "workload.arrivals.rate": 6.0}


def notes(**how: object) -> tuple[str, dict[str, int]]:
    changes = how.pop("set", {})
    assert isinstance(changes, dict)
    result = simulate("thrash-a100", set=FEW | changes, bottleneck=False, progress=False, **how)  # type: ignore[arg-type]
    own = result.summary["servetwin"]
    assert isinstance(own, dict)
    return "\n".join(own["notes"]), own


def test_a_run_without_preemption_or_tiers_says_nothing() -> None:
    told, _ = notes(set={"workload.arrivals.rate": 0.5})
    assert "preempt" not in told
    assert "tiers" not in told


def test_recomputed_tokens_are_told() -> None:
    told, own = notes()
    assert own["num_preemptions"] > 0
    assert (
        f"{own['num_preemptions']:,} preemptions: {own['recomputed_tokens']:,} tokens computed again" in told
    )
    assert "swapped" not in told


def test_swapped_and_offloaded_tokens_are_told() -> None:
    told, own = notes(preemption="swap", set=HOST)
    assert own["swapped_tokens"] > 0
    assert f"{own['swapped_tokens']:,} swapped out" in told
    assert f"tiers: {own['offloaded_tokens']:,} tokens offloaded" in told
    assert f"{own['fetched_tokens']:,} fetched" in told
