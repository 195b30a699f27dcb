"""From a scenario to the objects that run: model, GPU, memory, latency model, workload, scheduler.

The only place where names are looked up.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from simulator.config.admission import build_rules
from simulator.config.policies import Policy, PolicyFile, find_policy, policy_files
from simulator.config.scenario import Scenario, SchedulerSection, SessionsSection, WorkloadSection
from simulator.config.tenants import tenant_weights, tenants_of
from simulator.config.tiers import build_tiers
from simulator.engine.clients import ClientPlan
from simulator.errors import ConfigError, suggest
from simulator.kv.block_manager import BlockManager
from simulator.kv.eviction import EVICTIONS, Eviction
from simulator.kv.size import KvSize, kv_size
from simulator.latency.base import LatencyModel
from simulator.latency.estimate import estimate
from simulator.latency.linear import LinearModel
from simulator.latency.profile_file import best_profile, best_profile_path, load_profile, shipped_profiles
from simulator.schedulers import BATCHING, COLLECT_PRESETS, Scheduler
from simulator.schedulers.admission import ADMISSIONS, Admission
from simulator.schedulers.orders import ORDERS, Order
from simulator.schedulers.preemption import VICTIMS, Victim
from simulator.specs import Hardware, Model, get_hardware, get_model
from simulator.workload.arrivals import ARRIVALS
from simulator.workload.generate import draw_arrivals, generate
from simulator.workload.traces import read_trace
from simulator.workload.traces.rows import MAX_SPAN
from simulator.workload.workload import Workload

_STREAMS = {
    "spread": 2,
    "pre_delay": 3,
    "cancel": 4,
    "tenants": 5,
    "predicted_len": 6,
}  # of the seed; generate() uses 0 and 1


@dataclass(frozen=True)
class Policies:
    """Policies given as Python objects; None leaves the choice to the scenario.

    `trusted` are values of the form file.py:name that may be loaded; `trust` allows them all. `files` hold
    the code of files and objects as it was when a run began: its reruns use the same files, its folder has
    both.
    """

    batching: type[Scheduler] | None = None
    order: Order | None = None
    victim: Victim | None = None
    admission: Sequence[Admission] | None = None
    eviction: Eviction | None = None
    trusted: Collection[str] = field(default_factory=frozenset)
    trust: bool = False
    files: tuple[PolicyFile, ...] = ()

    def reading(self, scenario: Scenario) -> Policies:
        """Return these with the code of every policy of the user's as it is now, unless held already."""
        return replace(self, files=policy_files(scenario, self.files, self))

    def allows(self, value: str) -> bool:
        return self.trust or value in self.trusted


NO_POLICIES = Policies()
"""All policies as the scenario names them."""


@dataclass(frozen=True)
class Machine:
    """What a scenario runs on: fixed for the run, shared by all its policies."""

    model: Model
    hardware: Hardware
    max_model_len: int
    kv: KvSize
    latency: LatencyModel
    notes: tuple[str, ...]  # assumptions that the reader of a result must know


def build_machine(scenario: Scenario) -> Machine:
    """Look up model, GPU and latency model, and size the KV pool."""
    model = get_model(scenario.model.name)
    if scenario.model.dtype != "auto":
        model = replace(model, dtype=scenario.model.dtype, quantization=None)
    hardware = get_hardware(scenario.hardware.gpu)
    max_model_len = scenario.model.max_model_len or model.max_model_len
    if max_model_len > model.max_model_len:
        raise ConfigError(
            f"model.max_model_len: {max_model_len} exceeds the {model.max_model_len} of {model.name}"
        )
    size = kv_size(
        model,
        hardware,
        context=max_model_len,
        block_size=scenario.kv.block_size,
        gpu_memory_utilization=scenario.kv.gpu_memory_utilization,
        reserve_gib=scenario.kv.reserve_gib,
        kv_cache_dtype=scenario.kv.kv_cache_dtype,
        num_gpu_blocks_override=scenario.kv.num_gpu_blocks_override,
    )
    latency = build_latency(scenario, model, hardware)
    notes = list(_latency_notes(scenario, latency))
    if not size.is_override:
        notes.append(
            f"{size.num_gpu_blocks:,} KV blocks are derived with {scenario.kv.reserve_gib:g} GiB assumed for "
            "activations and CUDA graphs; kv.num_gpu_blocks_override takes the number vLLM prints at start-up"
        )
    return Machine(model, hardware, max_model_len, size, latency, tuple(notes))


def build_latency(scenario: Scenario, model: Model, hardware: Hardware) -> LatencyModel:
    """Return the latency model the scenario names: profile, roofline or line."""
    section = scenario.latency
    latency: LatencyModel
    if section.kind == "linear":
        latency = _linear(section.coefficients or {})
    elif section.kind == "profile" and section.profile is not None:
        latency = load_profile(section.profile, model)
    else:
        shipped = best_profile(hardware, model) if section.kind == "profile" else None
        latency = shipped or estimate(hardware, model, scenario.kv.kv_cache_dtype)
    return latency.overlapped() if scenario.scheduler.async_scheduling else latency


def profile_path(scenario: Scenario, machine: Machine) -> Path | None:
    """Return the profile's file that a run of the scenario reads, None if it reads none."""
    section = scenario.latency
    if section.kind != "profile":
        return None
    if section.profile is None:
        return best_profile_path(machine.hardware, machine.model)
    return shipped_profiles().get(section.profile, Path(section.profile))


def _linear(coefficients: dict[str, float]) -> LinearModel:
    known = ("constant", "per_token", "per_seq", "per_kv_token", "per_prefill_work", "host")
    for name in coefficients:
        if name not in known:
            raise ConfigError(f"latency.coefficients.{name}: unknown{suggest(name, known)}")
    try:
        return LinearModel(**{"constant": 0.0, **coefficients})  # type: ignore[arg-type]  # names checked above
    except ValueError as error:
        raise ConfigError(f"latency.coefficients: {error}") from None


def _latency_notes(scenario: Scenario, latency: LatencyModel) -> list[str]:
    notes = []
    if scenario.latency.kind == "profile" and latency.error is None:
        notes.append("no profile is shipped for this GPU and model: times are estimated from the roofline")
    if scenario.kv.kv_cache_dtype != "auto" and latency.error is not None:
        notes.append(
            "the profile was measured with a 16-bit KV cache; kv_cache_dtype changes only the memory"
        )
    return notes


def build_workload(scenario: Scenario, max_model_len: int) -> Workload:
    """Read the trace or draw the requests, with everything the scenario changes about them."""
    section = scenario.workload
    if section.trace is not None:
        workload = read_trace(
            section.trace,
            format=section.format,
            columns=section.columns,
            time_unit=section.time_unit,
            start_s=section.start_s,
            duration_s=section.duration_s,
            seed=scenario.seed,
        )
    else:
        workload = generate(section.arrivals, section.lengths, section.num_requests, seed=scenario.seed)
    if section.tenants is not None:
        workload = workload.with_tenants(tenants_of(scenario), _stream(scenario.seed, "tenants"))
    workload = _with_sessions(workload, section, scenario.seed)
    if section.start_s or section.duration_s or section.limit:
        workload = workload.window(section.start_s, section.duration_s, section.limit)
    if section.rate_scale != 1.0:
        workload = workload.scaled(section.rate_scale)
    if section.spread_ms:
        workload = workload.spread(section.spread_ms, _stream(scenario.seed, "spread"))
    if len(workload) and workload.arrival[-1] > MAX_SPAN:
        raise ConfigError(
            f"workload: the last request arrives after {workload.arrival[-1]:.3g} s; ten years is the limit"
        )
    if section.timeout_s is not None:
        workload = replace(workload, timeout=np.full(len(workload), section.timeout_s))
    if section.pre_delay_s is not None:
        workload = workload.with_pre_delay(section.pre_delay_s, _stream(scenario.seed, "pre_delay"))
    if section.cancel is not None:
        cancel = section.cancel
        workload = workload.with_cancel(cancel.fraction, cancel.after_s, _stream(scenario.seed, "cancel"))
    workload = workload.with_max_tokens(section.max_tokens, max_model_len)
    if section.predicted_len is not None:
        rng = _stream(scenario.seed, "predicted_len")
        workload = workload.with_predicted_len(section.predicted_len.sigma, rng)
    return workload


def _with_sessions(workload: Workload, section: WorkloadSection, seed: int) -> Workload:
    """Replay sessions as the scenario says; a trace's begin by the arrival process, if one is given."""
    if workload.follows is None:
        return workload
    if section.trace is not None and section.arrivals != WorkloadSection().arrivals:
        starts = draw_arrivals(section.arrivals, workload.num_sessions, seed)
        workload = workload.with_session_starts(starts)
    sessions = section.sessions or SessionsSection()
    return workload.replayed(sessions.replay, sessions.think_cap_s, sessions.time_scale)


def _stream(seed: int, component: str) -> np.random.Generator:
    """Return a component's own random stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAMS[component],)))


def client_plan(scenario: Scenario, workload: Workload) -> ClientPlan:
    """Return how the workload's clients behave."""
    limit, pause = workload.closed_loop or (scenario.workload.max_concurrency, None)
    return ClientPlan(
        follows=workload.follows,
        think=workload.think,
        pre_delay=workload.pre_delay,
        cancel_after=workload.cancel_after,
        max_concurrency=limit,
        pause=pause,
    )


def with_rate(scenario: Scenario, rate: float) -> Scenario:
    """Return the scenario at this many requests/s: its process takes the rate, other times are rescaled."""
    if not 0 < rate < float("inf"):
        raise ConfigError(f"rate: must be > 0 and finite, got {rate}")
    arrivals = scenario.workload.arrivals
    process = ARRIVALS.get(arrivals.get("kind", ""))
    if scenario.workload.trace is None and process and "rate" in inspect.signature(process).parameters:
        return scenario.with_(**{"workload.arrivals.rate": rate})
    plain = build_workload(scenario.with_(**{"workload.rate_scale": 1.0}), max_model_len=2)
    span = float(plain.arrival[-1]) if len(plain) else 0.0
    if span <= 0:
        raise ConfigError("rate: the requests all arrive at once, so their times cannot be rescaled")
    return scenario.with_(**{"workload.rate_scale": rate * span / len(plain)})


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
