"""From the entries of `scheduler.admission` to rules: a name, or {name: argument or arguments}."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.errors import ConfigError, suggest
from simulator.schedulers.admission import Admission

AXIS = "scheduler.admission"
Entry = str | Mapping[str, Any]
Find = Callable[[str], Any]
"""Looks a name or file.py:name up; ConfigError if there is no such rule."""


def rule_of(entry: Entry) -> tuple[str, Any]:
    """Return an entry's rule by name and its arguments, None without any."""
    if isinstance(entry, str):
        return entry, None
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, arguments),) = entry.items()
        return str(name), {} if arguments is None else arguments
    raise ConfigError(f"{AXIS}: an entry is a name or {{name: arguments}}, got {entry!r:.80}")


def build_rules(entries: Iterable[Entry | Admission], find: Find) -> list[Admission]:
    """Make the rules; objects that are rules already are taken as they are."""
    rules = []
    for entry in entries:
        if isinstance(entry, str | Mapping):
            name, arguments = rule_of(entry)
            rules.append(_made(find(name), name, arguments))
        else:
            rules.append(_made(entry, getattr(entry, "__name__", type(entry).__name__), None))
    return rules


def _made(rule: Any, name: str, arguments: Any) -> Admission:
    if not isinstance(rule, type):
        if arguments:
            raise ConfigError(f"{AXIS}: {name} takes no arguments, got {arguments!r:.80}")
        found: Admission = rule
        return found
    known = list(inspect.signature(rule).parameters)
    given = (
        arguments if isinstance(arguments, Mapping) else {} if arguments is None else {known[0]: arguments}
    )
    for key in given:
        if key not in known:
            raise ConfigError(f"{AXIS}: {name}.{key!s:.80}: unknown{suggest(str(key), known)}")
    try:
        made: Admission = rule(**given)
    except (TypeError, ValueError) as error:
        needs = ", ".join(known)
        raise ConfigError(f"{AXIS}: {name} needs {{{needs}}}: {error}") from error
    return made
