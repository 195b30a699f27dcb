"""The points of a sweep: scenarios that are checked before anything runs; and what makes a sweep itself.

Two sweeps are the same if version, base, points, replications and the content of every file that they name
are: then their runs may be joined. Where files lie does not matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from simulator.config.axes import AXES, split_objects
from simulator.config.build import NO_POLICIES, Policies, profile_path
from simulator.config.build_scheduler import build_scheduler
from simulator.config.build_workload import build_workload
from simulator.config.loading import absolute_paths
from simulator.config.policies import PolicyFile, files_named, is_file_policy, suspects
from simulator.config.scenario import Scenario
from simulator.config.wrong_policies import blaming
from simulator.errors import ConfigError, SimulatorError
from simulator.experiments.sweep.designs import draw_design
from simulator.experiments.sweep.plan import Plan, shown
from simulator.experiments.sweep.tasks import Task, machine_of

_DIGITS = 16  # of a sweep's digest, hexadecimal


class Point(NamedTuple):
    """One setting of a sweep. `keys` are its changes as a file can hold them."""

    number: int
    keys: dict[str, object]
    scenario: Scenario
    policies: Policies

    def label(self) -> str:
        """Return the changes in a line."""
        return label(self.keys)

    def task(self, replication: int, replications: int) -> Task:
        return Task(self.scenario, self.policies, replication, replications)


@dataclass(frozen=True)
class Sweep:
    """A plan with its points; `identity` has the parts of which `digest` is made, by what they are called."""

    plan: Plan
    points: list[Point]
    notes: list[str]
    identity: dict[str, str]

    @property
    def digest(self) -> str:
        return _sha(json.dumps(self.identity, sort_keys=True))

    @property
    def num_runs(self) -> int:
        return len(self.points) * self.plan.replications


def label(keys: Mapping[str, object]) -> str:
    """Return changes in a line, keys without their sections and files without their folders.

    >>> label({"scheduler.max_num_seqs": 64, "scheduler.order": "fcfs"})
    'max_num_seqs=64 order=fcfs'
    """
    named = (f"{key.rpartition('.')[2]}={_text(value)}" for key, value in keys.items())
    return " ".join(named)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.rpartition("/")[2] or value
    return json.dumps(value, default=str)


def build_sweep(plan: Plan, policies: Policies = NO_POLICIES) -> Sweep:
    """Draw the points and check each as far as can be without running it; ConfigError names the point."""
    changes, notes = draw_design(plan.axes, plan.design, plan.points, plan.seed)
    files: dict[tuple[str, str], PolicyFile] = {}
    points, traces = [], set[str]()
    for number, change in enumerate(changes):
        keys = {key: shown(key, value) for key, value in change.items()}
        try:
            point = _point(plan, number, change, keys, replace(policies, files=tuple(files.values())))
            _check_workload(point, traces)
        except SimulatorError as error:
            text = str(error).removeprefix(f"{plan.base.name}: ")
            raise ConfigError(f"{plan.place}: point {number} ({label(keys)[:200]}): {text}") from error
        files |= {file[:2]: file for file in point.policies.files}
        points.append(point)
    return Sweep(plan, points, notes, _identity(plan, points))


def _point(
    plan: Plan, number: int, change: Mapping[str, object], keys: dict[str, object], policies: Policies
) -> Point:
    names, objects = split_objects(change)
    scenario = absolute_paths(plan.base.with_(**names), plan.folder)
    own = replace(policies, **objects)
    if plan.is_own_words:
        named = files_named(AXES[key].value(scenario) for key in names if key in AXES)
        own = replace(own, trusted=named.union(own.trusted))
    own = own.reading(scenario)
    machine = machine_of(scenario)
    blamed = suspects(own.files, own)
    with blaming(blamed):
        build_scheduler(scenario, machine, own)
    return Point(number, keys, scenario, own)


def _check_workload(point: Point, known: set[str]) -> None:
    """Read a trace once whatever the points do with it; draw one request of every other workload."""
    scenario, length = point.scenario, machine_of(point.scenario).max_model_len
    if scenario.workload.trace is None:
        scenario = scenario.with_(**{"workload.num_requests": 1})
    key = json.dumps([scenario.to_dict()["workload"], length])
    if key not in known:
        build_workload(scenario, length)
        known.add(key)


def _identity(plan: Plan, points: list[Point]) -> dict[str, str]:
    """Return what a sweep is made of: texts and digests by what they are called in messages."""
    contents: dict[str, str] = {}
    base = absolute_paths(plan.base, plan.folder)
    identity = {
        "version of servetwin": version("servetwin"),
        "base scenario": _sha(json.dumps(list(_placeless(base.to_dict(), contents)))),
        "points": _sha(json.dumps([point.keys for point in points], default=str)),
        "replications": str(plan.replications),
    }
    for point in points:
        path = profile_path(point.scenario, machine_of(point.scenario))
        if path is not None:
            _content(str(path), contents)
        for policy in point.policies.files:
            contents[f"{policy.path.name}:{policy.name}"] = policy.sha256[:_DIGITS]
        list(_placeless(point.scenario.to_dict(), contents))
    return identity | {f"file {name}": sha for name, sha in sorted(contents.items())}


def _placeless(value: object, contents: dict[str, str]) -> Iterator[object]:
    """Yield the leaves of a scenario's data, a path as its file's name; note what files hold."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield from _placeless(each, contents)
    elif isinstance(value, list):
        for each in value:
            yield from _placeless(each, contents)
    elif is_file_policy(value):
        yield Path(str(value)).name
    elif isinstance(value, str) and Path(value).is_absolute():
        _content(value, contents)
        yield Path(value).name
    else:
        yield value


_HASHED: dict[tuple[str, int, int], str] = {}


def _content(path: str, contents: dict[str, str]) -> None:
    """Note the digest of a file's content under its name; a missing one has been complained of already."""
    try:
        stat = Path(path).stat()
        key = path, stat.st_size, stat.st_mtime_ns
        if key not in _HASHED:
            with open(path, "rb") as file:
                _HASHED[key] = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
        contents[Path(path).name] = _HASHED[key]
    except OSError:
        return


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
