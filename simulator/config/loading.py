"""Read scenarios: a bundled name, a YAML file, a run folder or a dict becomes a `Scenario`.

Every mistake is one line: where, which key, what is wrong with the value, and the nearest known name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml

from simulator.config.checking import numbers, validate
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest

MAX_FILE_BYTES = 1 << 20
_PATH_KEYS = (("model", "name"), ("latency", "profile"), ("workload", "trace"))


def bundled_scenarios() -> list[str]:
    """Return the names of the scenarios that ship with the package."""
    folder = resources.files("simulator") / "scenarios"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def scenario_text(name: str) -> str:
    """Return the file of a bundled scenario; its first line says what it is for."""
    return (resources.files("simulator") / "scenarios" / f"{name}.yaml").read_text(encoding="utf-8")


def load_scenario(source: str | Path | Mapping[str, Any] | Scenario = "chat-a100") -> Scenario:
    """Return the scenario behind a bundled name, a YAML file, a run folder, or a dict.

    Paths inside a file are taken relative to it. ConfigError if it cannot be used.
    """
    if isinstance(source, Scenario):
        return source
    if isinstance(source, Mapping):
        return validate(Scenario, source, "scenario")
    name = str(source)
    if name in bundled_scenarios():
        return validate(Scenario, _parse(scenario_text(name), name), name)
    path = Path(name)
    if path.is_dir():
        path = path / "scenario.yaml"
    if not path.is_file():
        raise ConfigError(
            f"scenario {name[:200]!r}: no such file, run folder or bundled scenario"
            f"{suggest(name, bundled_scenarios())}"
        )
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than 1 MiB, so not a scenario")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    return validate(Scenario, _resolve_paths(_parse(text, str(path)), path.parent), str(path))


def parse_value(text: str) -> object:
    """Read a value given on the command line as YAML would, with 1e6 as a number."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return numbers(value)


def _parse(text: str, place: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not plain YAML"
        raise ConfigError(f"{place}:{where} {problem}") from None
    except RecursionError:
        raise ConfigError(f"{place}: nested too deeply") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{place}: a scenario is a mapping of keys to values, got {type(data).__name__}")
    return cast("dict[str, Any]", numbers(data))


def _resolve_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    for section, key in _PATH_KEYS:
        value = data.get(section)
        if isinstance(value, dict) and isinstance(value.get(key), str):
            path = folder / value[key]
            if not Path(value[key]).is_absolute() and path.exists():
                value[key] = str(path.resolve())
    return data
