"""The same requests at any rate: what makes two rates, and two candidates, comparable.

A process that has a rate takes it, its gaps are those of the same seed, longer or shorter. Whatever else
there is (a trace's windows or bootstrap, a profile, bursts) keeps its shape and has its time compressed. All
replications are compressed alike, so that a busier window stays busier: the rate is their mean.
Left out: the shape of the load changing with its rate, as more users would bring.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import cached_property

from simulator.config.build_workload import with_rate
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.replications import Replications
from simulator.workload.arrivals import ARRIVALS
from simulator.workload.sessions import SESSIONS
from simulator.workload.workload import Workload

NO_RATE = ("all_at_once", "closed_loop")
ANY_RATE = 1.0
"""Where to begin if the scenario's own rate is infinite, requests/s."""


@dataclass
class Loads:
    """The requests of one candidate at any rate, `num` replications of them."""

    base: Scenario
    max_model_len: int
    replications: Replications
    num: int

    def __post_init__(self) -> None:
        section = self.base.workload
        kind = section.arrivals.get("kind")
        if section.trace is None and kind in NO_RATE:
            raise ConfigError(
                f"capacity: workload.arrivals.kind is {kind}, which offers no rate that could be changed; "
                "take poisson, or a trace"
            )

    @property
    def takes_rate(self) -> bool:
        """Whether the scenario's own arrival process has a rate."""
        section = self.base.workload
        process = ARRIVALS.get(section.arrivals.get("kind", ""))
        return (
            section.trace is None and process is not None and "rate" in inspect.signature(process).parameters
        )

    @property
    def unit(self) -> str:
        """What a rate counts: requests, or the sessions that drawn conversations start."""
        section = self.base.workload
        is_sessions = section.trace is None and section.lengths.get("kind") in SESSIONS
        return "sessions/s" if is_sessions and self.takes_rate else "requests/s"

    @cached_property
    def own_rate(self) -> float:
        """The rate of the scenario as it is, and where a search begins."""
        section = self.base.workload
        if not self.takes_rate:
            return section.rate_scale / self._unit_scale
        rate = float(section.arrivals.get("rate", ANY_RATE)) * section.rate_scale
        return rate if math.isfinite(rate) else ANY_RATE

    def scenario(self, rate: float) -> Scenario:
        """Return the scenario at this rate; a run of it is replication 0, if requests are drawn."""
        if self.takes_rate:
            return self.base.with_(**{"workload.arrivals.rate": rate, "workload.rate_scale": 1.0})
        return self.base.with_(**{"workload.rate_scale": rate * self._unit_scale})

    def replica(self, rate: float, index: int) -> Scenario:
        """Return what `scenario` does, with the replication's seed."""
        return self.replications.scenario(self.scenario(rate), index)

    def workload(self, rate: float, index: int) -> Workload:
        """Return the requests of a replication at this rate."""
        if not self.takes_rate:
            return self._plain(index).scaled(rate * self._unit_scale)
        found = self.replications.workload(self.scenario(rate), self.max_model_len, index)
        self.replications.forget()
        return found

    def _plain(self, index: int) -> Workload:
        plain = self.base.with_(**{"workload.rate_scale": 1.0})
        return self.replications.workload(plain, self.max_model_len, index)

    @cached_property
    def _unit_scale(self) -> float:
        """The scale at which there is one request a second: of a trace, or on average over replications."""
        one = with_rate(self.base, 1.0).workload.rate_scale  # refuses what cannot be rescaled
        if self.base.workload.trace is not None:
            return one
        drawn = [self._plain(i) for i in range(self.num)]
        return sum(float(each.arrival[-1]) for each in drawn) / sum(map(len, drawn))
