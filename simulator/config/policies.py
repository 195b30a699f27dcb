"""Look policies up: a table entry, or a function or class in a user's file, `file.py:name`.

A user's file runs as Python with the user's rights, so only what the user named on the command line, or said
to trust, is loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from simulator.errors import ConfigError, suggest

Policy = TypeVar("Policy")


class PolicyFile(NamedTuple):
    """A user's policy file that a run used."""

    axis: str  # scenario key that names it
    path: Path
    name: str
    sha256: str


def is_file_policy(value: str | None) -> bool:
    """Say whether a scenario value names code in a file."""
    return value is not None and ".py:" in value


def find_policy(table: Mapping[str, Policy], value: str, axis: str, *, trust: bool) -> Policy:
    """Return a table's entry or the object `file.py:name`; ConfigError if there is none or no trust."""
    if value in table:
        return table[value]
    if not is_file_policy(value):
        raise ConfigError(f"{axis}: unknown {value!r}{suggest(value, table)}, or file.py:name")
    if not trust:
        raise ConfigError(
            f"{axis}: {value!r} is code in a file; name it on the command line, or read it and pass --trust"
        )
    policy: Policy = _load(value, axis)
    return policy


def policy_file(value: str, axis: str) -> PolicyFile:
    """Describe the file behind `file.py:name`."""
    path, _, name = value.rpartition(":")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{axis}: cannot read {path}: {error.strerror}") from None
    return PolicyFile(axis, Path(path), name, hashlib.sha256(content).hexdigest())


def _load(value: str, axis: str) -> Policy:  # type: ignore[type-var]  # the caller's table gives the type
    file = policy_file(value, axis)
    spec = importlib.util.spec_from_file_location(f"servetwin_policy_{file.sha256[:8]}", file.path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{axis}: {file.path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may fail in any way; say so instead of a traceback
        raise ConfigError(f"{axis}: {file.path} fails with {type(error).__name__}: {error}") from error
    if not hasattr(module, file.name):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise ConfigError(f"{axis}: {file.path} has no {file.name!r}{suggest(file.name, names)}")
    policy: Policy = getattr(module, file.name)
    return policy
