"""Blocks on their way to sequences: when each transfer is complete, and in which order that is learnt."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import simpy

from simulator.engine.clock import towards
from simulator.engine.links import Moved
from simulator.metrics.transfers import Transfers
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler

Wait = Generator[simpy.events.Event, None, None]


class Arrival(NamedTuple):
    """A fetch that is complete; `number` counts fetches in the order in which they were decided."""

    moment: float
    number: int
    seq: Sequence
    wait: float  # s since the decision


class Fetches:
    """Follows the fetches of one replica; `rouse` is called when one is complete."""

    def __init__(self, env: simpy.Environment, rouse: Callable[[], None]) -> None:
        self.env = env
        self.complete: list[Arrival] = []  # and not yet learnt
        self._rouse = rouse
        self._num = 0

    def begin(self, moved: Moved, now: float) -> None:
        """Follow what was set in motion at `now`."""
        for seq, moment in moved.arrivals.items():
            self._num += 1
            self.env.process(self._follow(Arrival(moment, self._num, seq, moment - now)))

    def learn(self, scheduler: Scheduler, transfers: Transfers, now: float) -> None:
        """Let the scheduler learn which fetches are complete, in the order in which they came to be."""
        for arrival in sorted(self.complete, key=lambda each: each[:2]):
            if arrival.seq.state == "fetching":  # or its client has gone
                transfers.fetch_wait += arrival.wait
                scheduler.arrived(arrival.seq, now)
        self.complete.clear()

    def _follow(self, arrival: Arrival) -> Wait:
        env = self.env
        while env.now < arrival.moment:
            yield env.timeout(towards(env.now, arrival.moment))
        self.complete.append(arrival)
        self._rouse()
