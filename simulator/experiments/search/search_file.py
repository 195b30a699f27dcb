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
from simulator.config.loading import absolute_paths, read_mapping
from simulator.config.plain_yaml import dump_yaml
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
from simulator.experiments.search.space import Space, plain
from simulator.experiments.search.study import SAMPLERS
from simulator.experiments.sweep.plan import MOST_REPLICATIONS, read_axes, read_base, whole_number

KEYS = (
    *("base", "vary", "objectives", "constraints", "sampler", "trials", "replications", "seed", "metrics"),
)
TRIALS = 100
MOST_TRIALS = 100_000


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
            "vary": {key: plain(key, each) for key, each in self.space.items()},
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
        data = read_mapping(Path(source), "a search")
    for key in data:
        if key not in KEYS:
            raise ConfigError(f"{place}: unknown key {key!r:.80}{suggest(key, KEYS)}")
    try:
        search = _search(data, folder, objectives)
        if trials is not None:
            search = replace(search, trials=whole_number("--trials", trials, 1, MOST_TRIALS))
        return _constrained(search, data, constraints)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith((f"{place}: ", "--")) else f"{place}: {text}") from None


def _search(data: dict[str, Any], folder: Path, objectives: Any) -> Search:
    for key in ("base", "vary"):
        if data.get(key) is None:
            raise ConfigError(f"{key} is missing")
    base = absolute_paths(read_base(data["base"], folder))
    space = read_axes(_with_paths(data["vary"], folder), base)
    if objectives:
        goals = parse_objectives(objectives, "--objective")
    else:
        goals = parse_objectives(_list(data, "objectives"), "objectives")
    return Search(
        base,
        space,
        goals,
        (),
        _sampler(data.get("sampler"), len(goals)),
        trials=whole_number("trials", data.get("trials", TRIALS), 1, MOST_TRIALS),
        replications=whole_number("replications", data.get("replications", 1), 1, MOST_REPLICATIONS),
        seed=whole_number("seed", data.get("seed", 0), 0, 2**63 - 1),
        metrics=tuple(map(str, _list(data, "metrics"))),
    )


def _constrained(search: Search, data: dict[str, Any], given: Any) -> Search:
    if given:
        return replace(search, constraints=parse_constraints(given, "--constraint"))
    if data.get("constraints") is not None:
        found = parse_constraints(_list(data, "constraints"), "constraints")
        return replace(search, constraints=found)
    return replace(search, constraints=default_constraints(search.base, search.objectives), is_default=True)


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


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if isinstance(value, Mapping):
        return [{name: each} for name, each in value.items()]
    if value is not None and not isinstance(value, list | tuple):
        raise ConfigError(f"{key}: must be a list, got {value!r:.80}")
    return list(value or [])


def _sampler(value: object, num_objectives: int) -> str:
    if value is None:
        return "tpe" if num_objectives == 1 else "nsga2"
    if value not in SAMPLERS:
        raise ConfigError(f"sampler {value!r:.80}: unknown{suggest(value, SAMPLERS)}")
    return str(value)
