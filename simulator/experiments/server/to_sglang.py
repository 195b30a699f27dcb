"""Settings as flags of `python -m sglang.launch_server` (0.5.23), and what SGLang cannot do.

Its memory fraction, token budget and priorities mean other things than vLLM's: each is said where it matters.
"""

from __future__ import annotations

from simulator.config.build import Machine
from simulator.config.scenario import Scenario
from simulator.experiments.server.setting import (
    CHECKPOINTS,
    SAME,
    Rule,
    Setting,
    expert_skew,
    fleet_lacks,
    model_id,
    rule_names,
)

ORDERS = {"longest_prefix": "lpm"}
EVICTIONS = ("lfu", "slru")
KV_DTYPES = {"fp8": "fp8_e4m3"}
GB = 1e9
ADAPTIVE = "SGLang has it for EAGLE only (--speculative-adaptive)"
VLLM_ONLY = "SGLang has no such rule; leave it at its default"


def _batching(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.scheduler.batching
    if value == "chunked":
        return Setting(
            ("--enable-mixed-chunk",),
            "near: SGLang's chunk counts prompt tokens only, vLLM's budget decodes too",
        )
    if value == "prefill_first":
        return Setting(lacks="near: SGLang without --enable-mixed-chunk runs prompts first, in chunks")
    if value == "static":
        return Setting(lacks="SGLang never waits for a batch; use chunked, or send closed batches")
    return Setting(lacks="SGLang has no such batching; the nearest is chunked")


def _budget(scenario: Scenario, machine: Machine) -> Setting:
    tokens = str(scenario.scheduler.max_num_batched_tokens)
    if scenario.scheduler.batching == "continuous":
        return Setting(("--chunked-prefill-size", "-1", "--max-prefill-tokens", tokens))
    return Setting(("--chunked-prefill-size", tokens))


def _order(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.scheduler.order
    if value == "fcfs":
        return Setting(("--schedule-policy", "fcfs"))
    if value in ORDERS:
        return Setting(("--schedule-policy", ORDERS[value]))
    if value == "priority":
        return Setting(
            ("--enable-priority-scheduling",),
            "the direction differs: in SGLang a higher priority is served sooner; send it negated",
        )
    if value == "sjf_prompt":
        return Setting(
            ("--schedule-policy", "shortest-prefill-first"),
            "near: SGLang takes the shortest by what is left to prefill after prefix hits",
        )
    return Setting(
        lacks="SGLang has fcfs, lpm, shortest-prefill-first and priority: let a gateway set priorities"
    )


def _victim(scenario: Scenario, machine: Machine) -> Setting:
    if scenario.scheduler.order == "priority" and scenario.scheduler.victim in (None, "least_important"):
        return Setting(("--retraction-policy", "priority"))
    return Setting(
        lacks="SGLang retracts by output length, not the last admitted; with enough KV memory it never does"
    )


def _admission(scenario: Scenario, machine: Machine) -> Setting:
    argv: list[str] = []
    others = []
    for name, given in rule_names(scenario.scheduler.admission):
        limit = given.get("limit") if isinstance(given, dict) else given
        if name == "queue_limit" and isinstance(limit, int):
            argv += ["--max-queued-requests", str(limit)]
        else:
            others.append(name)
    lacks = f"{', '.join(others)}: do it in a gateway before the server" if others else ""
    return Setting(tuple(argv), lacks)


def _memory(scenario: Scenario, machine: Machine) -> Setting:
    size = machine.kv
    share = (size.weight_bytes + size.pool_bytes) / size.memory_bytes
    return Setting(
        ("--mem-fraction-static", f"{min(share, 0.999):.3f}"),
        "SGLang's fraction is of weights and KV alone: printed is the one that gives the simulated pool",
    )


def _blocks(scenario: Scenario, machine: Machine) -> Setting:
    if scenario.kv.num_gpu_blocks_override is None:
        return SAME
    return Setting(("--max-total-tokens", str(machine.kv.usable_blocks * machine.kv.block_size)))


def _reserve(scenario: Scenario, machine: Machine) -> Setting:
    tokens = machine.kv.usable_blocks * machine.kv.block_size
    return Setting(
        lacks=f"what --mem-fraction-static leaves; the server should print about {tokens:,} KV tokens"
    )


def _kv_dtype(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.kv.kv_cache_dtype
    if value in KV_DTYPES:
        return Setting(("--kv-cache-dtype", KV_DTYPES[value]))
    return SAME if value == "auto" else Setting(lacks="SGLang has no int8 KV cache; the nearest is fp8_e4m3")


def _quantization(scenario: Scenario, machine: Machine) -> Setting:
    how = scenario.model.quantization
    if how == "fp8":
        return Setting(
            ("--quantization", "fp8"),
            "SGLang rounds 16-bit weights as it loads them; leave the flag out for a checkpoint in FP8",
        )
    return SAME if how is None else Setting(lacks=f"{CHECKPOINTS[how]}; SGLang finds its method")


def _prefix_caching(scenario: Scenario, machine: Machine) -> Setting:
    return SAME if scenario.kv.enable_prefix_caching else Setting(("--disable-radix-cache",))


def _eviction(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.kv.eviction
    if value in EVICTIONS:
        return Setting(
            ("--radix-eviction-policy", value), "near: SGLang evicts leaves of its tree, not blocks"
        )
    return SAME if value == "lru" else Setting(lacks="SGLang evicts by lru, lfu, slru or priority")


def _tiers(scenario: Scenario, machine: Machine) -> Setting:
    if not scenario.kv.tiers:
        return SAME
    size = sum(tier.capacity_gib for tier in scenario.kv.tiers) * 2**30 / GB
    argv = ("--enable-hierarchical-cache", "--hicache-size", f"{size:.0f}")
    return Setting(
        argv, "bandwidth and latency are your machine's; SGLang's first tier is CPU memory, in GB a rank"
    )


def _speculative(scenario: Scenario, machine: Machine) -> Setting:
    keys = scenario.speculative
    if keys is None:
        return SAME
    rows = str(keys.num_speculative_tokens + 1)  # SGLang counts the last known token, which is verified too
    lacks = "acceptance is an assumption here: compare it with spec_accept_length"
    if keys.num_speculative_tokens_per_batch_size is not None:
        lacks += f"; num_speculative_tokens_per_batch_size: {ADAPTIVE}"
    if keys.draft_model is None:
        argv = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", rows)
        return Setting(argv, f"{lacks}; SGLang looks n-grams up in earlier answers too, and drafts trees")
    draft, steps = model_id(keys.draft_model)[0], str(keys.num_speculative_tokens)
    argv = ("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", draft)
    counts = ("--speculative-num-steps", steps, "--speculative-eagle-topk", "1")
    return Setting((*argv, *counts, "--speculative-num-draft-tokens", rows), lacks)


ROUTER_POLICIES = {
    "round_robin": "sglang_router --policy round_robin",
    "random": "sglang_router --policy random",
    "power_of_two": "sglang_router --policy power_of_two",
    "prefix_affinity": "near: sglang_router --policy cache_aware, which keeps a tree of prefixes",
}
"""Policies of SGLang's router by its documentation."""

POOLS = (
    "servers with --disaggregation-mode prefill and decode and --disaggregation-transfer-backend nixl, "
    "behind sglang_router --pd-disaggregation"
)
"""SGLang's documentation, "PD Disaggregation"."""


def _cluster(scenario: Scenario, machine: Machine) -> Setting:
    keys = scenario.cluster
    if keys is None:
        return SAME
    alike = "one server of all replicas (data parallel), whose own balancer chooses unless a router does"
    argv: tuple[str, ...] = ()
    if isinstance(keys.replicas, int) and keys.disaggregation is None:
        argv = ("--dp-size", str(keys.replicas))
    return Setting(argv, fleet_lacks(keys, alike, ROUTER_POLICIES, POOLS))


def _none(section: str, key: str, default: object, why: str = VLLM_ONLY) -> Rule:
    def rule(scenario: Scenario, machine: Machine) -> Setting:
        return SAME if getattr(getattr(scenario, section), key) == default else Setting(lacks=why)

    return rule


def _dtype(scenario: Scenario, machine: Machine) -> Setting:
    return SAME if scenario.model.dtype == "auto" else Setting(("--dtype", scenario.model.dtype))


def _page_size(scenario: Scenario, machine: Machine) -> Setting:
    return SAME if scenario.kv.block_size == 1 else Setting(("--page-size", str(scenario.kv.block_size)))


def _gpus(scenario: Scenario, machine: Machine) -> Setting:
    gpus = scenario.parallel.tensor_parallel_size
    return SAME if gpus == 1 else Setting(("--tp-size", str(gpus)))


def _stages(scenario: Scenario, machine: Machine) -> Setting:
    stages = scenario.parallel.pipeline_parallel_size
    if stages == 1:
        return SAME
    return Setting(
        ("--pp-size", str(stages)), "near: SGLang forms one micro-batch a stage by rules of its own"
    )


def _experts(scenario: Scenario, machine: Machine) -> Setting:
    if not scenario.parallel.expert_parallel:
        return SAME
    return Setting(("--ep-size", str(scenario.parallel.tensor_parallel_size)))


SGLANG: dict[str, Rule] = {
    "model.name": lambda scenario, machine: Setting(("--model-path", model_id(scenario.model.name)[0])),
    "model.dtype": _dtype,
    "model.quantization": _quantization,
    "model.max_model_len": lambda _, machine: Setting(("--context-length", str(machine.max_model_len))),
    "parallel.tensor_parallel_size": _gpus,
    "parallel.pipeline_parallel_size": _stages,
    "parallel.expert_parallel": _experts,
    "parallel.expert_skew": expert_skew,
    "kv.block_size": _page_size,
    "kv.gpu_memory_utilization": _memory,
    "kv.num_gpu_blocks_override": _blocks,
    "kv.reserve_gib": _reserve,
    "kv.kv_cache_dtype": _kv_dtype,
    "kv.enable_prefix_caching": _prefix_caching,
    "kv.eviction": _eviction,
    "kv.tiers": _tiers,
    "scheduler.batching": _batching,
    "scheduler.order": _order,
    "scheduler.victim": _victim,
    "scheduler.admission": _admission,
    "scheduler.preemption": _none("scheduler", "preemption", "recompute", "SGLang retracts and recomputes"),
    "scheduler.max_num_seqs": lambda scenario, _: Setting(
        ("--max-running-requests", str(scenario.scheduler.max_num_seqs))
    ),
    "scheduler.max_num_batched_tokens": _budget,
    "scheduler.long_prefill_token_threshold": _none("scheduler", "long_prefill_token_threshold", 0),
    "scheduler.scheduler_reserve_full_isl": lambda scenario, machine: Setting(
        lacks="near: SGLang reserves by an estimate, see --schedule-conservativeness"
    ),
    "scheduler.watermark": _none("scheduler", "watermark", 0.0),
    "scheduler.async_scheduling": lambda scenario, machine: (
        SAME
        if scenario.scheduler.async_scheduling
        else Setting(lacks="SGLang overlaps host and GPU by default; simulate with async_scheduling: true")
    ),
    "scheduler.min_batch": _none("scheduler", "min_batch", 1),
    "scheduler.max_wait_ms": _none("scheduler", "max_wait_ms", 0),
    "speculative": _speculative,
    "cluster": _cluster,
}
