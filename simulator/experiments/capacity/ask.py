"""Which of the two questions of capacity is asked: the highest rate, or, with `max_gpus`, the fewest GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.candidates import Candidate
from simulator.experiments.capacity import gpus_words, words
from simulator.experiments.capacity.find import find_capacity
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.gpus import find_fewest
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_report import gpus_folder, gpus_text, save_gpus
from simulator.experiments.capacity.point import TOLERANCE
from simulator.experiments.capacity.report import capacity_folder, capacity_text, save_capacity
from simulator.experiments.jobs import Progress


def ask_capacity(
    scenario: Scenario,
    candidates: Mapping[str, Candidate] | None,
    *,
    max_gpus: int | None = None,
    attainment: float | None = None,
    rates: tuple[float, float] | None = None,
    tolerance: float | None = None,
    replications: int | None = None,
    n_model_draws: int = 0,
    policies: Policies = NO_POLICIES,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Found | Fewest:
    """Search the highest rate within `tolerance`, or the fewest GPUs at the scenario's own load.

    ConfigError for what only the other question has a use for.
    """
    if max_gpus is None:
        return find_capacity(
            scenario,
            candidates,
            attainment=attainment,
            rates=rates,
            tolerance=TOLERANCE if tolerance is None else tolerance,
            replications=replications,
            n_model_draws=n_model_draws,
            policies=policies,
            workers=workers,
            progress=progress,
        )
    if rates is not None:
        raise ConfigError(
            "--max-gpus counts GPUs at the scenario's own load: --rates has no meaning; see --rate"
        )
    if tolerance is not None:
        raise ConfigError("--max-gpus finds a whole number of replicas: --tolerance has no meaning")
    return find_fewest(
        scenario,
        candidates,
        max_gpus=max_gpus,
        attainment=attainment,
        replications=replications,
        n_model_draws=n_model_draws,
        policies=policies,
        workers=workers,
        progress=progress,
    )


def save(found: Found | Fewest, out: Path | None, *, report: bool) -> list[Path]:
    """Write the answer's folder, by default one of its own under runs/, and return what was written."""
    if isinstance(found, Fewest):
        return save_gpus(found, out or gpus_folder(found), report=report)
    return save_capacity(found, out or capacity_folder(found), report=report)


def json_text(found: Found | Fewest) -> str:
    """Return capacity.json."""
    return gpus_text(found) if isinstance(found, Fewest) else capacity_text(found)


def text(found: Found | Fewest) -> str:
    """Return the answer as text."""
    return gpus_words.text(found) if isinstance(found, Fewest) else words.text(found)
