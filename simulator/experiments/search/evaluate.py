"""Points of a search, tried: the base with their values, on every replication, in the mean.

Replication i has the same requests at every point, so points differ by what they set and not by their luck.
What goes wrong at a point is its result, and the others go on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.config.axes import split_objects
from simulator.config.build import Policies
from simulator.config.policies import PolicyFile
from simulator.config.scenario import Scenario
from simulator.errors import SimulatorError
from simulator.experiments.jobs import Values
from simulator.experiments.search.space import Space, actual
from simulator.experiments.search.study import Point
from simulator.experiments.search.trials import Outcome
from simulator.experiments.sweep.backends import Pool
from simulator.experiments.sweep.tasks import Task, died, run_task


@dataclass
class Evaluator:
    """Tries points in a pool. `policies` come to hold the code of every file as it was when first named."""

    base: Scenario
    space: Space
    policies: Policies
    pool: Pool
    replications: int
    metrics: Sequence[str]  # that are kept

    def candidate(self, point: Point) -> tuple[Scenario, Policies]:
        """Return a point's scenario and policies; ConfigError if there is none."""
        names, objects = split_objects(actual(self.space, point))
        scenario = self.base.with_(**names)
        own = replace(self.policies, **objects).reading(scenario)
        files: dict[tuple[str, str], PolicyFile] = {file[:2]: file for file in self.policies.files}
        files |= {file[:2]: file for file in own.files if not objects}
        self.policies = replace(self.policies, files=tuple(files.values()))
        return scenario, own

    def tried(self, points: Sequence[Point]) -> Iterator[tuple[int, Outcome]]:
        """Yield each point's place and outcome as soon as all its replications are done."""
        tasks: list[Task] = []
        owners: list[int] = []
        for i, point in enumerate(points):
            try:
                scenario, policies = self.candidate(point)
            except SimulatorError as error:
                yield i, Outcome({}, {}, " ".join(str(error).split()))
                continue
            tasks += [Task(scenario, policies, r, self.replications) for r in range(self.replications)]
            owners += [i] * self.replications
        done: dict[int, dict[int, Values]] = {}
        failed: set[int] = set()
        for place, found in self.pool.each(run_task, tasks, died):
            owner, replication = owners[place], place % self.replications
            if found.error is not None and owner not in failed:
                failed.add(owner)
                yield owner, Outcome({}, {}, found.error, "\n".join(found.calls))
            done.setdefault(owner, {})[replication] = found.values
            if owner not in failed and len(done[owner]) == self.replications:
                yield owner, self._mean([values for _, values in sorted(done[owner].items())])

    def _mean(self, each: Sequence[Values]) -> Outcome:
        """Return means and standard errors; a metric without a value in one replication has none."""
        names = [name for name in self.metrics if all(name in values for values in each)]
        n = len(each)
        means = {name: math.fsum(values[name] for values in each) / n for name in names}
        if n == 1:
            return Outcome(means, {})
        squares = {name: math.fsum((v[name] - means[name]) ** 2 for v in each) for name in names}
        return Outcome(means, {name: math.sqrt(square / (n - 1) / n) for name, square in squares.items()})
