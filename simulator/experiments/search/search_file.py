"""The search file: a scenario, what to vary in it, what for, and within which limits.

base: chat-a100                                # bundled name | yaml file | run folder | a scenario itself
vary:
  scheduler.max_num_seqs: [32, 64, 128, 256]
  scheduler.max_num_batched_tokens: {low: 256, high: 8192, log: true, int: true}
objectives: [output_throughput:max]            # one: the best point; several: a Pareto front
constraints: [attainment>=0.99]                # absent: the scenario's SLO, where the aim is throughput
sampler: tpe                                   # tpe | nsga2; absent: tpe for one objective, else nsga2
trials: 100
replications: 1
seed: 0
metrics: []                                    # further columns of results.csv
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.config.axes import AXES, renamed
from simulator.config.checking import plain
from simulator.config.loading import MAX_FILE_BYTES, absolute_paths, load_scenario
from simulator.config.plain_yaml import dump_yaml, parse_yaml
from simulator.config.policies import files_named
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest
from simulator.experiments.search.goals import (
    Constraint,
    Objective,
    default_constraints,
    parse_constraints,
    parse_objectives,
)
from simulator.experiments.search.space import Space, parse_space
from simulator.experiments.search.study import SAMPLERS

KEYS = (
    *("base", "vary", "objectives", "constraints", "sampler", "trials", "replications", "seed", "metrics"),
)
TRIALS = 100
MAX_COUNT = 1_000_000


@dataclass(frozen=True)
class Search:
    """A search as it was asked for, every default filled in. `is_default` marks constraints nobody gave."""

    base: Scenario
    space: Space
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    sampler: str
    trials: int = TRIALS
    replications: int = 1
    seed: int = 0
    metrics: tuple[str, ...] = ()
    is_default: bool = False

    @property
    def goals(self) -> list[str]:
        """The metrics of objectives and constraints, each once."""
        names = [each.metric for each in self.objectives] + [each.metric for each in self.constraints]
        return list(dict.fromkeys(names))

    def to_dict(self) -> dict[str, Any]:
        """Return the search as a file has it; it means the same wherever that is read."""
        return {
            "base": absolute_paths(self.base).to_dict(),
            "vary": {key: each.to_plain() for key, each in self.space.items()},
            "objectives": list(map(str, self.objectives)),
            "constraints": list(map(str, self.constraints)),
            "sampler": self.sampler,
            "trials": self.trials,
            "replications": self.replications,
            "seed": self.seed,
            "metrics": list(self.metrics),
        }

    def to_yaml(self) -> str:
        return dump_yaml(self.to_dict())

    def identity(self) -> str:
        """Return a text that differs when any point or its result would; more trials go on with the same."""
        return json.dumps({**self.to_dict(), "trials": None}, sort_keys=True)

    def digest(self) -> str:
        return hashlib.sha256(self.identity().encode()).hexdigest()[:8]


def load_search(
    source: str | Path | Mapping[str, Any],
    *,
    trials: int | None = None,
    objectives: tuple[str, ...] | list[str] | None = None,
    constraints: tuple[str, ...] | list[str] | None = None,
) -> Search:
    """Return the search of a file or mapping; what is given beside it takes the place of what it says."""
    if isinstance(source, Mapping):
        data, place, folder = dict(source), "search", Path()
    else:
        place, folder = str(source), Path(source).parent
        data = _read(Path(source))
    for key in data:
        if key not in KEYS:
            raise ConfigError(f"{place}: unknown key {key!r:.80}{suggest(key, KEYS)}")
    base = _base(data.get("base"), folder, place)
    space = parse_space(_with_paths(data.get("vary"), folder), base, place)
    if objectives:
        goals = parse_objectives(objectives, "--objective")
    else:
        goals = parse_objectives(_list(data, "objectives", place), f"{place}: objectives")
    search = Search(
        base,
        space,
        goals,
        (),
        _sampler(data.get("sampler"), len(goals), place),
        trials=_count(data.get("trials"), "trials", TRIALS, place),
        replications=_count(data.get("replications"), "replications", 1, place),
        seed=_count(data.get("seed"), "seed", 0, place, least=0),
        metrics=tuple(map(str, _list(data, "metrics", place))),
    )
    if trials is not None:
        search = replace(search, trials=_count(trials, "trials", TRIALS, "--trials"))
    return _constrained(search, data, constraints, place)


def _constrained(search: Search, data: dict[str, Any], given: Any, place: str) -> Search:
    if given:
        return replace(search, constraints=parse_constraints(given, "--constraint"))
    if data.get("constraints") is not None:
        found = parse_constraints(_list(data, "constraints", place), f"{place}: constraints")
        return replace(search, constraints=found)
    return replace(search, constraints=default_constraints(search.base, search.objectives), is_default=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES >> 10} KiB, so not a search file")
        data = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a search is a mapping of keys to values, got {data!r:.80}")
    return data


def _base(value: object, folder: Path, place: str) -> Scenario:
    if isinstance(value, Scenario | Mapping):
        return load_scenario(value)
    if not isinstance(value, str | Path):
        raise ConfigError(f"{place}: base: must name a scenario, got {value!r:.80}")
    beside = folder / value
    return load_scenario(beside if beside.exists() else value)


def _with_paths(vary: object, folder: Path) -> object:
    """Make the paths of policy files absolute, which are the search file's neighbours."""
    if not isinstance(vary, Mapping):
        return vary
    return {key: _absolute(key, value, folder) for key, value in vary.items()}


def _absolute(key: object, value: object, folder: Path) -> object:
    if key not in AXES or not isinstance(value, list | tuple):
        return value
    files = {file: str(folder.resolve() / file) for file in files_named(value)}
    return [renamed(each, files) if each is not None else None for each in value]


def _list(data: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = data.get(key)
    if isinstance(value, Mapping):
        return [{name: each} for name, each in value.items()]
    if value is not None and not isinstance(value, list | tuple):
        raise ConfigError(f"{place}: {key}: must be a list, got {value!r:.80}")
    return list(value or [])


def _sampler(value: object, num_objectives: int, place: str) -> str:
    if value is None:
        return "tpe" if num_objectives == 1 else "nsga2"
    if value not in SAMPLERS:
        raise ConfigError(f"{place}: sampler {value!r:.80}: unknown{suggest(value, SAMPLERS)}")
    return str(value)


def _count(value: object, name: str, default: int, place: str, least: int = 1) -> int:
    value = default if value is None else plain(value, place)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
        raise ConfigError(
            f"{place}: {name}: must be a whole number of {least} to {MAX_COUNT}, got {value!r:.80}"
        )
    return value
