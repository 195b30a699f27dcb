"""A scenario with what a caller changes about it: keys by name, policies by name or as Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.config.axes import split_objects
from simulator.config.build import Policies
from simulator.config.loading import load_scenario
from simulator.config.policies import files_named
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest

SHORT_KEYS = {
    "batching": "scheduler.batching",
    "order": "scheduler.order",
    "victim": "scheduler.victim",
    "preemption": "scheduler.preemption",
    "admission": "scheduler.admission",
    "eviction": "kv.eviction",
    "router": "cluster.router",
    "profile": "latency.profile",
    "seed": "seed",
}
"""What Python callers call the keys that they change most."""


def choose(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    set: Mapping[str, object] | None = None,
    *,
    trust: bool = False,
    **given: object,
) -> tuple[Scenario, Policies]:
    """Resolve a scenario with changes: `given` by their short names (None: unchanged), `set` by dotted ones.

    Policy files that `given` and `set` name are trusted; `trust` trusts those of the scenario too.
    ConfigError says what cannot be used.
    """
    for name in given:
        if name not in SHORT_KEYS:
            raise ConfigError(f"{name!r:.60} is no policy axis{suggest(name, SHORT_KEYS)}")
    wanted = {SHORT_KEYS[name]: value for name, value in given.items() if value is not None} | dict(set or {})
    changes, objects = split_objects(wanted)
    policies = Policies(**objects, trusted=files_named(changes.values()), trust=trust)
    return load_scenario(scenario).with_(**changes), policies
