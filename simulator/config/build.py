"""From a scenario to the objects that run: model, GPU, memory, latency model, workload, scheduler.

The only place where names are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from simulator.cluster.routers import Router
from simulator.config.cluster import replica_scenarios
from simulator.config.parallel import check_parallel
from simulator.config.policies import PolicyFile, policy_files
from simulator.config.scenario import Scenario
from simulator.config.speculative import build_draft_model
from simulator.errors import ConfigError, suggest
from simulator.kv.eviction import Eviction
from simulator.kv.size import KvSize, kv_size
from simulator.latency.base import LatencyModel
from simulator.latency.drafting import WithLookup, with_draft_model
from simulator.latency.estimate import estimate
from simulator.latency.group import group_profile, pair_of, plain_rank
from simulator.latency.linear import LinearModel
from simulator.latency.pipeline import Pipeline, pipelined
from simulator.latency.profile import Profile
from simulator.latency.profile_file import best_profile_path, shipped_profiles
from simulator.schedulers import Scheduler
from simulator.schedulers.admission import Admission
from simulator.schedulers.orders import Order
from simulator.schedulers.preemption import Victim
from simulator.specs import Hardware, Model, get_hardware, get_model


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
    router: Router | type | None = None
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
    kinds: tuple[Machine, ...] = ()  # of a cluster: that of each kind of replica, this one being the first's

    def with_latency(self, change: Callable[[LatencyModel], LatencyModel]) -> Machine:
        """Return it with another latency model, each kind of replica with its own changed alike."""
        kinds = tuple(kind.with_latency(change) for kind in self.kinds)
        return replace(self, latency=change(self.latency), kinds=kinds)


NOT_THE_MACHINE = {"name", "seed", "scheduler", "workload", "slo", "run"}
"""Sections of a scenario that its machine does not depend on, but for async scheduling."""


def machine_key(scenario: Scenario) -> str:
    """Return a text that is the same for scenarios which run on the same machine."""
    kept = {key: value for key, value in scenario.to_dict().items() if key not in NOT_THE_MACHINE}
    return repr((kept, scenario.scheduler.async_scheduling))


def build_machine(scenario: Scenario) -> Machine:
    """Look up model, GPU and latency model, and size the KV pool; of a cluster, for each kind of replica."""
    if scenario.cluster is None:
        return _one_machine(scenario)
    kinds = tuple(_one_machine(each) for _, each in replica_scenarios(scenario))
    notes = tuple(dict.fromkeys(note for kind in kinds for note in kind.notes))
    return replace(kinds[0], kinds=kinds, notes=notes)


def _one_machine(scenario: Scenario) -> Machine:
    model = get_model(scenario.model.name)
    if scenario.model.dtype != "auto":
        model = replace(model, dtype=scenario.model.dtype, quantization=None)
    if scenario.model.quantization is not None:
        model = model.quantized(scenario.model.quantization)
    hardware = get_hardware(scenario.hardware.gpu)
    max_model_len = scenario.model.max_model_len or model.max_model_len
    if max_model_len > model.max_model_len:
        raise ConfigError(
            f"model.max_model_len: {max_model_len} exceeds the {model.max_model_len} of {model.name}"
        )
    if scenario.speculative is not None and scenario.scheduler.async_scheduling:
        raise ConfigError("scheduler.async_scheduling: must be false under speculative, got true")
    check_parallel(scenario, model)
    draft = build_draft_model(scenario.speculative, model)
    size = kv_size(
        model,
        hardware,
        draft=draft,
        context=max_model_len,
        block_size=scenario.kv.block_size,
        gpu_memory_utilization=scenario.kv.gpu_memory_utilization,
        reserve_gib=scenario.kv.reserve_gib,
        kv_cache_dtype=scenario.kv.kv_cache_dtype,
        tensor_parallel_size=scenario.parallel.tensor_parallel_size,
        num_gpu_blocks_override=scenario.kv.num_gpu_blocks_override,
        pipeline_parallel_size=scenario.parallel.pipeline_parallel_size,
    )
    latency = build_latency(scenario, model, hardware)
    notes = list(_latency_notes(scenario, latency))
    if scenario.speculative is not None and draft is not None:
        latency = with_draft_model(
            latency,
            hardware,
            draft,
            scenario.speculative.num_speculative_tokens,
            scenario.kv.kv_cache_dtype,
            scenario.parallel.tensor_parallel_size,
        )
        notes.append(f"the draft model {draft.name} is priced by the roofline, without host time")
    if scenario.speculative is not None and scenario.speculative.lookup_us:
        latency = WithLookup(latency, scenario.speculative.lookup_us / 1e6)
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
    is_profile = section.kind == "profile"
    if model.moe is not None:
        model = replace(model, moe=replace(model.moe, skew=scenario.parallel.expert_skew))
    gpus, stages = scenario.parallel.tensor_parallel_size, scenario.parallel.pipeline_parallel_size
    if section.kind == "linear":
        latency = _linear(section.coefficients or {})
    else:
        kv_dtype = scenario.kv.kv_cache_dtype
        measured = group_profile(hardware, model, gpus, section.profile, kv_dtype) if is_profile else None
        latency = measured or estimate(
            hardware,
            model,
            kv_dtype,
            tensor_parallel_size=gpus,
            expert_parallel=scenario.parallel.expert_parallel,
        )
    if stages > 1:
        pair = pair_of(hardware, section.profile) if is_profile else None
        latency = pipelined(latency, hardware, model, stages, gpus, pair)
    return latency.overlapped() if scenario.scheduler.async_scheduling else latency


def profile_path(scenario: Scenario, machine: Machine) -> Path | None:
    """Return the profile's file that a run of the scenario reads, None if it reads none."""
    section = scenario.latency
    if section.kind != "profile":
        return None
    if section.profile is None:
        return best_profile_path(
            machine.hardware, plain_rank(machine.model, scenario.parallel.tensor_parallel_size)
        )
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
    profile = latency if isinstance(latency, Profile) else None
    if scenario.latency.kind == "profile" and profile is not None and profile.reach is None:
        notes.append("no profile is shipped for this GPU and model: times are estimated from the roofline")
    if profile is not None and profile.derived:
        notes.append(
            "times are derived, not measured: the profile is of 16-bit weights and KV cache, moved by the "
            f"ratio of two rooflines, whose error is unknown; {'; '.join(profile.derived)}"
        )
    if profile is None and (scenario.kv.kv_cache_dtype != "auto" or scenario.model.quantization is not None):
        notes.append(
            "model.quantization and kv.kv_cache_dtype change only the memory: coefficients are as given"
        )
    return [*notes, *_group_notes(scenario, latency)]


def _group_notes(scenario: Scenario, latency: LatencyModel) -> list[str]:
    """Say what is per GPU in a group, and what about it is no measurement."""
    gpus = scenario.parallel.tensor_parallel_size
    notes = _pipeline_notes(scenario, latency) if isinstance(latency, Pipeline) else []
    if scenario.parallel.expert_parallel:
        notes.append(
            f"expert parallel: whole experts on each of {gpus} GPUs, popular by a Zipf exponent of "
            f"{scenario.parallel.expert_skew:g}, an assumption; a layer ends when the busiest GPU does, and "
            "results are summed by the tensor-parallel all-reduce, as in vLLM without data parallelism"
        )
    if isinstance(latency, Pipeline):
        latency = latency.stages[0]
    if gpus == 1:
        return notes
    notes += [
        f"tensor parallel {gpus}: weights and KV blocks are those of each GPU, throughput and cost of all "
        f"{gpus} together"
    ]
    if not isinstance(latency, Profile) or latency.communication is None:
        return [*notes, "latency.coefficients are taken as the whole group's"]
    notes.append(
        f"communication is added to one GPU's times, {latency.communication.source}; its level is uncertain "
        f"by {latency.communication.error:.0%}, and the host time is a single GPU's"
    )
    if scenario.kv.tiers:
        notes.append("kv.tiers: capacity and bandwidth are each GPU's own")
    return notes


def _pipeline_notes(scenario: Scenario, latency: Pipeline) -> list[str]:
    """Say what a pipeline's numbers are of, and what about them is assumed."""
    n = len(latency.stages)
    return [
        f"pipeline parallel {n}: stages of {', '.join(map(str, latency.layers))} layers; KV blocks are those "
        f"of the stage with the fewest, throughput and cost of all {scenario.parallel.num_gpus} GPUs",
        f"up to {n} batches are under way at once, each of up to max_num_batched_tokens tokens, "
        "and max_num_seqs bounds all together; each stage has the whole host time of a step; "
        "links are not measured",
    ]
