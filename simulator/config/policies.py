"""Look policies up: a table entry, or a function or class in a user's file, `file.py:name`.

A user's file runs as Python with the user's rights, so only what the user named on the command line, or said
to trust, is loaded. What it prints goes to stderr. A Python object that the user gave is written down as a
file would be (`policy_source`), so that a run can be made again from its folder.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple, TypeVar, cast

from simulator.config.axes import AXES, given_objects, names_in
from simulator.config.policy_source import run_as_module, written_policy
from simulator.config.scenario import Scenario
from simulator.config.wrong_policies import Suspect, object_suspect, place_of, what_of
from simulator.errors import ConfigError, Interrupted, suggest

Policy = TypeVar("Policy")


class PolicyFile(NamedTuple):
    """A user's policy as it was when a run began: a file, or the file that a Python object was written to."""

    axis: str  # scenario key that names it
    value: str  # what the scenario has there: file.py:name, or the object's name
    content: bytes
    written: str = ""  # of an object: its file.py:name, relative to any folder
    problem: str = ""  # why an object could not be written

    @property
    def path(self) -> Path:
        return Path((self.written or self.value).rpartition(":")[0])

    @property
    def name(self) -> str:
        return (self.written or self.value).rpartition(":")[2]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_object(self) -> bool:
        return bool(self.written or self.problem)

    def must_be_writable(self) -> None:
        """Raise ConfigError for an object that a folder cannot hold."""
        if self.problem:
            raise ConfigError(
                f"{self.axis}: {self.value} cannot be kept in a folder: {self.problem}; put the policy into "
                "a file and name it file.py:name"
            )


def is_file_policy(value: object) -> bool:
    """Say whether a scenario value names code in a file."""
    return isinstance(value, str) and re.fullmatch(r".+\.py:\w+", value) is not None


def files_named(values: Iterable[object]) -> frozenset[str]:
    """Return every file.py:name among values of scenario keys: what a user who gives them trusts."""
    return frozenset(name for value in values for name in names_in(value) if is_file_policy(name))


def policy_file(value: str, axis: str) -> PolicyFile:
    """Read the file behind `file.py:name`."""
    path = value.rpartition(":")[0]
    try:
        return PolicyFile(axis, value, Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{axis}: cannot read {path}: {error.strerror}") from None


def policy_files(
    scenario: Scenario, held: Iterable[PolicyFile] = (), objects: object = None
) -> tuple[PolicyFile, ...]:
    """Return the user's policies that a scenario names: as held, or else as they are now.

    `objects` has the Python objects as attributes by axis, as `Policies` do. ConfigError for what is none.
    """
    known = {file[:2]: file for file in held}
    found: dict[tuple[str, str], list[object]] = {}
    for axis, name, policy in given_objects(objects):
        if misfit := axis.misfit(policy):
            raise ConfigError(f"{axis.key}: {name} {misfit}")
        found.setdefault((axis.key, name), []).append(policy)
    files = []
    for axis in AXES.values():
        for name in dict.fromkeys(names_in(axis.value(scenario))):
            key = axis.key, name
            if key in known:
                files.append(known[key])
            elif key in found:
                files.append(_object_file(*key, found[key]))
            elif is_file_policy(name):
                files.append(policy_file(name, axis.key))
    return tuple(files)


def _object_file(axis: str, name: str, policies: list[object]) -> PolicyFile:
    try:
        if any(each is not policies[0] for each in policies):
            raise ConfigError("two policies have this name")
        text, attribute = written_policy(policies[0], name)
    except ConfigError as error:
        return PolicyFile(axis, name, b"", problem=str(error))
    except Exception as error:  # a notebook may hold anything; only a folder needs the source
        return PolicyFile(axis, name, b"", problem=what_of(error))
    return PolicyFile(axis, name, text.encode(), written=f"{name}.py:{attribute}")


def find_policy(
    table: Mapping[str, Policy], value: str, axis: str, *, trust: bool, files: Iterable[PolicyFile] = ()
) -> Policy:
    """Return a table's entry or the object `file.py:name`; ConfigError if there is none or no trust.

    A file among `files` is taken as it was when it was read.
    """
    if value in table:
        return table[value]
    if not is_file_policy(value):
        raise ConfigError(f"{axis}: unknown {value!r:.80}{suggest(value, table)}, or file.py:name")
    if not trust:
        raise ConfigError(
            f"{axis}: {value!r} is code in a file; name it on the command line, or read it and "
            "pass --trust (in Python trust=True)"
        )
    file = next((each for each in files if each[:2] == (axis, value)), None) or policy_file(value, axis)
    module = load_module(file)
    if file.name not in vars(module):
        raise ConfigError(f"{axis}: {file.path} has no {file.name!r}{suggest(file.name, _own_names(module))}")
    policy = vars(module)[file.name]
    if misfit := AXES[axis].misfit(policy):
        raise ConfigError(f"{axis}: {file.name} in {file.path} {misfit}")
    return cast("Policy", policy)


def _own_names(module: ModuleType) -> Iterator[str]:
    """Yield the functions and classes that a module defines."""
    for name, each in vars(module).items():
        if issubclass(type(each), type | FunctionType) and each.__module__ == module.__name__:
            yield name


def load_module(file: PolicyFile) -> ModuleType:
    """Run a policy file as a module."""
    path = str(file.path)
    try:
        with redirect_stdout(sys.stderr):
            return run_as_module(file.content, path, f"servetwin_policy_{file.sha256[:8]}")
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:  # a user's file may fail in any way
        where = place_of(error, {path}) or path
        raise ConfigError(f"{file.axis}: {where}: {what_of(error)}") from error


def policy_records(files: Iterable[PolicyFile]) -> list[dict[str, str | None]]:
    """Return what a summary says of the user's policies: axis, file.py:name, and the file's sha256.

    One that could not be written down has its name and no sha256.
    """
    return [
        {
            "axis": file.axis,
            "policy": file.value if file.problem else f"{file.path.name}:{file.name}",
            "sha256": None if file.problem else file.sha256,
        }
        for file in files
    ]


def suspects(files: Iterable[PolicyFile], objects: object = None) -> list[Suspect]:
    """Return the user's policies that are in force, to be blamed for what goes wrong."""
    found = [Suspect(file.axis, file.name, str(file.path)) for file in files if not file.is_object]
    return found + [object_suspect(axis.key, name, each) for axis, name, each in given_objects(objects)]
