"""Moments hit exactly, on SimPy's clock and ahead of it.

SimPy adds delays to the present, so `now + (moment - now)` may miss a moment by a rounding; a last-bit
difference can move an arrival across a step boundary. Here moments are reached to the bit, and the ends of
steps that follow each other are added up in their order, never by a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import simpy

from simulator.batch import Batch
from simulator.latency.base import LatencyModel

LATE = simpy.events.EventPriority(2)
"""SimPy priority of a step's end: everything else that bears the same time stamp comes first.

Replicas of a fleet add their index, so that of steps that end together that of the first is learnt first.
"""
MANY = 24
"""From so many steps on, adding them up is worth numpy's overhead."""
MOST = 4096


class StepEnd(simpy.events.Event):
    """A timeout at a moment (or just before it) that fires after all other events of its time stamp."""

    def __init__(
        self, env: simpy.Environment, moment: float, priority: simpy.events.EventPriority = LATE
    ) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = None
        env.schedule(self, priority=priority, delay=towards(env.now, moment))


class UnderWay(NamedTuple):
    """A step that is decided and has not ended."""

    end: float
    opened: int  # blocks it took


def towards(now: float, moment: float) -> float:
    """Return a delay that leads from `now` to exactly `moment`, or as near before it as one delay can."""
    delay = moment - now
    return delay if now + delay <= moment else math.nextafter(delay, 0.0)


def until(env: simpy.Environment, moment: float) -> Generator[simpy.events.Event, None, None]:
    """Wait until exactly a moment; not at all if it has passed."""
    while env.now < moment:
        yield env.timeout(towards(env.now, moment))


def step_ends(latency: LatencyModel, batch: Batch, now: float, steps: int, horizon: float) -> list[float]:
    """Return when the next steps end that repeat a batch, at most `steps` of them.

    The first that ends at or after `horizon` is the last. Leaves the batch describing the last step.
    """
    members = batch.num_decodes - batch.num_padding
    is_mixed = batch.num_padding or batch.chunks
    ends: list[float] = []
    while now < horizon and len(ends) < steps:
        batch.grow(members, 1)
        seconds = latency.step_time(batch)
        rest = steps - len(ends)
        if rest < MANY or now + MANY * seconds > horizon or is_mixed:
            now += seconds
            ends.append(now)
            continue
        k = int(min(rest, MOST, (horizon - now) / seconds + 1))
        times = np.add.accumulate(np.concatenate(([now], latency.decode_times(batch, k))))[1:]
        taken = min(k, int(np.searchsorted(times, horizon)) + 1)
        batch.grow(members, taken - 1)
        ends += times[:taken].tolist()
        now = ends[-1]
    return ends
