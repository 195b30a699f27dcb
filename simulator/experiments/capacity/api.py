"""`simulator.capacity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, overload

from simulator.config.choose import choose
from simulator.config.scenario import Scenario
from simulator.experiments.candidates import Candidate, candidates_of
from simulator.experiments.capacity.ask import ask_capacity
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_result import FewestGpus
from simulator.experiments.capacity.result import Capacity
from simulator.experiments.progress import ProgressBar


@overload
def capacity(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    vary: Mapping[str, Candidate] | Iterable[str] | None = None,
    *,
    max_gpus: None = None,
    attainment: float | None = None,
    rates: tuple[float, float] | None = None,
    tolerance: float | None = None,
    replications: int | None = None,
    slo: Mapping[str, float] | None = None,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    n_model_draws: int = 0,
    trust: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> Capacity: ...
@overload
def capacity(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    vary: Mapping[str, Candidate] | Iterable[str] | None = None,
    *,
    max_gpus: int,
    attainment: float | None = None,
    rates: tuple[float, float] | None = None,
    tolerance: float | None = None,
    replications: int | None = None,
    slo: Mapping[str, float] | None = None,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    n_model_draws: int = 0,
    trust: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> FewestGpus: ...
def capacity(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    vary: Mapping[str, Candidate] | Iterable[str] | None = None,
    *,
    max_gpus: int | None = None,
    attainment: float | None = None,
    rates: tuple[float, float] | None = None,
    tolerance: float | None = None,
    replications: int | None = None,
    slo: Mapping[str, float] | None = None,
    set: Mapping[str, object] | None = None,
    seed: int | None = None,
    n_model_draws: int = 0,
    trust: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> Capacity | FewestGpus:
    """Find the highest request rate at which the share `attainment` of all requests meets the SLO.

    With `max_gpus` the load stays as it is: find the fewest replicas, of so many GPUs at most, that serve it
    within the SLO. `vary` gives one answer per candidate: candidates as `compare` takes them, or items
    "key=a,b" as the command does. `rates` bounds the search for a rate, which is found within `tolerance`
    (0.02); `slo` maps ttft, tpot, e2el to ms; `workers` are processes. The rest is as in `simulate` and
    `compare`. ConfigError says what cannot be used.
    """
    base, policies = choose(scenario, set, trust=trust, seed=seed)
    if slo is not None:
        limits: dict[str, object] = {"slo.ttft_ms": None, "slo.tpot_ms": None, "slo.e2el_ms": None}
        base = base.with_(**limits | {f"slo.{name}_ms": value for name, value in slo.items()})
    items = vary if vary is None or isinstance(vary, Mapping) else candidates_of(vary)
    with ProgressBar(f"{base.name}, capacity", unit="runs") as bar:
        found = ask_capacity(
            base,
            items,
            max_gpus=max_gpus,
            attainment=attainment,
            rates=rates,
            tolerance=tolerance,
            replications=replications,
            n_model_draws=n_model_draws,
            policies=policies,
            workers=workers,
            progress=None if progress is False else bar,
        )
    return FewestGpus(found) if isinstance(found, Fewest) else Capacity(found)
