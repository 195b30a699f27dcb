"""How long parked blocks wait for whoever fetches them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import simpy

from simulator.cluster.pool import Passage
from simulator.engine.clock import towards
from simulator.request import Sequence


class Leases:
    """Tells `expire` of every request that is still parked `seconds` after its first token."""

    def __init__(self, env: simpy.Environment, seconds: float, expire: Callable[[Passage], None]) -> None:
        self.env = env
        self.num_expired = 0
        self._seconds = seconds
        self._expire = expire
        self._open: deque[tuple[float, Passage, Sequence]] = deque()  # by when they end

    def begin(self, passage: Passage) -> None:
        """Note that a request is parked from now on."""
        assert passage.parked is not None, "its blocks wait"
        self._open.append((self.env.now + self._seconds, passage, passage.parked))
        if len(self._open) == 1:
            self.env.process(self._watch())

    def _watch(self) -> Generator[simpy.events.Event, None, None]:
        """Wait for what is parked, from the first lease to the last: one event at a time."""
        env = self.env
        while self._open:
            end, passage, seq = self._open[0]
            while passage.parked is seq and env.now < end:
                yield env.timeout(towards(env.now, end))
            self._open.popleft()
            if passage.parked is seq:
                self.num_expired += 1
                self._expire(passage)
