"""Run a scenario: build it, serve its workload, sum up what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine, build_scheduler
from simulator.config.build_workload import build_workload, client_plan
from simulator.config.model_section import accuracy_notes, accuracy_of
from simulator.config.policies import policy_records, suspects
from simulator.config.scenario import Scenario
from simulator.config.speculative import build_acceptance
from simulator.config.tenants import slo_of, tenant_limits, tenant_weights, with_deadlines
from simulator.config.wrong_policies import blaming, policies_in_force, searching
from simulator.engine.clients import ClientPlan, Progress
from simulator.engine.decisions import DecisionLog
from simulator.engine.replica import Observer
from simulator.engine.serve import MakeExecutor, Served, serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import LatencyModel, StepFeatures
from simulator.metrics.cost import request_costs
from simulator.metrics.fairness import fairness
from simulator.metrics.memory_notes import memory_notes
from simulator.metrics.summary import Latencies, counts, latencies, meets_slo, summarize
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED, Floats, Ints, RequestTable, StepTable
from simulator.workload.workload import Workload


@dataclass
class Run:
    """A scenario and what came of it. `summary` has vLLM's keys, and ours under "servetwin"."""

    scenario: Scenario
    machine: Machine
    workload: Workload
    requests: RequestTable
    steps: StepTable
    gaps: tuple[Floats, Ints]
    summary: dict[str, object]
    log: DecisionLog | None = None
    policies: Policies = NO_POLICIES  # with the files as they were when the run began

    @property
    def own(self) -> dict[str, object]:
        """Our part of the summary."""
        own = self.summary["servetwin"]
        assert isinstance(own, dict)
        return own


def run_scenario(
    scenario: Scenario,
    *,
    policies: Policies = NO_POLICIES,
    machine: Machine | None = None,
    workload: Workload | None = None,
    plan: ClientPlan | None = None,
    latency: LatencyModel | None = None,
    decisions: bool = False,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    check_invariants: bool = False,
    make_executor: MakeExecutor | None = None,
) -> Run:
    """Simulate a scenario from start to end; with `make_executor`, let a real engine do it.

    A machine, workload or clients' plan built before, or another latency model, takes the place of the
    scenario's own.
    """
    machine = machine or build_machine(scenario)
    policies = policies.reading(scenario)
    blamed = suspects(policies.files, policies)
    with blaming(blamed):
        scheduler = build_scheduler(scenario, machine, policies)
    workload = build_workload(scenario, machine.max_model_len) if workload is None else workload
    if scenario.kv.enable_prefix_caching:
        workload = workload.with_blocks(scenario.kv.block_size)
    workload = with_deadlines(scenario, workload)
    log = DecisionLog() if decisions else None
    serving = partial(
        serve,
        workload.requests,
        latency=latency or machine.latency,
        plan=client_plan(scenario, workload) if plan is None else plan,
        async_scheduling=scenario.scheduler.async_scheduling,
        horizon=scenario.run.horizon_s,
        acceptance=build_acceptance(scenario.speculative, scenario.seed),
    )

    def checked() -> None:
        serving(build_scheduler(scenario, machine, policies), check_invariants=True)

    with blaming(blamed, scenario), searching(blamed, checked):
        served = serving(
            scheduler,
            observers=[*observers, *([log] if log else [])],
            progress=progress,
            check_invariants=check_invariants,
            make_executor=make_executor,
        )
    requests = served.recorder.request_table(workload.requests)
    kept = latencies(requests, scenario.run.warmup).rows
    gaps = served.recorder.gaps(kept)
    steps = served.recorder.step_table()
    summary = _header(scenario, workload) | summarize(
        requests,
        steps,
        gaps,
        slo=slo_of(scenario, requests.tenant),
        warmup=scenario.run.warmup,
        ranks=scenario.run.percentiles,
        method=scenario.run.percentile_method,
    )
    run = Run(scenario, machine, workload, requests, steps, gaps, summary, log, policies)
    if served.recorder.verifications is not None:
        summary |= served.recorder.verifications.summary()
    summary["servetwin"] = _own(run, served)
    return run


def _header(scenario: Scenario, workload: Workload) -> dict[str, object]:
    """The keys with which vLLM describes a benchmark; the date is left empty so that equal runs are equal."""
    arrivals = {} if scenario.workload.trace else scenario.workload.arrivals
    rate = "inf" if arrivals.get("kind") == "all_at_once" else arrivals.get("rate")
    return {
        "date": None,
        "endpoint_type": "servetwin",
        "backend": "servetwin",
        "label": scenario.name,
        "model_id": scenario.model.name,
        "tokenizer_id": scenario.model.name,
        "num_prompts": len(workload),
        "request_rate": rate,
        "burstiness": arrivals.get("burstiness", 1.0 if arrivals.get("kind") == "poisson" else None),
        "max_concurrency": scenario.workload.max_concurrency,
    }


def _own(run: Run, served: Served) -> dict[str, object]:
    scenario, machine, requests = run.scenario, run.machine, run.requests
    kv = served.scheduler.kv
    measured = latencies(requests, scenario.run.warmup)
    slo = slo_of(scenario, requests.tenant)
    good = meets_slo(measured, slo)
    tally = counts(requests)
    num_dropped = tally["completed"] - len(measured.rows)
    base = tally["injected"] - num_dropped
    own = {
        "version": version("servetwin"),
        "seed": scenario.seed,
        "source": run.workload.source,
        "policies": policy_records(run.policies.files),
        "provenance": machine.latency.provenance,
        "profile_error": machine.latency.error,
        "extrapolated_share": extrapolated_share(machine.latency, run.steps),
        "slo": {f"{name}_ms": 1e3 * limit for name, limit in scenario.slo.seconds().items()},
        "slo_by_tenant": {
            name: {f"{metric}_ms": 1e3 * limit for metric, limit in limits.items()}
            for name, limits in tenant_limits(scenario).items()
        },
        "attainment": int(good.sum()) / base if base else None,
        "attainment_target": scenario.slo.attainment,
        **tally,
        "rejected_by_reason": _reasons(requests, REJECTED),
        "aborted_by_reason": _reasons(requests, ABORTED),
        "stopped_by_length": sum(reason == "length" for reason in requests.reason),
        "warmup_dropped": num_dropped,
        "percentile_method": scenario.run.percentile_method,
        "num_steps": len(run.steps),
        "num_skipped_steps": served.recorder.num_skipped,
        "skipped_decode_share": served.recorder.skipped_decode_share,
        "is_stepped": served.recorder.num_skipped == 0,
        "num_preemptions": int(run.steps.num_preempted.sum()),
        **served.recorder.transfers.summary(run.steps, scenario.kv.block_size),
        "broken_livelocks": served.scheduler.num_livelocks,
        "oversized_prompts": served.scheduler.num_oversized,
        "num_gpu_blocks": machine.kv.num_gpu_blocks,
        "usable_blocks": machine.kv.usable_blocks,
        "block_size": scenario.kv.block_size,
        **kv_use(run.steps, kv.pool.num_blocks, scenario.kv.block_size, machine.max_model_len),
        "evicted_blocks": kv.pool.num_evicted,
        "cost_per_million_output_tokens": cost_per_million(scenario, run.summary),
        "accuracy": accuracy_of(scenario.model, scenario.kv.kv_cache_dtype),
        "prefix_cache_queries": kv.num_queries,
        "prefix_cache_hits": kv.num_hits,
        "prefix_hit_rate": kv.num_hits / kv.num_queries if kv.num_queries else None,
        "tiers": tier_use(kv),
        **fairness(
            requests,
            measured,
            good,
            weights=tenant_weights(scenario),
            has_slo=bool(slo),
            end=scenario.run.horizon_s,
            method=scenario.run.percentile_method,
            costs=_costs(run, measured),
        ),
        "skipped": run.workload.skipped,
    }
    told = [*memory_notes(own), *_stall(run, served, tally["unfinished"])]
    told += accuracy_notes(scenario.model, scenario.kv.kv_cache_dtype)
    return own | {"notes": [*machine.notes, *run.workload.notes, *told], "scenario": scenario.to_dict()}


def _costs(run: Run, measured: Latencies) -> Floats | None:
    """Return each request's part of what the measured window cost; None without a price, 0 in the warm-up."""
    per_million = cost_per_million(run.scenario, run.summary)
    if per_million is None:
        return None
    total = per_million * float(run.requests.num_output[measured.rows].sum()) / 1e6
    counts = run.requests.status != COMPLETED
    counts[measured.rows] = True
    return request_costs(
        run.requests,
        run.steps,
        run.machine.latency,
        counts,
        total=total,
        max_tokens=run.scenario.scheduler.max_num_batched_tokens,
    )


def tier_use(kv: BlockManager) -> dict[str, dict[str, int]]:
    """Return each tier's size and how many blocks it holds now."""
    memories = [] if kv.tiers is None else kv.tiers.memories
    return {
        each.tier.name: {"num_blocks": each.tier.num_blocks, "used_blocks": each.num_used}
        for each in memories
    }


def _reasons(requests: RequestTable, status: int) -> dict[str, int]:
    """Count the requests of one status by reason."""
    return dict(Counter(requests.reason[i] for i in np.flatnonzero(requests.status == status)))


def _stall(run: Run, served: Served, unfinished: int) -> list[str]:
    """Say that the policies gave up, if they did: shipped ones leave nobody waiting for ever."""
    if not unfinished or run.scenario.run.horizon_s is not None:
        return []
    steps = run.steps
    last = f"after step {len(steps) - 1} at {steps.end[-1]:.3f} s" if len(steps) else "before the first step"
    who, why = "batching policy", "schedule(now) returned an empty batch and set no wake_at"
    if served.scheduler.held_by == "rule":
        who, why = (
            "admission rules",
            "one of them made the first in the queue wait, and nothing changed it",
        )
    return [
        f"the {who} stalled {last} and left {unfinished:,} requests unfinished: {why} "
        f"({policies_in_force(run.scenario)})"
    ]


def cost_per_million(scenario: Scenario, summary: dict[str, object]) -> float | None:
    """Return what a million output tokens cost at the price of all GPUs, None without price or tokens."""
    price, speed = scenario.hardware.price_per_gpu_hour, summary["output_throughput"]
    if price is None or not isinstance(speed, float) or not speed:
        return None
    return scenario.parallel.tensor_parallel_size * price / 3600 / speed * 1e6


def extrapolated_share(latency: LatencyModel, steps: StepTable) -> float:
    """Return the share of steps outside the latency model's measured range."""
    if not len(steps):
        return 0.0
    features: dict[str, NDArray[np.generic]] = {
        name: getattr(steps, name) for name in StepFeatures._fields if name in {f.name for f in fields(steps)}
    }
    return float(latency.extrapolated(features).mean())


def kv_use(steps: StepTable, num_blocks: int, block_size: int, max_model_len: int) -> dict[str, object]:
    """Sum up KV use over time: share of the pool, and waste of paging and of contiguous reservation.

    Waste is the share of reserved tokens that hold nothing; the contiguous alternative reserves
    max_model_len tokens for every running sequence (Kwon et al., "PagedAttention", SOSP 2023, section 3).
    """
    time = steps.end - steps.start
    total = float(time.sum())
    if total <= 0:
        names = ("kv_usage_mean", "kv_usage_peak", "kv_waste_paged", "kv_waste_contiguous")
        return dict.fromkeys(names)
    paged = float((steps.used_blocks * time).sum()) * block_size
    held = float((steps.kv_tokens * time).sum())
    contiguous = float((steps.num_running * time).sum()) * max_model_len
    return {
        "kv_usage_mean": paged / (total * num_blocks * block_size),
        "kv_usage_peak": float(steps.used_blocks.max()) / num_blocks,
        "kv_waste_paged": max(0.0, 1.0 - held / paged) if paged else None,
        "kv_waste_contiguous": 1.0 - held / contiguous if contiguous else None,
    }
