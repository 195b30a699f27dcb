"""One run as a piece of work that can travel: to another process, to another machine, or nowhere.

Whatever runs many scenarios (draws, tournaments, capacity, sweeps) makes a list of jobs and gets back their
numbers in the same order; where they ran leaves no trace in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from simulator.config.build import Machine, Policies
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.latency.base import LatencyModel
from simulator.latency.paced import Paced
from simulator.latency.uncertainty import drawn
from simulator.workload.workload import Workload

SETTINGS = {
    *("num_prompts", "request_rate", "burstiness", "max_concurrency", "rtfx", "seed", "profile_error"),
    *("attainment_target", "injected", "block_size", "num_gpu_blocks", "usable_blocks"),
}
"""Numbers of a summary that are asked for, not found out."""
FEW_STEPS = 60_000
"""So many steps in all take some two seconds: less than worker processes need to start."""

Values = dict[str, float]
"""A run's metrics by name; what has no value is absent."""
Progress = Callable[[int, int], None]
"""Called with what is done and what there is."""


Deviates = tuple[Mapping[str, float], ...]
"""How many standard errors each term of a latency model is off, for each kind of replica."""


class Job(NamedTuple):
    """One run: `pace` multiplies every step's time, `deviates` draw the errors of its latency model.

    Of a cluster these are one mapping for each kind of replica.
    """

    scenario: Scenario
    policies: Policies
    machine: Machine
    workload: Workload
    deviates: Deviates | None = None
    pace: float = 1.0


def numbers(run: Run) -> Values:
    """Return every number of a run's summary that the run found out, vLLM's keys and ours."""
    both = {**run.own, **run.summary}
    return {
        name: float(value)
        for name, value in both.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in SETTINGS
    }


def serve(job: Job, measure: Callable[[Run], Values] = numbers) -> Values:
    """Run a job and return its metrics, or what `measure`, a function of a module, makes of the run."""

    def changed(latency: LatencyModel, kind: int) -> LatencyModel:
        if job.deviates is not None:
            latency = drawn(latency, job.deviates[kind])
        return latency if job.pace == 1.0 else Paced(latency, job.pace)

    return measure(
        run_scenario(
            job.scenario,
            policies=job.policies,
            machine=job.machine,
            workload=job.workload,
            timing=changed,
        )
    )


def serve_all(
    jobs: Sequence[Job],
    workers: int,
    progress: Progress | None = None,
    measure: Callable[[Run], Values] = numbers,
) -> list[Values]:
    """Run jobs in so many processes (-1: one a core); the result does not depend on how many."""
    from joblib import Parallel, delayed

    found = []
    runs = (delayed(serve)(job, measure) for job in jobs)
    for values in Parallel(n_jobs=workers, return_as="generator")(runs):
        found.append(values)
        if progress is not None:
            progress(len(found), len(jobs))
    return found
