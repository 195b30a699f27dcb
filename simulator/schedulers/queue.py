"""The waiting queue: sequences by an order's key, smallest first."""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from simulator.errors import ConfigError
from simulator.request import Sequence
from simulator.schedulers.context import Context, Watched
from simulator.schedulers.keys import is_nan, no_order
from simulator.schedulers.orders import Key, Order


class WaitingQueue:
    """Waiting sequences in the order of a key.

    Enqueue numbers break ties; a preempted sequence gets one below all others (rule 4.2: of several
    victims of one step the last is first, which restores the order of admission). Keys stand in a heap until
    the order looks at what changes while a sequence waits; from then on (`is_asked`) they are asked for anew.
    """

    def __init__(self, order: Order, ctx: Context) -> None:
        order = order() if isinstance(order, type) else order if callable(order) else copy.deepcopy(order)
        self.order = order
        self.served = getattr(order, "served", None)  # told what each sequence is served, where it charges
        self._joined = getattr(order, "joined", None)  # told of arrivals before they are in the queue
        self._key: Callable[[Sequence, Any], Key] = order if callable(order) else order.key
        self._ctx = ctx
        self._watched = Watched(ctx)
        self.is_asked = self.served is not None
        self._heap: list[tuple[Any, int, Sequence]] = []  # unless keys are asked for anew
        self._asked: dict[Sequence, None] = {}  # if they are
        self._first: Sequence | None = None  # of these, the first, if it is known
        self._by_age: deque[Sequence] = deque()
        self.size = 0  # how many wait
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Sequence]:
        """Yield the waiting sequences in order."""
        if self.is_asked:
            return (seq for _, _, seq in sorted(self._keys()))
        return (seq for _, _, seq in sorted(self._live(), key=lambda entry: entry[:2]))

    def members(self) -> Iterator[Sequence]:
        """Yield the waiting sequences in no particular order."""
        return iter(self._asked) if self.is_asked else (entry[2] for entry in self._live())

    def push(self, seq: Sequence) -> None:
        """Enqueue a new arrival."""
        self.oldest()  # lets go of those that have left
        if self._joined is not None:
            self._joined(seq, self._ctx)
        self._back += 1
        self._by_age.append(seq)
        self._insert(seq, self._back)

    def push_preempted(self, seq: Sequence) -> None:
        """Enqueue a preempted sequence, ahead of all others as far as the order leaves that open."""
        self._front -= 1
        self._by_age.appendleft(seq)
        self._insert(seq, self._front)

    def refresh(self) -> None:
        """Ask for the keys again before the next look at the head, where the order wants that."""
        self._first = None

    def head(self) -> Sequence | None:
        """Return the first sequence without removing it."""
        if self.is_asked:
            if self._first is None and self._asked:
                self._first = self._smallest()
            return self._first
        heap = self._heap
        while heap:
            _, number, seq = heap[0]
            if seq.state == "waiting" and seq.enqueued == number:
                return seq
            self._drop_first()
        return None

    def oldest(self) -> Sequence | None:
        """Return the waiting sequence that was preempted last, or else the one that arrived first."""
        ages = self._by_age
        while ages and ages[0].state != "waiting":
            ages.popleft()
        return ages[0] if ages else None

    def pop(self) -> Sequence:
        """Remove and return the first sequence."""
        seq = self.head()
        assert seq is not None, "pop from an empty queue"
        self.size -= 1
        if self.is_asked:
            del self._asked[seq]
            self._first = None
        else:
            self._drop_first()
        return seq

    def remove(self, seq: Sequence) -> None:
        """Drop a sequence from anywhere in the queue."""
        seq.state = "finished"
        self.size -= 1
        if self.is_asked:
            del self._asked[seq]
            self._first = None

    def _insert(self, seq: Sequence, number: int) -> None:
        seq.enqueued = number
        seq.state = "waiting"
        self.size += 1
        if self.is_asked:
            self._asked[seq] = None
            self._first = None
            return
        key = self._key(seq, self._watched)
        if self._watched.was_read:
            self.is_asked = True
            self._asked = dict.fromkeys(waiting for _, _, waiting in sorted(self._live(), key=_number))
            self._asked[seq] = None
            return
        entry = key, number, seq
        try:
            if key == key and not (type(key) is tuple and is_nan(key)):
                heapq.heappush(self._heap, entry)
                return
        except Exception as error:  # a key may be anything
            raise self._no_order([entry, *self._heap]) from error
        raise self._no_order([entry])

    def _smallest(self) -> Sequence:
        keys = self._keys()
        try:
            if not any(is_nan(key) for key, _, _ in keys):
                return min(keys)[2]
        except Exception as error:  # a key may be anything
            raise self._no_order(keys) from error
        raise self._no_order(keys)

    def _keys(self) -> list[tuple[Key, int, Sequence]]:
        return [(self._key(seq, self._ctx), seq.enqueued, seq) for seq in self._asked]

    def _drop_first(self) -> None:
        try:
            heapq.heappop(self._heap)
        except Exception as error:  # a key may be anything
            raise self._no_order(self._heap) from error

    def _no_order(self, entries: Iterable[tuple[Key, int, Sequence]]) -> ConfigError:
        return no_order("scheduler.order", self.order, ((seq.id, key) for key, _, seq in entries))

    def _live(self) -> Iterator[tuple[Any, int, Sequence]]:
        return (
            entry for entry in self._heap if entry[2].state == "waiting" and entry[2].enqueued == entry[1]
        )


def _number(entry: tuple[Any, int, Sequence]) -> int:
    return entry[1]
