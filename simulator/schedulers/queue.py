"""The waiting queue: sequences by an order's key, smallest first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

from simulator.request import Sequence
from simulator.schedulers.context import Context
from simulator.schedulers.orders import Order


class WaitingQueue:
    """Waiting sequences in the order of a key that is fixed when they enter.

    Enqueue numbers break ties; a preempted sequence gets one below all others (rule 4.2: of several
    victims of one step the last is first, which restores the order of admission).
    """

    def __init__(self, order: Order, ctx: Context) -> None:
        self.order = order
        self._ctx = ctx
        self._heap: list[tuple[Any, int, Sequence]] = []
        self._by_age: deque[Sequence] = deque()
        self.size = 0  # how many wait
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sequence]:
        """Yield the waiting sequences in order."""
        live = [entry for entry in self._heap if _is_live(entry)]
        return (seq for _, _, seq in sorted(live, key=lambda entry: entry[:2]))

    def push(self, seq: Sequence) -> None:
        """Enqueue a new arrival."""
        self.oldest()  # lets go of those that have left
        self._back += 1
        self._by_age.append(seq)
        self._insert(seq, self._back)

    def push_preempted(self, seq: Sequence) -> None:
        """Enqueue a preempted sequence, ahead of all others as far as the order leaves that open."""
        self._front -= 1
        self._by_age.appendleft(seq)
        self._insert(seq, self._front)

    def _insert(self, seq: Sequence, number: int) -> None:
        seq.enqueued = number
        seq.state = "waiting"
        self.size += 1
        heapq.heappush(self._heap, (self.order(seq, self._ctx), number, seq))

    def head(self) -> Sequence | None:
        """Return the first sequence without removing it."""
        heap = self._heap
        while heap:
            _, number, seq = heap[0]
            if seq.state == "waiting" and seq.enqueued == number:
                return seq
            heapq.heappop(heap)
        return None

    def oldest(self) -> Sequence | None:
        """Return the waiting sequence that was preempted last, or else the one that arrived first."""
        ages = self._by_age
        while ages and ages[0].state != "waiting":
            ages.popleft()
        return ages[0] if ages else None

    def pop(self) -> Sequence:
        """Remove and return the first sequence."""
        while True:
            _, number, seq = heapq.heappop(self._heap)
            if seq.state == "waiting" and seq.enqueued == number:
                self.size -= 1
                return seq

    def remove(self, seq: Sequence) -> None:
        """Drop a sequence from anywhere in the queue."""
        seq.state = "finished"
        self.size -= 1


def _is_live(entry: tuple[Any, int, Sequence]) -> bool:
    return entry[2].state == "waiting" and entry[2].enqueued == entry[1]
