"""What a notebook imports: simulate, look, compare two runs, size memory, read traces.

Everything here is a thin call into the packages below; heavy libraries load when first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from simulator.batch import Batch, Chunk
from simulator.cluster.routers import ROUTERS, Router
from simulator.config.build import Policies
from simulator.config.choose import choose
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, InputError, SimulatorError
from simulator.experiments.bounds import find_bounds
from simulator.experiments.bounds_result import Bounds
from simulator.experiments.cache_replay import replay_cache as _replay_cache
from simulator.experiments.cache_result import CacheResult
from simulator.experiments.capacity.api import capacity
from simulator.experiments.capacity.gpus_result import FewestGpus
from simulator.experiments.capacity.result import Capacity
from simulator.experiments.compare import Candidate
from simulator.experiments.compare import compare as _compare
from simulator.experiments.diff import diff as _diff
from simulator.experiments.diff_result import Diff
from simulator.experiments.judge import judge
from simulator.experiments.model_draws import checked_draws
from simulator.experiments.model_interval import add_model_interval, drawable_machine
from simulator.experiments.progress import ProgressBar
from simulator.experiments.result import Comparison, Result
from simulator.experiments.run_folder import load_run as _load_run
from simulator.experiments.search.api import search
from simulator.experiments.search.search_result import SearchResult
from simulator.experiments.sweep.plan import read_plan
from simulator.experiments.sweep.points import build_sweep
from simulator.experiments.sweep.result import SweepResult
from simulator.experiments.sweep.run import Where, run_sweep
from simulator.kv.cached_block import Block
from simulator.kv.eviction import EVICTIONS, Eviction
from simulator.kv.size import KvSize, kv_size
from simulator.latency.profile import Profile
from simulator.latency.profile_file import load_profile
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.admission import ADMISSIONS, ADMIT, SHED, WAIT, Admission
from simulator.schedulers.context import Context
from simulator.schedulers.orders import ORDERS, Order
from simulator.schedulers.preemption import VICTIMS, Victim
from simulator.workload.traces import read_trace as load_trace
from simulator.workload.workload import Workload

if TYPE_CHECKING:
    pass

__all__ = [
    "ADMISSIONS",
    "ADMIT",
    "BATCHING",
    "EVICTIONS",
    "ORDERS",
    "ROUTERS",
    "SHED",
    "VICTIMS",
    "WAIT",
    "Batch",
    "Block",
    "Bounds",
    "CacheResult",
    "Capacity",
    "Chunk",
    "Comparison",
    "ConfigError",
    "Context",
    "Diff",
    "FewestGpus",
    "InputError",
    "KvSize",
    "Profile",
    "Request",
    "Result",
    "Scenario",
    "Scheduler",
    "SearchResult",
    "Sequence",
    "SimulatorError",
    "SweepResult",
    "Workload",
    "bounds",
    "capacity",
    "compare",
    "diff",
    "kv_size",
    "load_profile",
    "load_run",
    "load_scenario",
    "load_trace",
    "replay_cache",
    "search",
    "simulate",
    "sweep",
]


Rule = str | Mapping[str, Any] | Admission
"""An admission rule: its name, {name: arguments}, or the function itself."""


def compare(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    candidates: Mapping[str, Candidate],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    replications: int | str | None = "auto",
    max_seconds: float | None = None,
    margin: float | None = None,
    slo: Mapping[str, float] | None = None,
    n_model_draws: int = 0,
    trust: bool = False,
) -> Comparison:
    """Run candidates on the same requests, side by side, and say which differences are more than chance.

    A candidate is a mapping of scenario keys to values, which may be policies of your own, or a batching
    class or order itself. `slo` maps ttft, tpot, e2el to ms. With `n_model_draws` all run again under so many
    draws of the profile's errors, common to all: metrics and differences get model intervals.

    Every candidate serves the same replications of the requests. A number of `replications` is served at
    once; "auto" adds them until verdicts are possible, for at most `max_seconds` (60), and waits until
    `.verdicts` or the like asks; None makes none. `margin` is how small a difference is a tie: a share of the
    baseline's mean (0.05), for attainment an absolute one (0.01). `trust` loads policy files that the
    scenario names. ConfigError says what cannot be used.
    """
    base = load_scenario(scenario)
    if slo is not None:
        limits: dict[str, object] = {"slo.ttft_ms": None, "slo.tpot_ms": None, "slo.e2el_ms": None}
        base = base.with_(**limits | {f"slo.{name}_ms": value for name, value in slo.items()})
    at_once = None if replications == "auto" else replications
    with ProgressBar(base.name, unit="runs" if n_model_draws or at_once else "candidates") as bar:
        found = _compare(
            base,
            candidates,
            metric=metric,
            baseline=baseline,
            policies=Policies(trust=trust),
            n_model_draws=n_model_draws,
            replications=at_once,
            max_seconds=max_seconds,
            margin=margin,
            progress=bar,
        )

    def replicate() -> None:
        with ProgressBar(f"{base.name}, replications", unit="runs") as bar:
            found.replicate("auto", max_seconds=max_seconds, margin=margin, progress=bar)

    return Comparison(found, None if replications is None else replicate)


def replay_cache(
    trace: str | Path | Workload,
    evictions: Iterable[str | Eviction] | Mapping[str, Eviction] = tuple(EVICTIONS),
    capacities: Iterable[int] | None = None,
    block_size: int | None = None,
    *,
    vllm_rules: bool = False,
) -> CacheResult:
    """Replay a trace's prefixes against caches of `capacities` blocks, without timing.

    An eviction is a name of `EVICTIONS`, `file.py:name`, or a function or class of your own; LRU and Belady,
    a bound for this replay alone, come along. ConfigError or InputError says what cannot be used.
    """
    workload = trace if isinstance(trace, Workload) else load_trace(trace)
    with ProgressBar("cache", unit="replays") as bar:
        return CacheResult(
            _replay_cache(workload, evictions, capacities, block_size, vllm_rules=vllm_rules, progress=bar)
        )


def simulate(
    scenario: str | Path | Mapping[str, Any] | Scenario = "chat-a100",
    *,
    workload: Workload | None = None,
    batching: str | type[Scheduler] | None = None,
    order: str | Order | None = None,
    victim: str | Victim | None = None,
    preemption: str | None = None,
    admission: Rule | Iterable[Rule] | None = None,
    eviction: str | Eviction | None = None,
    router: str | Router | type | None = None,
    profile: str | None = None,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    n_model_draws: int = 0,
    trust: bool = False,
    bottleneck: bool | None = None,
    progress: bool | None = None,
) -> Result:
    """Simulate a scenario and return its result.

    A policy is a table entry's name, `file.py:name`, or the function or class itself; `preemption` is
    recompute, swap or auto; `router` is for a scenario with a cluster, or makes it one of the replicas that
    `set` names. `set` changes any scenario key by its dotted name. `n_model_draws` runs under
    draws of the profile's errors give each number a model interval. `trust` loads policy files
    that the scenario names by itself. `bottleneck=None` looks for it where the run was quick. ConfigError
    says what cannot be used.

    >>> simulate("tiny-cpu", order="fcfs").summary["completed"]
    40
    """
    resolved, policies = choose(
        scenario,
        set,
        trust=trust,
        batching=batching,
        order=order,
        victim=victim,
        eviction=eviction,
        router=router,
        preemption=preemption,
        admission=list(admission) if _is_several(admission) else admission,
        profile=profile,
        seed=seed,
    )
    machine = drawable_machine(resolved) if checked_draws(n_model_draws) else None
    with ProgressBar(resolved.name) as bar:
        shown = None if progress is False else bar
        run = run_scenario(resolved, policies=policies, machine=machine, workload=workload, progress=shown)
    if n_model_draws:
        with ProgressBar(f"{resolved.name}, model draws", unit="runs") as bar:
            add_model_interval(run, n_model_draws, progress=None if progress is False else bar)
    judge(run, bottleneck)
    return Result.of(run)


def bounds(
    scenario: str | Path | Mapping[str, Any] | Scenario | Result = "chat-a100",
    *,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> Bounds:
    """Say how far a scenario's policy, or a result of `simulate`, is from the best possible.

    `set` and `seed` are those of `simulate`; a result is taken as it is. ConfigError says what is not usable.
    """
    if not isinstance(scenario, Result):
        scenario = simulate(scenario, set=set, seed=seed, bottleneck=False, progress=progress)
    elif set or seed is not None:
        raise ConfigError("bounds: a result is taken as it is; set and seed change a scenario")
    run = scenario._run or scenario._again()
    with ProgressBar(f"{run.scenario.name}, reference") as bar:
        return Bounds(find_bounds(run, progress=None if progress is False else bar))


def sweep(
    sweep: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    backend: str = "loky",
    address: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
    trust: bool = False,
    progress: bool | None = None,
) -> SweepResult:
    """Run every point of a sweep: a sweep file, or a mapping with its keys (base, vary, design, ..).

    Values of a mapping may be policies of your own. With a folder each finished run is kept there, and a
    sweep that was interrupted goes on. `backend` is loky (this machine), dask or ray, perhaps at an
    `address`; the result does not depend on it. `trust` loads policy files that files name. ConfigError says
    what cannot be used. A point that fails is in `.failed`, and the others go on.
    """
    built = build_sweep(read_plan(sweep), Policies(trust=trust))
    where = None if folder is None else Path(folder)
    with ProgressBar(built.plan.name, unit="runs") as bar:
        found = run_sweep(
            built,
            where,
            where=Where(backend, address, workers),
            fresh=fresh,
            progress=None if progress is False else bar,
        )
    result = SweepResult(built, found)
    if where is not None:
        result.write(where)
    return result


def load_run(folder: str | Path, *, trust: bool = False) -> Result:
    """Load a run folder; with `trust` what must be simulated again loads the policy files that it holds."""
    return Result(_load_run(folder), policies=Policies(trust=trust))


def diff(
    a: Result | str | Path,
    b: Result | str | Path,
    *,
    repeat: Result | str | Path | Iterable[Result | str | Path] = (),
    split: bool | None = None,
    trust: bool = False,
) -> Diff:
    """Compare two results or run folders: metrics, the first decision in which they part, and why.

    If one has a decision log, a simulation made here is made again for its own. `repeat` are runs of `a`
    measured again: the noise floor. `split` splits each error into timing and decisions, by default where
    `a` was measured. `trust` loads policy files that the folders hold.
    """
    again = [repeat] if isinstance(repeat, Result | str | Path) else list(repeat)
    one, other, *others = (
        each if isinstance(each, Result) else load_run(each, trust=trust) for each in (a, b, *again)
    )
    has_log = one._saved.decisions is not None or other._saved.decisions is not None
    return _diff(
        one._logged() if has_log else one._saved,
        other._logged() if has_log else other._saved,
        repeats=[each._saved for each in others],
        split=split,
        policies=other._policies,
        workload=None if one._run is None else one._run.workload,
    )


def _is_several(rules: Rule | Iterable[Rule] | None) -> TypeGuard[Iterable[Rule]]:
    return not (rules is None or isinstance(rules, str | Mapping) or callable(rules))
