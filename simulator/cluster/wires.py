"""The links between the replicas of two pools: one queue a side, one transfer at a time.

Each prefill replica sends and each decode replica receives over a link of its own. A transfer needs both
ends; an end serves transfers in the order in which they were decided, so one may wait at either. One that is
called off makes room at once.
With layers sent as they are computed, a transfer begins while its prompt is computed. Its L equal pieces then
follow each other through two stations, the GPU and the link: of T seconds of sending T / L remain after D
seconds of computing, or T - D + D / L where the link is the slower one. The link's time that others took
meanwhile is no help: D counts only what both ends had idle.
Left out: the switch between the links, and that transfers slow kernels down.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from simulator.engine.clock import until
from simulator.specs.links import Link

End = tuple[str, int]
"""One side of a replica: "out" or "in", and its index."""

FORGET = 60.0
"""s before a prompt's first step: what an end did until then is forgotten, to save memory; an assumption."""


@dataclass(eq=False, slots=True)
class Transfer:
    """Blocks on their way from one replica to another. Seconds; NaN before it has happened."""

    request: int  # row of the workload
    source: int
    target: int
    num_bytes: int
    decided: float
    then: Callable[[float], None]  # called when it has ended
    computed: tuple[float, float] | None = None  # when its prompt was computed, if layers are sent meanwhile
    begun: float = float("nan")
    ended: float = float("nan")
    is_over: bool = False

    @property
    def ends(self) -> tuple[End, End]:
        """The two ends that it takes."""
        return ("out", self.source), ("in", self.target)


class Wires:
    """All links between two pools. `num_layers` says that layers are sent as they are computed."""

    def __init__(self, env: simpy.Environment, link: Link, num_layers: int | None = None) -> None:
        self.env = env
        self.link = link
        self.done: list[Transfer] = []  # all that have ended, in that order
        self.num_called_off = 0
        self._num_layers = num_layers
        self._queues: dict[End, deque[Transfer]] = {}
        self._busy: dict[End, list[tuple[float, float]]] = {}  # when, with what was sent ahead of time

    def submit(self, transfer: Transfer) -> None:
        """Send blocks from when they were decided on, or as soon as both ends are free."""
        for end in transfer.ends:
            self._queues.setdefault(end, deque()).append(transfer)
        self._try(transfer, transfer.decided)

    def call_off(self, transfer: Transfer) -> None:
        """Stop or forget a transfer whose blocks nobody needs any more."""
        if not transfer.is_over:
            transfer.is_over = True
            self.num_called_off += 1
            self._leave(transfer, self.env.now)

    def _try(self, transfer: Transfer, now: float) -> None:
        """Begin a transfer that is the first at both of its ends."""
        if any(self._queues[end][0] is not transfer for end in transfer.ends):
            return
        begin = max(now, transfer.decided)
        transfer.begun = begin
        self.env.process(self._send(transfer, begin + self._remaining(transfer)))

    def _send(self, transfer: Transfer, end: float) -> Generator[simpy.events.Event, None, None]:
        yield from until(self.env, end)
        if transfer.is_over:
            return
        transfer.is_over = True
        transfer.ended = end
        self.done.append(transfer)
        self._leave(transfer, end)
        transfer.then(end)

    def _leave(self, transfer: Transfer, now: float) -> None:
        for end in transfer.ends:
            self._queues[end].remove(transfer)
            if self._num_layers is not None and transfer.begun < now:
                self._busy.setdefault(end, []).append((transfer.begun, now))
        for end in transfer.ends:
            if self._queues[end] and math.isnan(self._queues[end][0].begun):
                self._try(self._queues[end][0], now)

    def _remaining(self, transfer: Transfer) -> float:
        """Return how long the link is needed from now on, s."""
        whole = self.link.seconds(transfer.num_bytes)
        layers = self._num_layers
        if layers is None or transfer.computed is None:
            return whole
        start, stop = transfer.computed
        sending = whole - self.link.latency
        idle = stop - start - max(self._taken(end, start, stop) for end in transfer.ends)
        ahead = min(sending * (layers - 1) / layers, max(idle, 0.0) * (layers - 1) / layers)
        for end in transfer.ends:
            self._busy.setdefault(end, []).append((stop - ahead, stop))
        return whole - ahead

    def _taken(self, end: End, start: float, stop: float) -> float:
        """Return for how many of these seconds an end was sending."""
        spans = self._busy.get(end, [])
        kept = [span for span in spans if span[1] > start - FORGET]
        if len(kept) < len(spans):
            self._busy[end] = kept
        return sum(max(0.0, min(stop, high) - max(start, low)) for low, high in kept)
