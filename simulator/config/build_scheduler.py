"""From a scenario to its policies: the scheduler with its memory, and a cluster's router."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.cluster.routers import ROUTERS, Router
from simulator.config.admission import build_rules
from simulator.config.build import Machine, Policies
from simulator.config.policies import Policy, find_policy
from simulator.config.scenario import Scenario, SchedulerSection
from simulator.config.speculative import build_speculation
from simulator.config.tenants import tenant_weights
from simulator.config.tiers import build_tiers
from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.kv.eviction import EVICTIONS
from simulator.schedulers import BATCHING, COLLECT_PRESETS, Scheduler
from simulator.schedulers.admission import ADMISSIONS
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS


def build_scheduler(scenario: Scenario, machine: Machine, policies: Policies) -> Scheduler:
    """Make the batching policy with its memory, order, victim rule and eviction."""
    keys, size = scenario.scheduler, machine.kv

    def find(table: Mapping[str, Policy], value: str, axis: str) -> Policy:
        return find_policy(table, value, axis, trust=policies.allows(value), files=policies.files)

    batching = policies.batching or find(BATCHING, keys.batching, "scheduler.batching")
    order = policies.order or find(ORDERS, keys.order, "scheduler.order")
    victim = policies.victim
    if victim is None and keys.victim is not None:
        victim = find(VICTIMS, keys.victim, "scheduler.victim")
    eviction = policies.eviction or find(EVICTIONS, scenario.kv.eviction, "kv.eviction")
    kv = BlockManager(
        size.usable_blocks,
        scenario.kv.block_size,
        enable_prefix_caching=scenario.kv.enable_prefix_caching,
        watermark_blocks=int(keys.watermark * size.num_gpu_blocks),
        tiers=build_tiers(scenario.kv.tiers, size.block_bytes),
        eviction=eviction,
    )
    if keys.preemption != "recompute" and not scenario.kv.tiers:
        raise ConfigError(
            f"scheduler.preemption: {keys.preemption} needs a memory tier to swap to (kv.tiers)"
        )
    min_batch, max_wait_ms = _collect_rule(keys)
    speculation = build_speculation(scenario.speculative)
    if batching.keeps_finished and scenario.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "parallel.pipeline_parallel_size: must be 1 under a batching policy that keeps finished sequences"
        )
    return batching(
        kv,
        order=order,
        victim=victim,
        preemption=keys.preemption,
        latency=machine.latency,
        admission=build_rules(
            keys.admission if policies.admission is None else policies.admission,
            lambda name: find(ADMISSIONS, name, "scheduler.admission"),
        ),
        weights=tenant_weights(scenario),
        max_num_seqs=keys.max_num_seqs,
        max_num_batched_tokens=keys.max_num_batched_tokens,
        max_model_len=machine.max_model_len,
        long_prefill_token_threshold=keys.long_prefill_token_threshold,
        scheduler_reserve_full_isl=keys.scheduler_reserve_full_isl,
        min_batch=min_batch,
        max_wait=max_wait_ms / 1e3,
        **({} if speculation is None else {"speculation": speculation}),
    )


def build_router(scenario: Scenario, policies: Policies) -> Router | type:
    """Return the router that the scenario names: a function, or a class to be made anew for every run."""
    assert scenario.cluster is not None, "it has a router"
    name = scenario.cluster.router
    return policies.router or find_policy(
        ROUTERS, name, "cluster.router", trust=policies.allows(name), files=policies.files
    )


def _collect_rule(keys: SchedulerSection) -> tuple[int, float]:
    """Return min_batch and max_wait_ms, of a preset or as given; ConfigError where nothing heeds them."""
    if isinstance(keys.min_batch, str):
        rule = COLLECT_PRESETS[keys.min_batch]
    else:
        rule = (keys.min_batch, keys.max_wait_ms)
    if rule != (1, 0) and keys.batching in ("chunked", "prefill_first"):
        raise ConfigError(
            f"scheduler.min_batch, max_wait_ms: {keys.batching} starts what it can and never waits"
        )
    return rule
