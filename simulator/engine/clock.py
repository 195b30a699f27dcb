"""Moments hit exactly, on SimPy's clock and ahead of it.

SimPy adds delays to the present, so `now + (moment - now)` may miss a moment by a rounding; a last-bit
difference can move an arrival across a step boundary. Here moments are reached to the bit, and the ends of
steps that follow each other are added up in their order, never by a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import simpy

from simulator.batch import Batch
from simulator.latency.base import LatencyModel

LATE = simpy.events.EventPriority(2)
"""SimPy priority of a step's end: everything else that bears the same time stamp comes first."""
FEW = 8
"""So many steps are added up one by one; more are worth numpy's overhead."""
MOST = 4096


class StepEnd(simpy.events.Event):
    """A timeout that fires after all other events of its moment, so that equal stamps have arrived."""

    def __init__(self, env: simpy.Environment, delay: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, priority=LATE, delay=delay)


def towards(now: float, moment: float) -> float:
    """Return a delay that leads from `now` to exactly `moment`, or as near before it as one delay can."""
    delay = moment - now
    return delay if now + delay <= moment else math.nextafter(delay, 0.0)


def wait_until(env: simpy.Environment, moment: float) -> Generator[simpy.events.Event, None, None]:
    """Let time pass until exactly `moment`, and everything else of that moment happen."""
    while env.now < moment:
        yield StepEnd(env, towards(env.now, moment))


def step_ends(latency: LatencyModel, batch: Batch, now: float, steps: int, horizon: float) -> list[float]:
    """Return when the next steps end that repeat a batch, at most `steps` of them.

    The first that ends at or after `horizon` is the last. Leaves the batch describing the last step.
    """
    members = batch.num_decodes - batch.num_padding
    ends: list[float] = []
    while len(ends) < steps and now < horizon:
        if len(ends) < FEW or batch.num_padding or batch.chunks:
            batch.grow(members, 1)
            now += latency.step_time(batch)
            ends.append(now)
            continue
        expected = (horizon - now) / (ends[-1] - ends[-2])
        k = int(min(steps - len(ends), MOST, expected + FEW))
        batch.grow(members, 1)
        times = np.add.accumulate(np.concatenate(([now], latency.decode_times(batch, k))))[1:]
        taken = min(k, int(np.searchsorted(times, horizon)) + 1)
        batch.grow(members, taken - 1)
        ends += times[:taken].tolist()
        now = ends[-1]
    return ends
