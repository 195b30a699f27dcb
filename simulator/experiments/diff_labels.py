"""What must be said beside a comparison: versions, devices, seeds, settings and kernels that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator.config.scenario import Scenario
from simulator.experiments.run_folder import SavedRun

NUM_KEYS = 5  # scenario keys that are named; the others are counted


def own(run: SavedRun) -> Mapping[str, object]:
    """Return our part of a run's summary."""
    found = run.summary["servetwin"]
    assert isinstance(found, dict), "looked at when it was read"
    return found


def is_measured(run: SavedRun) -> bool:
    """Say whether a run's times were measured on a wall clock, not simulated or predicted."""
    return own(run).get("clock") == "wall"


def is_simulated(run: SavedRun) -> bool:
    """Say whether a latency model gave a run its times, and no real engine did the work."""
    return own(run).get("backend") is None


def labels(a: SavedRun, b: SavedRun, names: tuple[str, str]) -> list[str]:
    """Return a sentence for whatever differs between two runs besides their results."""
    found = []
    for key in ("version", "device", "seed"):
        one, other = own(a).get(key), own(b).get(key)
        if one != other and one is not None and other is not None:
            found.append(f"{key}: {names[0]} {one}, {names[1]} {other}")
    keys = changed_keys(a.scenario, b.scenario)
    if keys:
        found.append(f"scenarios differ in {len(keys)} key{'s' * (len(keys) > 1)}: {listed(keys, NUM_KEYS)}")
    return found


def kernel_label(ran: object, timed: str | None, provenance: str) -> str | None:
    """Say that a model's times are of other kernels than a machine ran, None if they are of the same."""
    if not isinstance(ran, str) or ran == timed:
        return None
    if timed is None:
        return (
            f"the model does not say on which kernels it was measured ({provenance[:100]}), the replay ran "
            f"{ran}: its timing error may not be the model's"
        )
    return (
        f"the profile was measured on other kernels ({timed}) than the replay ran ({ran}): "
        "its timing error is not the model's"
    )


def changed_keys(a: Scenario, b: Scenario, sections: tuple[str, ...] = ("",)) -> list[str]:
    """Return "key (value, value)" for every scenario key of some sections in which two scenarios differ."""
    one, other = dict(_flat(a.to_dict())), dict(_flat(b.to_dict()))
    keys = [key for key in dict.fromkeys([*one, *other]) if key.startswith(sections)]
    return [
        f"{key} ({_short(one.get(key))}, {_short(other.get(key))})"
        for key in keys
        if one.get(key) != other.get(key)
    ]


def listed(items: Iterable[object], most: int) -> str:
    """Return items with commas, at most so many of them.

    >>> listed(["r1", "r2", "r3"], 2)
    'r1, r2 and 1 more'
    """
    texts = [str(item) for item in items]
    rest = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + rest


def _flat(value: object, key: str = "") -> Iterable[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _short(value: object) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 40 else f"...{text[-37:]}"
