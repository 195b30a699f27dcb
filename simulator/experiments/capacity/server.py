"""Serve what searches ask for: all of one round together, so that both cores have work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.config.build import Machine, Policies
from simulator.config.scenario import Scenario
from simulator.experiments.capacity.measure import measure
from simulator.experiments.capacity.search import CURVE, DOUBLINGS
from simulator.experiments.jobs import FEW_STEPS, Deviates, Job, Progress, Values, serve_all
from simulator.workload.workload import Workload


class Asked(Protocol):
    """What is searched, at a rate or, where GPUs are counted, with a number of replicas."""

    def replica(self, rate: float, index: int) -> Scenario: ...

    def workload(self, rate: float, index: int) -> Workload: ...


class Answering(Protocol):
    """Who takes in what was found."""

    @property
    def loads(self) -> Asked: ...

    def add(self, rate: float, values: tuple[Values, ...]) -> None: ...


@dataclass
class Search:
    """A search under way: of a candidate as it is, or under a draw of its model's error.

    `asks` yields the rates (or numbers of replicas) to test, on the first `num` replications.
    """

    answer: Answering
    asks: Iterator[Sequence[float]]
    num: int
    policies: Policies
    machine: Machine
    deviates: Deviates | None = None

    def jobs(self, rate: float) -> list[Job]:
        """Return the runs of one rate."""
        loads = self.answer.loads
        return [
            Job(loads.replica(rate, i), self.policies, self.machine, loads.workload(rate, i), self.deviates)
            for i in range(self.num)
        ]


class Server:
    """Serves what searches ask for, all of one round together."""

    def __init__(self, workers: int | None, progress: Progress | None) -> None:
        self.workers = workers
        self.progress = progress
        self.done = 0

    def serve(self, searches: list[Search]) -> None:
        """Run the searches to their ends."""
        guess = self.done + sum(each.num for each in searches) * (len(CURVE) + DOUBLINGS // 2)
        while searches:
            asked = [(each, rates) for each in searches if (rates := next(each.asks, None)) is not None]
            wanted = [(each, rate) for each, rates in asked for rate in rates]
            jobs = [job for each, rate in wanted for job in each.jobs(rate)]
            values = iter(self._serve(jobs, max(guess, self.done + len(jobs))))
            for each, rate in wanted:
                each.answer.add(rate, tuple(next(values) for _ in range(each.num)))
            searches = [each for each, _ in asked]

    def _serve(self, jobs: list[Job], total: int) -> list[dict[str, float]]:
        before, report = self.done, self.progress
        self.done += len(jobs)
        show = None if report is None else lambda done, _: report(before + done, total)
        if not jobs:
            return []
        if self.workers is not None:
            return serve_all(jobs, self.workers, show, measure)
        first = serve_all(jobs[:1], 1, None, measure)
        self.workers = 1 if first[0]["num_steps"] * total <= FEW_STEPS else -1
        return first + serve_all(jobs[1:], self.workers, show, measure)
