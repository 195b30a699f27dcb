"""Read scenarios: a bundled name, a YAML file, a run folder or a dict becomes a `Scenario`.

Every mistake is one line: where, which key, what is wrong with the value, and the nearest known name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

from simulator.config.axes import AXES, renamed
from simulator.config.checking import validate
from simulator.config.plain_yaml import parse_yaml
from simulator.config.policies import files_named
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.specs import MODELS

MAX_FILE_BYTES = 256 << 10
_PATH_KEYS = (
    ("model", "name"),
    ("speculative", "draft_model"),
    ("speculative", "acceptance"),
    ("latency", "profile"),
    ("workload", "trace"),
)


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
    path = Path(name, "scenario.yaml") if os.path.isdir(name) else Path(name)
    if not os.path.isfile(path):
        if os.path.isfile(os.path.join(name, "summary.json")):
            raise ConfigError(f"scenario {name[:200]!r}: an imported result, which has no scenario")
        raise ConfigError(
            f"scenario {name[:200]!r}: no such file, run folder or bundled scenario"
            f"{suggest(name[:200], bundled_scenarios())}"
        )
    return validate(Scenario, _resolve_paths(_parse(_read(path), str(path)), path.parent), str(path))


def parse_value(text: str) -> object:
    """Read a value given on the command line as a scenario file would; what is not YAML is text."""
    try:
        return parse_yaml(text, "value")
    except ConfigError:
        return text


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES >> 10} KiB, so not a scenario")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(text: str, place: str, what: str = "a scenario") -> dict[str, Any]:
    data = parse_yaml(text, place)
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"{data!r:.80}"
        raise ConfigError(f"{place}: {what} is a mapping of keys to values, got {found}")
    return cast("dict[str, Any]", data)


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """Return the keys of a YAML file that is `what`, such as "a sweep"; ConfigError if it cannot be used."""
    if not path.is_file():
        raise ConfigError(f"{path}: {'is no file' if path.exists() else 'no such file'}")
    return _parse(_read(path), str(path), what)


def absolute_paths(scenario: Scenario, folder: Path = Path()) -> Scenario:
    """Return a scenario that means the same wherever it is read; its relative paths begin in `folder`."""
    return validate(Scenario, _resolve_paths(scenario.to_dict(), folder), scenario.name)


def _resolve_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make paths of the folder's files absolute; a policy file is looked for nowhere else."""
    for name, key in _PATH_KEYS:
        section = data.get(name)
        value = section.get(key) if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(value, str) or value in MODELS:
            continue
        if os.path.exists(folder / value):
            section[key] = str(folder.resolve() / value)

    for axis in AXES:
        name, _, key = axis.partition(".")
        section = data.get(name)
        if isinstance(section, dict) and key in section:
            files = files_named([section[key]])
            section[key] = renamed(section[key], {file: str(folder.resolve() / file) for file in files})
    return data
