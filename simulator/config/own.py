"""Our part of a run's summary: what vLLM's keys do not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.config.cluster_summary import cluster_summary, gpu_price, most_at_once
from simulator.config.cost import cost_per_million
from simulator.config.model_section import accuracy_notes, accuracy_of
from simulator.config.policies import policy_records
from simulator.config.served import Part, ServedRun
from simulator.config.tenants import slo_of, tenant_limits, tenant_weights
from simulator.config.wrong_policies import policies_in_force
from simulator.engine.pipeline import Line
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import LatencyModel, StepFeatures
from simulator.metrics.cost import request_costs
from simulator.metrics.fairness import fairness
from simulator.metrics.memory_notes import memory_notes
from simulator.metrics.recorder import skipped_decode_share
from simulator.metrics.summary import Latencies, counts, latencies, meets_slo
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED, Floats, RequestTable, StepTable

if TYPE_CHECKING:
    from simulator.config.run import Run


def own_summary(run: Run, served: ServedRun, tables: Sequence[StepTable]) -> dict[str, object]:
    """Sum a run up: `tables` are the steps of each of its replicas."""
    scenario, machine, requests, parts = run.scenario, run.machine, run.requests, served.parts
    measured = latencies(requests, scenario.run.warmup)
    slo = slo_of(scenario, requests.tenant)
    good = meets_slo(measured, slo)
    tally = counts(requests)
    num_dropped = tally["completed"] - len(measured.rows)
    base = tally["injected"] - num_dropped
    per_million = cost_per_million(scenario, run.summary, gpu_price(scenario, served, measured))
    own = {
        "version": version("servetwin"),
        "seed": scenario.seed,
        "source": run.workload.source,
        "policies": policy_records(run.policies.files),
        "provenance": machine.latency.provenance,
        "profile_error": machine.latency.error,
        "extrapolated_share": _extrapolated(parts, tables),
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
        **_steps(run, parts),
        **_transfers(parts, tables, scenario.kv.block_size),
        "broken_livelocks": sum(part.scheduler.num_livelocks for part in parts),
        "oversized_prompts": sum(part.scheduler.num_oversized for part in parts),
        "num_gpu_blocks": _pool(parts, [part.machine.kv.num_gpu_blocks for part in parts]),
        "usable_blocks": _pool(parts, [part.machine.kv.usable_blocks for part in parts]),
        "block_size": scenario.kv.block_size,
        **kv_use(parts, tables, scenario.kv.block_size),
        "evicted_blocks": sum(part.scheduler.kv.pool.num_evicted for part in parts),
        "accuracy": accuracy_of(scenario.model, scenario.kv.kv_cache_dtype),
        "cost_per_million_output_tokens": per_million,
        **_cache(parts),
        **fairness(
            requests,
            measured,
            good,
            weights=tenant_weights(scenario),
            has_slo=bool(slo),
            end=scenario.run.horizon_s,
            method=scenario.run.percentile_method,
            costs=_costs(run, measured, per_million),
        ),
        "skipped": run.workload.skipped,
    }
    lines = [line for part in parts if (line := part.line) is not None]
    if lines:
        own |= pipeline_summary(lines)
    if served.fleet is not None:
        own |= cluster_summary(scenario, served, tables)
    told = [*memory_notes(own), *_stall(run, parts, tally["unfinished"])]
    told += accuracy_notes(scenario.model, scenario.kv.kv_cache_dtype)
    return own | {"notes": [*machine.notes, *run.workload.notes, *told], "scenario": scenario.to_dict()}


def pipeline_summary(lines: Sequence[Line]) -> dict[str, object]:
    """Return the idle share of all stages, and what those of the first pipeline did."""
    total = sum(line.in_flight for line in lines)
    idle = sum((line.bubble_share or 0.0) * line.in_flight for line in lines)
    return {"bubble_share": idle / total if total else None, "pipeline": lines[0].summary()}


def _costs(run: Run, measured: Latencies, per_million: float | None) -> Floats | None:
    """Return each request's part of what the measured window cost, 0 in the warm-up.

    None without a price, and where replicas differ: a token has then no one price.
    """
    prices = {kind.latency.provenance for kind in run.machine.kinds}
    if per_million is None or len(prices) > 1:
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


def _steps(run: Run, parts: Sequence[Part]) -> dict[str, object]:
    num_skipped = sum(part.recorder.num_skipped for part in parts)
    return {
        "num_steps": len(run.steps),
        "num_skipped_steps": num_skipped,
        "skipped_decode_share": skipped_decode_share(part.recorder for part in parts),
        "is_stepped": num_skipped == 0,
        "num_preemptions": int(run.steps.num_preempted.sum()),
    }


def _transfers(parts: Sequence[Part], tables: Sequence[StepTable], block_size: int) -> dict[str, object]:
    """Add up what moved between GPUs and tiers, of all replicas."""
    each = [
        part.recorder.transfers.summary(steps, block_size) for part, steps in zip(parts, tables, strict=True)
    ]
    return each[0] if len(each) == 1 else {name: sum(one[name] for one in each) for name in each[0]}  # type: ignore[misc]


def _cache(parts: Sequence[Part]) -> dict[str, object]:
    memories = [part.scheduler.kv for part in parts]
    queries, hits = sum(kv.num_queries for kv in memories), sum(kv.num_hits for kv in memories)
    tiers: dict[str, dict[str, int]] = {}
    for kv in memories:
        for name, use in tier_use(kv).items():
            known = tiers.setdefault(name, dict.fromkeys(use, 0))
            tiers[name] = {key: known[key] + value for key, value in use.items()}
    return {
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
        "prefix_hit_rate": hits / queries if queries else None,
        "tiers": tiers,
    }


def _pool(parts: Sequence[Part], blocks: Sequence[int]) -> int:
    """Return the blocks of the replicas together, as many as there were of them at one time."""
    return most_at_once([(blocks[i], part.member) for i, part in enumerate(parts)])


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


def _stall(run: Run, parts: Sequence[Part], unfinished: int) -> list[str]:
    """Say that the policies gave up, if they did: shipped ones leave nobody waiting for ever."""
    if not unfinished or run.scenario.run.horizon_s is not None:
        return []
    steps = run.steps
    last = f"after step {len(steps) - 1} at {steps.end[-1]:.3f} s" if len(steps) else "before the first step"
    who, why = "batching policy", "schedule(now) returned an empty batch and set no wake_at"
    if any(part.scheduler.held_by == "rule" for part in parts):
        who, why = (
            "admission rules",
            "one of them made the first in the queue wait, and nothing changed it",
        )
    return [
        f"the {who} stalled {last} and left {unfinished:,} requests unfinished: {why} "
        f"({policies_in_force(run.scenario)})"
    ]


def _extrapolated(parts: Sequence[Part], tables: Sequence[StepTable]) -> float:
    """Return the share of steps outside the measured range of their replica's latency model."""
    num = sum(map(len, tables))
    if len(parts) == 1 or not num:
        return extrapolated_share(parts[0].machine.latency, tables[0])
    outside = (
        len(steps) * extrapolated_share(part.machine.latency, steps)
        for part, steps in zip(parts, tables, strict=True)
    )
    return sum(outside) / num


def extrapolated_share(latency: LatencyModel, steps: StepTable) -> float:
    """Return the share of steps outside the latency model's measured range."""
    if not len(steps):
        return 0.0
    features: dict[str, NDArray[np.generic]] = {
        name: getattr(steps, name) for name in StepFeatures._fields if name in {f.name for f in fields(steps)}
    }
    return float(latency.extrapolated(features).mean())


def kv_use(parts: Sequence[Part], tables: Sequence[StepTable], block_size: int) -> dict[str, object]:
    """Sum up KV use over time: share of the pool, and waste of paging and of contiguous reservation.

    Waste is the share of reserved tokens that hold nothing; the contiguous alternative reserves
    max_model_len tokens for every running sequence (Kwon et al., "PagedAttention", SOSP 2023, section 3).
    Of several replicas each step counts with its own pool.
    """
    total = paged = held = contiguous = pool = peak = 0.0
    for part, steps in zip(parts, tables, strict=True):
        num_blocks = part.scheduler.kv.pool.num_blocks
        time = steps.end - steps.start
        total += float(time.sum())
        pool += float(time.sum()) * num_blocks * block_size
        paged += float((steps.used_blocks * time).sum()) * block_size
        held += float((steps.kv_tokens * time).sum())
        contiguous += float((steps.num_running * time).sum()) * part.machine.max_model_len
        peak = max(peak, float(steps.used_blocks.max(initial=0)) / num_blocks)
    if total <= 0:
        names = ("kv_usage_mean", "kv_usage_peak", "kv_waste_paged", "kv_waste_contiguous")
        return dict.fromkeys(names)
    return {
        "kv_usage_mean": paged / pool,
        "kv_usage_peak": peak,
        "kv_waste_paged": max(0.0, 1.0 - held / paged) if paged else None,
        "kv_waste_contiguous": 1.0 - held / contiguous if contiguous else None,
    }
