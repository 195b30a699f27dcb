"""One run of a sweep or a search as it travels to a worker, and what comes back: numbers, or why not.

A worker builds machine and workload itself and keeps the last ones: points share most of them, and a trace
is worth more than the scenario that names it. What comes back holds no time, path or address of the machine
that made it.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from simulator.config.build import Machine, Policies, build_machine
from simulator.config.scenario import Scenario
from simulator.errors import Interrupted, moment_of
from simulator.experiments.jobs import Job, Values, serve
from simulator.experiments.replications import Replications

MOST_FRAMES = 30
"""Innermost calls of a traceback that are kept."""
_KEPT_WORKLOADS = 4  # settings whose workloads a worker keeps, of all their replications
_KEPT_MACHINES = 64
_ELSEWHERE = ("name", "seed", "workload", "slo", "run", "scheduler")  # what no machine depends on
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s/\\:'\"(),;]+)+[/\\](?=[^\s/\\])")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")

Kept = TypeVar("Kept")


class Task(NamedTuple):
    """One replication of a scenario; `replications` is how many of it there are."""

    scenario: Scenario
    policies: Policies  # with the files as they were when the sweep began
    replication: int = 0
    replications: int = 1


class Outcome(NamedTuple):
    """A run's metrics, or, if it failed, the error in a line and the calls that led to it."""

    values: Values
    error: str | None = None
    calls: tuple[str, ...] = ()


class _Store(Generic[Kept]):
    """The last things that were made, by what they were made of."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, Kept] = {}

    def get(self, key: str, make: Callable[[], Kept]) -> Kept:
        if key not in self._kept:
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = make()
        return self._kept[key]


_MACHINES: _Store[Machine] = _Store(_KEPT_MACHINES)
_WORKLOADS: _Store[Replications] = _Store(_KEPT_WORKLOADS)


def machine_of(scenario: Scenario) -> Machine:
    """Return the scenario's machine, kept for the next scenario on the same one."""
    data = {key: value for key, value in scenario.to_dict().items() if key not in _ELSEWHERE}
    key = json.dumps([data, scenario.scheduler.async_scheduling])
    return _MACHINES.get(key, lambda: build_machine(scenario))


def run_task(task: Task) -> Outcome:
    """Run a task; whatever goes wrong in it is its outcome."""
    try:
        scenario = task.scenario
        machine = machine_of(scenario)
        length = machine.max_model_len
        key = json.dumps([scenario.to_dict()["workload"], scenario.seed, length, task.replications])
        replications = _WORKLOADS.get(key, lambda: Replications.of(scenario, length, task.replications))
        workload = replications.workload(scenario, length, task.replication)
        replicated = replications.scenario(scenario, task.replication)
        return Outcome(serve(Job(replicated, task.policies, machine, workload)))
    except (KeyboardInterrupt, Interrupted):
        raise
    except (Exception, SystemExit) as error:  # a policy of the user's may fail in any way
        return Outcome({}, _told(error), tuple(_calls(error)))


def died(task: Task) -> Outcome:
    """Return the outcome of a task whose process ended twice before the task did."""
    return Outcome({}, "its worker process ended without a word: killed, or out of memory")


def _told(error: BaseException) -> str:
    """Return type and text of an error, without paths and addresses."""
    try:
        text = " ".join(f"{error}".split())
    except Exception:  # a user's error may not even be printable
        text = "(its text cannot be shown)"
    moment = moment_of(error)
    if moment and moment not in text:
        text = f"{text} {moment}"
    return _plain(f"{type(error).__name__}: {text}" if text else type(error).__name__)[:500]


def _calls(error: BaseException) -> list[str]:
    """Return the calls that led to an error, file:line and function, its cause's first."""
    lines: list[str] = []
    if error.__cause__ is not None and error.__cause__ is not error:
        lines = [*_calls(error.__cause__), f"{_told(error.__cause__)}, and so:"]
    frames = traceback.extract_tb(error.__traceback__)
    return [*lines, *(_plain(f"{f.filename}:{f.lineno} in {f.name}") for f in frames[-MOST_FRAMES:])]


def _plain(text: str) -> str:
    """Cut folders off the paths in a text, and take addresses in memory out.

    >>> _plain("cannot read /home/me/x.csv of <f at 0x7f00>")
    'cannot read x.csv of <f at 0x>'
    """
    return _ADDRESS.sub("0x", _PATH.sub("", text))
