"""What was run, in a line: a scenario as the changes that make it of a bundled one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.config.loading import load_scenario
from simulator.config.scenario import Scenario

BASE = "chat-a100"
"""The bundled scenario that the others are told as changes to."""


def told(servers: Sequence[Scenario]) -> str:
    """Say what was run: the first server as changes to `BASE`, each other as changes to the first.

    >>> chat = load_scenario("chat-a100")
    >>> told([chat.with_(seed=3), chat.with_(**{"seed": 3, "scheduler.batching": "static"})])
    'seed=3 / scheduler.batching=static'
    """
    first, *others = servers
    base = load_scenario(BASE)
    return " / ".join([changes(base, first), *(changes(first, other) for other in others)])


def changes(base: Scenario, scenario: Scenario) -> str:
    """Return the keys in which a scenario differs but for its name, as the flag --set takes them."""
    before, after = _keys(base), _keys(scenario)
    moved = [f"{key}={_plain(value)}" for key, value in after.items() if before.get(key) != value]
    moved += [f"{key}=null" for key in before if key not in after]
    return ", ".join(moved) or "as it is"


def _keys(scenario: Scenario) -> dict[str, object]:
    """Return the values of a scenario by dotted key, sections taken apart and what they hold left whole."""
    found: dict[str, object] = {}
    for name, section in scenario.to_dict().items():
        is_section = isinstance(section, Mapping) and name != "speculative"
        found |= {f"{name}.{key}": value for key, value in section.items()} if is_section else {name: section}
    found.pop("name")
    return found


def _plain(value: object) -> str:
    """Return a value as a scenario file has it in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_plain(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
