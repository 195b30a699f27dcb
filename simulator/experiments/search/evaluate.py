"""A point of a search, tried: the base with its values, on every replication, in the mean.

Replication i has the same requests at every point, so points differ by what they set and not by their luck.
What goes wrong at a point is its result: it travels back as text, and the others go on.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.config.build import Policies, build_machine
from simulator.config.scenario import Scenario
from simulator.errors import Interrupted, SimulatorError
from simulator.experiments.jobs import Job, Values, serve
from simulator.experiments.replications import Replications


class Outcome(NamedTuple):
    """A point's metrics in the mean over replications, and the standard errors of these; or what went wrong.

    A metric that lacks a value in one replication has none. `error` is one line, `trace` the traceback of
    what is no user's mistake.
    """

    values: Values
    errors: Values
    error: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Setting:
    """What all points have in common."""

    base: Scenario
    policies: Policies
    replications: Replications
    num_replications: int = 1
    metrics: tuple[str, ...] = field(default=())  # to be kept; none: all

    def outcome(self, point: Mapping[str, Any]) -> Outcome:
        """Try a point; never raises for what the point does."""
        try:
            return self._mean(self._each(self.base.with_(**point)))
        except Interrupted:
            raise
        except SimulatorError as error:
            return Outcome({}, {}, " ".join(str(error).split()))
        except (Exception, SystemExit) as error:  # a policy may do anything
            line = " ".join(f"{type(error).__name__}: {error}".split())
            return Outcome({}, {}, line, "".join(traceback.format_exception(error)))

    def _each(self, scenario: Scenario) -> list[Values]:
        machine = build_machine(scenario)
        reps = self.replications
        return [
            serve(
                Job(
                    reps.scenario(scenario, i),
                    self.policies,
                    machine,
                    reps.workload(scenario, machine.max_model_len, i),
                )
            )
            for i in range(self.num_replications)
        ]

    def _mean(self, each: Sequence[Values]) -> Outcome:
        names = [name for name in self.metrics or each[0] if all(name in values for values in each)]
        n = len(each)
        means = {name: math.fsum(values[name] for values in each) / n for name in names}
        if n == 1:
            return Outcome(means, {})
        squares = {name: math.fsum((v[name] - means[name]) ** 2 for v in each) for name in names}
        return Outcome(means, {name: math.sqrt(square / (n - 1) / n) for name, square in squares.items()})


def evaluate(
    points: Sequence[Mapping[str, Any]], setting: Setting, pool: Pool
) -> Iterator[tuple[int, Outcome]]:
    """Try points where the pool says and yield each with its place as soon as it is done."""
    return pool.each(setting.outcome, points, died)


def died(point: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a point whose process ended under it, twice."""
    return Outcome({}, {}, "the process died: out of memory, or killed")


class Pool:
    """Worker processes of this machine."""

    def __init__(self, num: int) -> None:
        self.num = num

    def each(self, function: Any, items: Sequence[Any], died: Any) -> Iterator[tuple[int, Any]]:
        from joblib import Parallel, delayed

        if self.num == 1:
            yield from ((i, function(item)) for i, item in enumerate(items))
            return
        yield from Parallel(n_jobs=self.num, return_as="generator_unordered")(
            delayed(_numbered)(function, i, item) for i, item in enumerate(items)
        )


@contextmanager
def open_pool(backend: str, *, address: str | None, workers: int | None) -> Iterator[Pool]:
    yield Pool(workers or -1)


def _numbered(function: Any, i: int, item: Any) -> tuple[int, Any]:
    return i, function(item)
