"""Look policies up: a table entry, or a function or class in a user's file, `file.py:name`.

A user's file runs as Python with the user's rights, so only what the user named on the command line, or said
to trust, is loaded. Its mistakes are told in one line with the file's own line number.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar, cast

from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, SimulatorError, suggest
from simulator.schedulers import Scheduler

POLICY_AXES = ("scheduler.batching", "scheduler.order", "scheduler.victim", "kv.eviction")
"""Keys that may name a file, as section.key."""

Policy = TypeVar("Policy")


class PolicyFile(NamedTuple):
    """A user's policy file as it was when a run began."""

    axis: str  # scenario key that names it
    value: str  # file.py:name
    content: bytes

    @property
    def path(self) -> Path:
        return Path(self.value.rpartition(":")[0])

    @property
    def name(self) -> str:
        return self.value.rpartition(":")[2]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def is_file_policy(value: str | None) -> bool:
    """Say whether a scenario value names code in a file."""
    return value is not None and re.fullmatch(r".+\.py:\w+", value) is not None


def policy_file(value: str, axis: str) -> PolicyFile:
    """Read the file behind `file.py:name`."""
    path = value.rpartition(":")[0]
    try:
        return PolicyFile(axis, value, Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{axis}: cannot read {path}: {error.strerror}") from None


def policy_files(scenario: Scenario, held: Iterable[PolicyFile] = ()) -> tuple[PolicyFile, ...]:
    """Return every policy file that a scenario names: as held, or else as it is now."""
    known = {file[:2]: file for file in held}
    keys = [(axis, attrgetter(axis)(scenario)) for axis in POLICY_AXES]
    return tuple(known.get(key) or policy_file(key[1], key[0]) for key in keys if is_file_policy(key[1]))


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
            f"{axis}: {value!r} is code in a file; name it on the command line, or read it and pass --trust"
        )
    file = next((each for each in files if each[:2] == (axis, value)), None) or policy_file(value, axis)
    module = _load(file)
    own = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    if file.name not in vars(module):
        raise ConfigError(f"{axis}: {file.path} has no {file.name!r}{suggest(file.name, own)}")
    policy = getattr(module, file.name)
    is_class = isinstance(policy, type)
    if axis == "scheduler.batching" and not (is_class and issubclass(policy, Scheduler)):
        raise ConfigError(f"{axis}: {file.name} in {file.path} is not a subclass of simulator.Scheduler")
    if axis == "kv.eviction" and is_class:
        if lacks := [name for name in ("release", "hit", "evict") if not hasattr(policy, name)]:
            raise ConfigError(f"{axis}: class {file.name} in {file.path} has no {', no '.join(lacks)}")
    elif axis == "scheduler.order" and is_class and not hasattr(policy, "key"):
        raise ConfigError(f"{axis}: class {file.name} in {file.path} has no key(seq, ctx)")
    elif axis == "scheduler.victim" and (is_class or not callable(policy)):
        of = "(block, ctx)" if axis == "kv.eviction" else "(seq, ctx)"
        raise ConfigError(f"{axis}: {file.name} in {file.path} is not a function of {of}")
    return cast("Policy", policy)


def _load(file: PolicyFile) -> ModuleType:
    """Run a file's content, and no stale bytecode of it, as a module."""
    module = ModuleType(f"servetwin_policy_{file.sha256[:8]}")
    module.__file__ = str(file.path)
    sys.modules[module.__name__] = module  # where dataclasses look a class's module up
    try:
        exec(compile(file.content, str(file.path), "exec"), vars(module))
    except (Exception, SystemExit) as error:  # a user's file may fail in any way
        raise ConfigError(f"{file.axis}: {_blame(error, [file])}") from error
    return module


@contextmanager
def blaming(files: Sequence[PolicyFile]) -> Iterator[None]:
    """Turn an error in a run with policy files into one line that names the file and, if known, the line."""
    try:
        yield
    except SimulatorError:
        raise
    except Exception as error:
        if not files:
            raise
        raise ConfigError(_blame(error, files)) from error


def _blame(error: BaseException, files: Sequence[PolicyFile]) -> str:
    """Say where in the user's files an error arose; SimPy raises a copy whose cause is the error itself."""
    while error.__cause__ is not None and type(error.__cause__) is type(error):
        error = error.__cause__
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    names = {str(file.path) for file in files}
    mine = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename in names]
    if mine:
        return f"{mine[-1]}: {what}"
    policies = ", ".join(f"{file.path}:{file.name}" for file in files)
    return f"{policies} cannot be used: {what} (at {Path(frames[-1].filename).name}:{frames[-1].lineno})"
