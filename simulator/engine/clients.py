"""The world outside the server: clients that send, wait, think and give up.

Open loop: requests arrive at their times. Causal: a request that follows others arrives when the last of
them is done and its client has thought. Closed loop, and vLLM's `max_concurrency` on top of an open loop: a
request waits at the client until fewer than that many are under way. A request that is refused or given up
is done for those that follow it.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.engine.clock import towards
from simulator.metrics.request_log import RequestLog
from simulator.request import Request

Progress = Callable[[int, int], None]
"""Called with (requests done, requests in all) now and then."""
Wait = Generator[simpy.events.Event, None, None]


@dataclass(frozen=True)
class ClientPlan:
    """How clients behave beyond sending at the requests' arrivals. Seconds; one entry a request.

    `follows` are pairs (predecessor, request): a request arrives `think` after its last predecessor is done.
    `pre_delay` passes between the client and the server. `cancel_after` (NaN: never) is when it gives up.
    """

    follows: NDArray[np.int64] | None = None
    think: NDArray[np.float64] | None = None
    pre_delay: NDArray[np.float64] | None = None
    cancel_after: NDArray[np.float64] | None = None
    max_concurrency: int | None = None
    pause: float | None = None  # closed loop: what a client waits after an answer before it sends again


OPEN_LOOP = ClientPlan()


class Server(Protocol):
    """What clients send to: a replica, or a fleet of them behind a router."""

    @property
    def log(self) -> RequestLog: ...

    on_done: Callable[[int], None] | None  # told each request that is over, if any one waits
    on_step: Callable[[], None] | None  # called after steps that ended a request

    def receive(self, index: int, request: Request) -> object | None:
        """Take in a request that arrives now; None if it can never be served."""
        ...

    def give_up(self, taken: object, reason: str) -> None:
        """Note that the client of what `receive` returned has gone."""
        ...


class Clients:
    """Send requests to a server and react to what becomes of them."""

    def __init__(
        self,
        env: simpy.Environment,
        server: Server,
        requests: Sequence[Request],
        plan: ClientPlan = OPEN_LOOP,
        progress: Progress | None = None,
    ) -> None:
        self.env = env
        self.server = server
        self.plan = plan
        self._requests = requests
        self._progress = progress
        self._next_report = 1
        self._free = math.inf if plan.max_concurrency is None else plan.max_concurrency
        self._held: deque[tuple[int, Request, float]] = deque()  # wait at the client, since when
        self._missing: dict[int, int] = {}  # request -> predecessors that are not done
        self._followers: dict[int, list[int]] = {}
        for before, after in [] if plan.follows is None else plan.follows.tolist():
            self._missing[after] = self._missing.get(after, 0) + 1
            self._followers.setdefault(before, []).append(after)
        if plan.follows is not None or plan.max_concurrency is not None:
            server.on_done = self._done
        if progress is not None:
            server.on_step = self._report
        env.process(self._open_loop())

    def _open_loop(self) -> Wait:
        env = self.env
        for index, request in enumerate(self._requests):
            if index in self._missing:
                continue
            while env.now < request.arrival:
                yield env.timeout(towards(env.now, request.arrival))
            self._want(index, request)

    def _want(self, index: int, request: Request) -> None:
        """A client wants to send; it may have to wait until fewer requests are under way.

        In a closed loop there are no others: a request exists once a client is free to think of it.
        """
        if self._free > 0:
            self._free -= 1
            self._send(index, request)
        else:
            self._held.append((index, request, self.env.now))

    def _send(self, index: int, request: Request, waited: float = 0.0) -> None:
        delay = 0.0 if self.plan.pre_delay is None else float(self.plan.pre_delay[index])
        if waited or delay:
            self.server.log.sent(index, waited, delay)
        if delay > 0:
            self._after(delay, lambda: self._arrive(index, request))
        else:
            self._arrive(index, request)

    def _arrive(self, index: int, request: Request) -> None:
        server = self.server
        server.log.arrived(index, self.env.now)
        taken = server.receive(index, request)
        if taken is None:
            self._done(index)
            return
        if request.timeout is not None:
            self._after(request.timeout, lambda: server.give_up(taken, "timeout"))
        if self.plan.cancel_after is not None and not math.isnan(self.plan.cancel_after[index]):
            self._after(float(self.plan.cancel_after[index]), lambda: server.give_up(taken, "cancelled"))

    def _done(self, index: int) -> None:
        """A request is over, one way or another: free its place and let its followers think."""
        if self.plan.max_concurrency is not None:
            self._after(self.plan.pause or 0.0, self._free_place)
        for follower in self._followers.pop(index, ()):
            self._missing[follower] -= 1
            if not self._missing[follower]:
                pause = 0.0 if self.plan.think is None else float(self.plan.think[follower])
                self._after(pause, functools.partial(self._want, follower, self._requests[follower]))

    def _report(self) -> None:
        """Say now and then how many requests are done."""
        done, total = self.server.log.num_done, len(self._requests)
        if self._progress is not None and done >= self._next_report:
            self._progress(done, total)
            self._next_report = done + max(1, total // 200)

    def _free_place(self) -> None:
        self._free += 1
        if self._held:
            self._free -= 1
            index, request, since = self._held.popleft()
            self._send(index, request, self.env.now - since if self.plan.pause is None else 0.0)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        callbacks = self.env.timeout(seconds).callbacks
        assert callbacks is not None, "a new timeout has not been processed"
        callbacks.append(lambda _: act())
