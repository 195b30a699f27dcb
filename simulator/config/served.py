"""What served a run: one replica, or a fleet of them. Its tables are those of all replicas together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from simulator.cluster.members import Member
from simulator.cluster.serve import FleetServed
from simulator.config.build import Machine
from simulator.engine.pipeline import Line
from simulator.engine.serve import Served, line_of
from simulator.metrics.recorder import Recorder
from simulator.metrics.request_log import RequestLog
from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable, StepTable, merged
from simulator.metrics.token_times import gaps
from simulator.metrics.verifications import Verifications
from simulator.request import Request
from simulator.schedulers.base import Scheduler


class Part(NamedTuple):
    """One replica of a run; `member` is its place in the fleet, None where there is none."""

    recorder: Recorder
    scheduler: Scheduler
    machine: Machine
    member: Member | None = None
    line: Line | None = None  # the stages of a pipeline


@dataclass(frozen=True)
class ServedRun:
    """A finished simulation: one log of requests, and the replicas that wrote it."""

    log: RequestLog
    parts: list[Part]
    fleet: FleetServed | None = None

    @classmethod
    def alone(cls, served: Served, machine: Machine) -> ServedRun:
        """Wrap what one replica served."""
        recorder = served.recorder
        return cls(recorder.log, [Part(recorder, served.scheduler, machine, line=served.line)])

    @classmethod
    def by_fleet(cls, served: FleetServed, machines: list[Machine]) -> ServedRun:
        """Wrap what a fleet served; `machines` are those of its kinds of replicas."""
        parts = [
            Part(
                each.replica.recorder,
                each.replica.scheduler,
                machines[each.kind],
                each,
                line_of(each.replica),
            )
            for each in served.members
        ]
        return cls(served.log, parts, served)

    def request_table(self, requests: Iterable[Request]) -> RequestTable:
        """Return the requests that reached the server, in order of arrival, with what became of them."""
        num_output: Ints = reduce(np.add, (part.recorder.num_output for part in self.parts))
        first: Floats = reduce(np.fmin, (part.recorder.first_token_at for part in self.parts))
        return self.log.table(requests, num_output, first)

    def gaps(self, rows: Ints) -> tuple[Floats, Ints]:
        """Return the inter-token latencies of these rows of the request table, as values (s) and counts."""
        counts = np.array(self.log.status) == COMPLETED
        counts &= np.isin(np.arange(len(counts)), self.log.in_order()[rows])
        return gaps([part.recorder.stints(counts) for part in self.parts])

    def step_tables(self) -> list[StepTable]:
        """Return each replica's steps that have ended."""
        return [part.recorder.step_table() for part in self.parts]

    @staticmethod
    def together(tables: list[StepTable]) -> StepTable:
        """Return the steps of all replicas as one table."""
        return tables[0] if len(tables) == 1 else merged(tables)

    def verifications(self) -> Verifications | None:
        """Return what speculation drafted and what came of it, None without speculation."""
        found = [each for part in self.parts if (each := part.recorder.verifications) is not None]
        if len(found) <= 1:
            return found[0] if found else None
        together = Verifications()
        for each in found:
            together.join(each)
        return together
