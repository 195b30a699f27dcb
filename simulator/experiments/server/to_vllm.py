"""Settings as flags of `vllm serve` (0.33), and what vLLM cannot do.

Flags whose defaults vLLM derives from the GPU are always printed; others where they differ from the default.
"""

from __future__ import annotations

import json

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

OWN_SCHEDULER = "the nearest is a scheduler class of your own: --scheduler-cls module.Class"
NGRAM_SIZES = {"prompt_lookup_max": 5, "prompt_lookup_min": 1}
"""What `servetwin gpu` looks up; vLLM by itself looks for five equal tokens only."""
KV_DTYPES = {"fp8": "fp8", "int8": "int8_per_token_head"}


def _batching(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.scheduler.batching
    if value == "chunked":
        return SAME
    if value == "continuous":
        return Setting(
            ("--no-enable-chunked-prefill",),
            "near: vLLM then keeps prompts whole, if they fit into --max-num-batched-tokens",
        )
    if value == "static":
        return Setting(
            lacks="vLLM never waits for a batch; use chunked, or send closed batches by LLM.generate"
        )
    return Setting(lacks=f"vLLM has chunked only; {OWN_SCHEDULER}")


def _order(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.scheduler.order
    if value == "fcfs":
        return SAME
    if value == "priority":
        return Setting(
            ("--scheduling-policy", "priority"),
            "each request must carry its priority (lower = sooner); vllm bench serve sends none",
        )
    return Setting(
        lacks="vLLM orders by fcfs or priority: let a gateway send the key as `priority` under "
        f"--scheduling-policy priority; else {OWN_SCHEDULER}"
    )


def _victim(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.scheduler.victim
    own = "least_important" if scenario.scheduler.order == "priority" else "last_admitted"
    return SAME if value in (None, own) else Setting(lacks=f"vLLM preempts {own}; {OWN_SCHEDULER}")


def _admission(scenario: Scenario, machine: Machine) -> Setting:
    argv: list[str] = []
    others = []
    for name, given in rule_names(scenario.scheduler.admission):
        limit = given.get("limit") if isinstance(given, dict) else given
        if name == "queue_limit" and isinstance(limit, int):
            argv += ["--max-num-queued-reqs", str(limit)]
        else:
            others.append(name)
    lacks = f"{', '.join(others)}: do it in a gateway before the server" if others else ""
    return Setting(tuple(argv), lacks)


def _tiers(scenario: Scenario, machine: Machine) -> Setting:
    tiers = scenario.kv.tiers
    if not tiers:
        return SAME
    gpus = scenario.parallel.num_gpus
    size = sum(tier.capacity_gib for tier in tiers if tier.offload) * gpus  # vLLM's is of all ranks together
    argv = ("--kv-offloading-size", f"{size:g}") if size else ()
    lacks = "bandwidth and latency are your machine's; measure them"
    if len(tiers) > 1 or not size:
        lacks = f"vLLM offloads to one tier of CPU memory and swaps to none; {lacks}"
    return Setting(argv, lacks)


def _reserve(scenario: Scenario, machine: Machine) -> Setting:
    blocks = machine.kv.num_gpu_blocks
    return Setting(
        lacks=f"vLLM measures it itself: its start-up line should say about {blocks:,} blocks "
        f"({machine.kv.usable_blocks * machine.kv.block_size:,} tokens); to force it: "
        f"--num-gpu-blocks-override {blocks}"
        if scenario.kv.num_gpu_blocks_override is None
        else ""
    )


def _speculative(scenario: Scenario, machine: Machine) -> Setting:
    keys = scenario.speculative
    if keys is None:
        return SAME
    config: dict[str, object] = {"method": keys.method, "num_speculative_tokens": keys.num_speculative_tokens}
    if keys.draft_model is not None:
        config["model"] = model_id(keys.draft_model)[0]
    else:
        config |= NGRAM_SIZES
    lacks = [
        "acceptance is an assumption here: compare it with the acceptance rate that the benchmark prints"
    ]
    lengths = keys.num_speculative_tokens_per_batch_size
    if lengths == "auto":
        lacks.append(
            "auto: vLLM has tables, such as [[1, 16, 3], [17, 256, 0]]; find one by runs at fixed lengths"
        )
    elif lengths is not None:
        config["num_speculative_tokens_per_batch_size"] = lengths
    return Setting(("--speculative-config", json.dumps(config)), "; ".join(lacks))


ROUTER_POLICIES = {
    "round_robin": "vllm-router --policy round_robin",
    "random": "vllm-router --policy random",
    "power_of_two": "vllm-router --policy power_of_two",
    "prefix_affinity": "near: vllm-router --policy cache_aware",
    "session_affinity": "near: vllm-router --policy consistent_hash",
    "least_outstanding": "near: the server's own balancer, to which one that waits counts more",
}
"""Router policies by the names of vllm-project/router, its README of 2026."""

POOLS = (
    'servers of each pool with --kv-transfer-config \'{"kv_connector": "NixlConnector", '
    '"kv_role": "kv_both"}\' and a proxy that sends each request to one of both pools'
)
"""vLLM's documentation, "Disaggregated Prefilling"."""


def _cluster(scenario: Scenario, machine: Machine) -> Setting:
    keys = scenario.cluster
    if keys is None:
        return SAME
    alike = "one server of all replicas (data parallel); several machines also need --data-parallel-address"
    argv: tuple[str, ...] = ()
    if isinstance(keys.replicas, int) and keys.disaggregation is None:
        argv = ("--data-parallel-size", str(keys.replicas))
    return Setting(argv, fleet_lacks(keys, alike, ROUTER_POLICIES, POOLS))


def _quantization(scenario: Scenario, machine: Machine) -> Setting:
    how = scenario.model.quantization
    if how == "fp8":
        return Setting(
            ("--quantization", "fp8"),
            "vLLM rounds 16-bit weights as it loads them; leave the flag out for a checkpoint in FP8"
            + ("" if machine.hardware.flops_fp8 else ", on this GPU as weight-only (Marlin)"),
        )
    return SAME if how is None else Setting(lacks=f"{CHECKPOINTS[how]}; vLLM finds its method")


def _preemption(scenario: Scenario, machine: Machine) -> Setting:
    is_same = scenario.scheduler.preemption == "recompute"
    return (
        SAME if is_same else Setting(lacks="vLLM recomputes; with --kv-offloading-size it finds blocks again")
    )


def _eviction(scenario: Scenario, machine: Machine) -> Setting:
    is_same = scenario.kv.eviction == "lru"
    return SAME if is_same else Setting(lacks="vLLM evicts by lru only; run again with lru to see the loss")


def _wait(key: str, none: object) -> Rule:
    def rule(scenario: Scenario, machine: Machine) -> Setting:
        value = getattr(scenario.scheduler, key)
        return (
            SAME
            if value == none
            else Setting(lacks="vLLM starts what it can and never waits; leave it at 1, 0")
        )

    return rule


def _flag(flag: str, section: str, key: str, default: object) -> Rule:
    """Return the rule of a key that is a flag of the same meaning; switches have a --no- form."""

    def rule(scenario: Scenario, machine: Machine) -> Setting:
        value = getattr(getattr(scenario, section), key)
        if value == default:
            return SAME
        if isinstance(value, bool):
            return Setting((f"--{flag}" if value else f"--no-{flag}",))
        return Setting((f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)))

    return rule


def _kv_dtype(scenario: Scenario, machine: Machine) -> Setting:
    value = scenario.kv.kv_cache_dtype
    return SAME if value == "auto" else Setting(("--kv-cache-dtype", KV_DTYPES[value]))


NEVER = object()  # a default that no value equals: the flag is always printed

VLLM: dict[str, Rule] = {
    "model.name": lambda scenario, machine: SAME,  # the command's first argument
    "model.dtype": _flag("dtype", "model", "dtype", "auto"),
    "model.quantization": _quantization,
    "model.max_model_len": lambda _, machine: Setting(("--max-model-len", str(machine.max_model_len))),
    "parallel.tensor_parallel_size": _flag("tensor-parallel-size", "parallel", "tensor_parallel_size", 1),
    "parallel.pipeline_parallel_size": _flag(
        "pipeline-parallel-size", "parallel", "pipeline_parallel_size", 1
    ),
    "parallel.expert_parallel": _flag("enable-expert-parallel", "parallel", "expert_parallel", False),
    "parallel.expert_skew": expert_skew,
    "kv.block_size": _flag("block-size", "kv", "block_size", 16),
    "kv.gpu_memory_utilization": _flag("gpu-memory-utilization", "kv", "gpu_memory_utilization", 0.92),
    "kv.num_gpu_blocks_override": _flag("num-gpu-blocks-override", "kv", "num_gpu_blocks_override", None),
    "kv.reserve_gib": _reserve,
    "kv.kv_cache_dtype": _kv_dtype,
    "kv.enable_prefix_caching": _flag("enable-prefix-caching", "kv", "enable_prefix_caching", True),
    "kv.eviction": _eviction,
    "kv.tiers": _tiers,
    "scheduler.batching": _batching,
    "scheduler.order": _order,
    "scheduler.victim": _victim,
    "scheduler.admission": _admission,
    "scheduler.preemption": _preemption,
    "scheduler.max_num_seqs": _flag("max-num-seqs", "scheduler", "max_num_seqs", NEVER),
    "scheduler.max_num_batched_tokens": _flag(
        "max-num-batched-tokens", "scheduler", "max_num_batched_tokens", NEVER
    ),
    "scheduler.long_prefill_token_threshold": _flag(
        "long-prefill-token-threshold", "scheduler", "long_prefill_token_threshold", 0
    ),
    "scheduler.scheduler_reserve_full_isl": _flag(
        "scheduler-reserve-full-isl", "scheduler", "scheduler_reserve_full_isl", True
    ),
    "scheduler.watermark": _flag("watermark", "scheduler", "watermark", 0.0),
    # vLLM's default is on where it can be, so both are said
    "scheduler.async_scheduling": _flag("async-scheduling", "scheduler", "async_scheduling", NEVER),
    "scheduler.min_batch": _wait("min_batch", 1),
    "scheduler.max_wait_ms": _wait("max_wait_ms", 0),
    "speculative": _speculative,
    "cluster": _cluster,
}
