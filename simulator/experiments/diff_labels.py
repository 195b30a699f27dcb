"""What must be said beside a comparison: versions, devices, seeds, settings and kernels that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator.config.scenario import Scenario
from simulator.experiments.run_folder import SavedRun

NUM_KEYS = 5  # scenario keys that are named; the others are counted
SAME_LOAD = 0.01  # two runs whose requests or tokens differ by less served the same load


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
    found += [line for run, name in zip((a, b), names, strict=True) for line in imported_lines(run, name)]
    found += load_lines(a, b, names)
    if a.known_scenario is None or b.known_scenario is None:
        return found
    keys = changed_keys(a.known_scenario, b.known_scenario)
    if keys:
        found.append(f"scenarios differ in {len(keys)} key{'s' * (len(keys) > 1)}: {listed(keys, NUM_KEYS)}")
    return found


def imported_lines(run: SavedRun, name: str) -> list[str]:
    """Say what cannot be compared of a result that another tool measured."""
    mark = own(run).get("imported")
    if not isinstance(mark, dict) or run.known_scenario is not None:
        return []
    found = [f"{name} was {own(run).get('source')}: its decisions, steps and settings are not compared"]
    if missing := mark.get("missing"):
        found.append(f"not in the file of {name}: {listed(missing, NUM_KEYS)}")
    return found


def load_lines(a: SavedRun, b: SavedRun, names: tuple[str, str]) -> list[str]:
    """Say that an imported result is of another load than the run beside it."""
    if a.known_scenario is not None and b.known_scenario is not None:
        return []
    found = []
    for key in ("completed", "total_input_tokens", "total_output_tokens"):
        one, other = a.summary.get(key), b.summary.get(key)
        if not isinstance(one, int) or not isinstance(other, int):
            continue
        if abs(one - other) > SAME_LOAD * max(one, other):
            found.append(f"not the same load: {key} {names[0]} {one:,}, {names[1]} {other:,}")
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
