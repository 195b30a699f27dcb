"""The same question asked of other requests: replications of a scenario's workload.

Requests within a run depend on each other, so an interval over requests is too narrow (Law, Simulation
Modeling and Analysis, 9.4): intervals go over replications. Of a drawn workload each has a seed of its own,
the first the scenario's. Of a trace each is one of equal windows, or, where those would be short, a circular
block bootstrap. Replication i is the same for every candidate: common random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulator.config.build_workload import build_workload
from simulator.config.scenario import Scenario
from simulator.workload.resample import BLOCK_S, block_bootstrap, window, windows
from simulator.workload.workload import Workload

WINDOWS = 10
"""Windows of a trace where nobody says how many."""
FEWEST_REQUESTS = 500
"""A window with fewer is no replication."""
_STREAM = 200  # of the seed

WHOLES = 2
"""Whole traces kept while replications are cut from them; one can take gigabytes."""

SEEDS, WINDOWED, BOOTSTRAP = "seeds", "windows", "bootstrap"


def seed_of(seed: int, index: int) -> int:
    """Return the seed of a replication; the first has the scenario's own.

    >>> seed_of(7, 0)
    7
    """
    if index == 0:
        return seed
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM, index))
    return int(sequence.generate_state(1, np.uint32)[0])


@dataclass
class Replications:
    """Workloads of a scenario and of candidates that change some of its keys.

    `most` is how many there are, None for as many as one likes. `kind` is seeds, windows or bootstrap.
    """

    kind: str
    seed: int
    most: int | None = None
    _kept: dict[tuple[str, int], Workload] = field(default_factory=dict, repr=False)
    _wholes: dict[str, Workload] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, scenario: Scenario, max_model_len: int, wanted: int | None = None) -> Replications:
        """Decide how a scenario is replicated; `wanted` is the number of replications, if that is settled."""
        if scenario.workload.trace is None:
            return cls(SEEDS, scenario.seed)
        num = wanted or WINDOWS
        made = cls(BOOTSTRAP, scenario.seed)
        whole = made._whole(scenario, max_model_len)
        if num == 1 or (len(whole) >= num * FEWEST_REQUESTS and _shortest(whole, num) >= FEWEST_REQUESTS):
            made.kind, made.most = WINDOWED, num
        return made

    def scenario(self, scenario: Scenario, index: int) -> Scenario:
        """Return the scenario with the replication's seed, for whatever a run draws beside its workload."""
        return scenario.with_(seed=seed_of(self.seed, index))

    def workload(self, scenario: Scenario, max_model_len: int, index: int) -> Workload:
        """Return the requests of a replication; each is built once for scenarios that agree about them."""
        key = _key(scenario, max_model_len), index
        if key not in self._kept:
            self._kept[key] = self._build(scenario, max_model_len, index)
        return self._kept[key]

    def forget(self) -> None:
        """Drop the workloads that were built."""
        self._kept.clear()
        self._wholes.clear()

    def words(self, num: int | None = None) -> str:
        """Say in a line what a replication is."""
        count = "replications" if num is None else f"{num} replication{'' if num == 1 else 's'}"
        return {
            SEEDS: f"{count}, requests drawn with another seed each",
            WINDOWED: f"{count}, each one of {self.most} equal windows of the trace",
            BOOTSTRAP: f"{count}, each a circular block bootstrap of the trace ({BLOCK_S:g} s blocks)",
        }[self.kind]

    def _build(self, scenario: Scenario, max_model_len: int, index: int) -> Workload:
        if self.kind == SEEDS:
            return build_workload(self.scenario(scenario, index), max_model_len)
        whole = self._whole(scenario, max_model_len)
        if self.kind == WINDOWED:
            assert self.most is not None, "windows are counted"
            return window(whole, self.most, index)
        stream = np.random.SeedSequence(self.seed, spawn_key=(_STREAM, index))
        return block_bootstrap(whole, np.random.default_rng(stream))

    def _whole(self, scenario: Scenario, max_model_len: int) -> Workload:
        """Return the whole trace; the last few that were read are kept."""
        key = _key(scenario, max_model_len)
        whole = self._wholes.pop(key, None)
        if whole is None:
            whole = build_workload(scenario.with_(seed=self.seed), max_model_len)
        self._wholes[key] = whole  # the last one used is the last in order
        while len(self._wholes) > WHOLES:
            del self._wholes[next(iter(self._wholes))]
        return whole


def _key(scenario: Scenario, max_model_len: int) -> str:
    return repr((scenario.workload, max_model_len))


def _shortest(workload: Workload, num: int) -> int:
    return min(len(window) for window in windows(workload, num))
