"""Run a sweep: what is missing, on a backend, into the journal; or say beforehand how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from simulator.config.run import run_scenario
from simulator.errors import ConfigError, SimulatorError, suggest
from simulator.experiments.jobs import SETTINGS
from simulator.experiments.sweep.backends import check_backend, num_cores, open_pool
from simulator.experiments.sweep.journal import Journal, Key, Shard, runs_of
from simulator.experiments.sweep.points import Sweep
from simulator.experiments.sweep.tasks import Outcome, Task, died, machine_of, run_task

WORTH_PROCESSES_S = 5.0
"""Seconds of work from which worker processes are worth their start, where nobody says how many."""
_TRIAL_REQUESTS = 2

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Where:
    """The backend that a sweep runs on; `workers` None: as many as there are cores, if that is worth it."""

    backend: str = "loky"
    address: str | None = None
    workers: int | None = None

    def check(self) -> None:
        check_backend(self.backend, self.address, self.workers)


def run_sweep(
    sweep: Sweep,
    folder: Path | None = None,
    *,
    where: Where = Where(),
    shard: Shard | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[Key, Outcome]:
    """Run what a folder lacks of a sweep, and return all of its runs, or those of a shard.

    Without a folder nothing is kept. `tell` gets what a user must know, a line each. InputError for a folder
    that cannot be written, ConfigError for one that holds another sweep.
    """
    where.check()
    check_shard(sweep, shard)
    check_metrics(sweep)
    found: dict[Key, Outcome] = {}
    with ExitStack() as stack:
        journal = None
        if folder is not None:
            journal = stack.enter_context(Journal(folder, sweep, shard, fresh))
            found = journal.found
        wanted = list(runs_of(sweep, shard))
        missing = [key for key in wanted if key not in found]
        if tell:
            _tell_before(tell, [] if journal is None else journal.told, len(wanted), len(missing))
        num_before = len(found)
        tasks = [_task(sweep, key) for key in missing]
        for place, outcome in stack.enter_context(closing(_outcomes(tasks, where))):
            if journal is None:
                found[missing[place]] = outcome
            else:
                journal.add(missing[place], outcome)
            if progress:
                progress(len(found) - num_before, len(missing))
        if journal is not None:
            journal.finish()
    return {key: found[key] for key in sorted(found)}


def _tell_before(tell: Callable[[str], None], told: list[str], wanted: int, missing: int) -> None:
    for line in told:
        tell(line)
    if missing < wanted:
        tell(f"{wanted - missing:,} of {wanted:,} runs were finished before")


def _task(sweep: Sweep, key: Key) -> Task:
    return sweep.points[key[0]].task(key[1], sweep.plan.replications)


def _outcomes(tasks: list[Task], where: Where) -> Generator[tuple[int, Outcome]]:
    """Yield (place, outcome) as runs end; a short sweep stays in this process."""
    first = 0
    workers = where.workers
    if where.backend == "loky" and workers is None and tasks:
        begin = time.perf_counter()
        yield 0, run_task(tasks[0])
        first = 1
        if (time.perf_counter() - begin) * (len(tasks) - 1) < WORTH_PROCESSES_S:
            workers = 1
    if len(tasks) == first:
        return
    if workers is not None:
        workers = min(workers, len(tasks) - first)
    with open_pool(where.backend, address=where.address, workers=workers) as pool:
        for place, outcome in pool.each(run_task, tasks[first:], died):
            yield first + place, outcome


def check_shard(sweep: Sweep, shard: Shard | None) -> None:
    """Raise ConfigError for a shard that would have nothing to do."""
    if shard is not None and shard.num > sweep.num_runs:
        raise ConfigError(f"--shard {shard.part}/{shard.num}: the sweep has only {sweep.num_runs} runs")


def check_metrics(sweep: Sweep) -> None:
    """Raise ConfigError for a metric that no run has, found out with a run of two requests."""
    try:
        point = sweep.points[0]
        section = point.scenario.workload
        key = "workload.num_requests" if section.trace is None else "workload.limit"
        scenario = point.scenario.with_(**{key: _TRIAL_REQUESTS})
        run = run_scenario(scenario, policies=point.policies, machine=machine_of(scenario))
    except (SimulatorError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return  # the sweep itself will say what is wrong with this point
    known = [
        name
        for name, value in {**run.own, **run.summary}.items()
        if name not in SETTINGS and (value is None or isinstance(value, int | float))
    ]
    for metric in sweep.plan.metrics:
        if metric not in known:
            raise ConfigError(
                f"{sweep.plan.place}: metrics: no such metric {metric!r:.80}{suggest(metric, known)}"
            )


@dataclass(frozen=True)
class Forecast:
    """What a sweep will cost: runs in all, seconds of the runs that were timed, workers."""

    num_runs: int
    timed: tuple[float, ...]
    workers: int

    @property
    def seconds(self) -> float:
        """The estimate: as if every run took the mean of those timed, all workers busy."""
        return self.num_runs * sum(self.timed) / len(self.timed) / min(self.workers, self.num_runs)

    def words(self) -> str:
        """Say it in a line."""
        timed = " and ".join(f"{seconds:.2f} s" for seconds in self.timed)
        hours, minutes = divmod(round(self.seconds / 60), 60)
        long = (
            f"{self.seconds:.0f} s"
            if self.seconds < 120
            else f"{hours} h {minutes} min"
            if hours
            else f"{minutes} min"
        )
        return f"{long} with {self.workers} workers (timed: {timed})"


def forecast(sweep: Sweep, where: Where, shard: Shard | None = None) -> Forecast:
    """Time the first and the middle one of a sweep's runs; nothing is written."""
    where.check()
    check_shard(sweep, shard)
    check_metrics(sweep)
    wanted = list(runs_of(sweep, shard))
    timed = []
    for key in dict.fromkeys((wanted[0], wanted[len(wanted) // 2])):
        begin = time.perf_counter()
        run_task(_task(sweep, key))
        timed.append(time.perf_counter() - begin)
    return Forecast(len(wanted), tuple(timed), where.workers or num_cores())
