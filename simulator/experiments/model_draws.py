"""How far a profile's own error can move a result: the same requests under many models that may be true.

Each draw takes every term of the latency model by a factor from the term's stated error, and serves the
run's requests again. Policies that ask for step times get the profile's, as they would on a server: what a
draw changes is the truth, not what is known of it. Draw i is the same for every candidate whose times come
from the same source, so an error that candidates share cancels in their difference; two sources (two GPUs,
two profiles, a profile and an estimate) err independently.
Left out: everything that is no error of a term's level, as docs/limits.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulator.config.build import Machine, profile_path
from simulator.config.cluster import replica_scenarios
from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.intervals import METHOD, Interval, interval_of
from simulator.experiments.jobs import FEW_STEPS, Deviates, Job, Values, serve_all
from simulator.latency.uncertainty import draw_deviates, error_terms

MIN_DRAWS = 2  # one value spans nothing


@dataclass(frozen=True)
class ModelDraws:
    """Metrics of several candidates under the same draws: `values[candidate][i]` is what draw i gave."""

    num_draws: int
    seed: int
    errors: dict[str, dict[str, float]]  # relative standard errors by term, for each source of times
    sources: dict[str, str]  # candidate to source
    values: dict[str, list[Values]]

    def to_dict(self) -> dict[str, object]:
        """Return what was drawn and how intervals come of it, as JSON."""
        return {
            "draws": self.num_draws,
            "seed": self.seed,
            "quantile_method": METHOD,
            "errors": self.errors,
        }

    def interval(self, candidate: str, metric: str) -> Interval | None:
        """Return the model interval of a metric, over the draws in which it has a value."""
        return interval_of(values[metric] for values in self.values[candidate] if metric in values)

    def intervals(self, candidate: str) -> dict[str, Interval]:
        """Return the model interval of every metric that has one."""
        names = dict.fromkeys(name for values in self.values[candidate] for name in values)
        found = {name: self.interval(candidate, name) for name in names}
        return {name: each for name, each in found.items() if each is not None}

    def pairs(self, candidate: str, baseline: str, metric: str) -> list[tuple[float, float]]:
        """Return a metric of two candidates in each draw in which both have it."""
        both = zip(self.values[candidate], self.values[baseline], strict=True)
        return [
            (ours[metric], theirs[metric]) for ours, theirs in both if metric in ours and metric in theirs
        ]


def checked_draws(k: int) -> int:
    """Return k if so many draws can be made, 0 for none; ConfigError else."""
    if isinstance(k, bool) or not isinstance(k, int) or not (k == 0 or k >= MIN_DRAWS):
        raise ConfigError(f"n_model_draws (--model-draws): must be 0 or at least {MIN_DRAWS}, got {k!r:.40}")
    return k


def draw_models(
    runs: Mapping[str, Run],
    k: int,
    seed: int,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ModelDraws:
    """Serve every run's requests again under k draws of its latency model's errors.

    `workers` are processes, None as many as there are cores if that is worth their start; the result does
    not depend on it. ConfigError for a latency model that states no errors.
    """
    sources = {name: source_of(run) for name, run in runs.items()}
    errors: dict[str, dict[str, float]] = {}
    jobs = []
    for run in runs.values():
        for source, machine in _kinds(run.scenario, run.machine):
            errors.setdefault(source, {}).update(error_terms(machine.latency))
        for deviates in draw_kinds(run.scenario, run.machine, k, seed):
            jobs.append(Job(run.scenario, run.policies, run.machine, run.workload, deviates))
    if workers is None:
        workers = 1 if k * sum(len(run.steps) for run in runs.values()) <= FEW_STEPS else -1
    found = serve_all(jobs, workers, progress)
    values = {name: found[i * k : (i + 1) * k] for i, name in enumerate(runs)}
    return ModelDraws(k, seed, errors, sources, values)


def draw_kinds(scenario: Scenario, machine: Machine, k: int, seed: int) -> list[Deviates]:
    """Return k draws of the errors of a machine, each kind of replica's own; one source errs once."""
    columns = [
        draw_deviates(error_terms(each.latency), k, seed, source)
        for source, each in _kinds(scenario, machine)
    ]
    return list(zip(*columns, strict=True))


def check_drawable(machine: Machine) -> None:
    """Raise ConfigError for a machine of which a latency model states no errors."""
    for each in machine.kinds or (machine,):
        error_terms(each.latency)


def _kinds(scenario: Scenario, machine: Machine) -> list[tuple[str, Machine]]:
    """Return the kinds of replicas, each with the source of its times."""
    scenarios = (each for _, each in replica_scenarios(scenario))
    machines = machine.kinds or (machine,)
    return [(source_name(one, each), each) for one, each in zip(scenarios, machines, strict=True)]


def source_of(run: Run) -> str:
    """Name where a run's step times come from; runs with the same source share its error."""
    return source_name(run.scenario, run.machine)


def source_name(scenario: Scenario, machine: Machine) -> str:
    """Name where the step times of a scenario come from; of a cluster, those of all kinds of replicas."""
    if machine.kinds:
        return " and ".join(dict.fromkeys(name for name, _ in _kinds(scenario, machine)))
    path, gpu = profile_path(scenario, machine), machine.hardware.name
    return f"estimate for {gpu}" if path is None else f"{path.name} on {gpu}"
