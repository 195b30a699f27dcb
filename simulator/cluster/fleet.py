"""A fleet: replicas behind a router, which may die, start and retire while requests come.

A request whose replica dies starts over on another one (its tokens so far do not count), or is aborted with
the reason if `retry` is off; while no replica takes requests they wait at the router. Nothing is lost: every
request completes, or is counted as rejected, aborted or unfinished.
Left out: the router's own time, and what a network between it and the replicas takes.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import simpy

from simulator.cluster.members import Member, Published, Ticket
from simulator.cluster.routers import Router, RouterContext
from simulator.cluster.scaling import Fleeting, Scaling
from simulator.engine.admission import why_rejected
from simulator.engine.clock import towards
from simulator.metrics.request_log import RequestLog
from simulator.request import Request

Wait = Generator[simpy.events.Event, None, None]
DIED = "replica died"


class Outage(NamedTuple):
    """A replica dies at `at` (s); another one of its kind, with empty caches, takes its place at `back`."""

    replica: int
    at: float
    back: float | None = None


MakeMember = Callable[[int, int, float], Member]
"""Makes the replica with this index, like the one of the second index, at this time (s)."""


class Fleet:
    """Take requests in, let the router choose, and follow each until it is over."""

    def __init__(
        self,
        env: simpy.Environment,
        log: RequestLog,
        router: Router,
        ctx: RouterContext,
        make_member: MakeMember,
        num_replicas: int,
        *,
        signal_delay: float = 0.0,
        retry: bool = True,
        outages: Iterable[Outage] = (),
        scaling: Scaling | None = None,
    ) -> None:
        self.env = env
        self.log = log
        self.on_done: Callable[[int], None] | None = None
        self.on_step: Callable[[], None] | None = None
        self.members: list[Member] = []
        self.num_retried = 0
        self.num_held = 0  # that had to wait at the router
        self._router = router
        self._ctx = ctx
        self._make = make_member
        self._retry = retry
        self._delay = signal_delay
        self._held: deque[Ticket] = deque()
        self._published: dict[int, Published] = {}
        self._serving: list[Member] = []
        self._num_ticks = 0  # that are scheduled
        for i in range(num_replicas):
            self._open(self._new(i))
        for outage in outages:
            env.process(self._fail(outage))
        if signal_delay:
            env.process(self._publish())
        if scaling is not None:
            env.process(self._scale(scaling))

    # What clients ask for.

    def receive(self, index: int, request: Request) -> Ticket | None:
        """Take in a request that arrives now; None if no replica could ever serve it."""
        ticket = Ticket(index, request)
        return ticket if self._dispatch(ticket) else None

    def give_up(self, taken: object, reason: str) -> None:
        """Note that a request's client has gone."""
        assert isinstance(taken, Ticket), "it came from receive"
        if taken.gone:
            return
        if taken.member is None:
            self._held.remove(taken)
            taken.gone = True
            self.log.aborted(taken.index, self.env.now, reason)
            self._tell(taken.index)
        else:
            taken.member.replica.give_up(taken.seq, reason)

    def close(self) -> None:
        """Note how far the unfinished came when the clock stops."""
        for member in self.members:
            member.replica.close()

    # Routing.

    def _dispatch(self, ticket: Ticket) -> bool:
        """Send a request to a replica, or hold it back; False if none could ever serve it."""
        serving = self._serving
        if not serving:
            self._held.append(ticket)
            self.num_held += 1
            return True
        ctx = self._ctx
        ctx.now = self.env.now
        seen = [self._published[each.index] for each in serving] if self._delay else serving
        choice = self._router(ticket.request, seen, ctx)
        if not 0 <= choice < len(serving):
            raise IndexError(f"the router returned {choice} for {len(serving)} replicas")
        ctx.num_routed += 1
        member = serving[choice]
        if why_rejected(ticket.request, member.replica.scheduler) is not None:
            fits = (m for m in serving if why_rejected(ticket.request, m.replica.scheduler) is None)
            member = next(fits, member)
        return self._send(ticket, member)

    def _send(self, ticket: Ticket, member: Member) -> bool:
        member.num_outstanding += 1
        member.num_received += 1
        member.tickets[ticket.index] = ticket
        ticket.member = member
        ticket.seq = member.replica.receive(ticket.index, ticket.request)
        if ticket.seq is None:
            self._leave(member, ticket)
            return False
        return True

    def _leave(self, member: Member, ticket: Ticket) -> None:
        ticket.gone = True
        del member.tickets[ticket.index]
        member.num_outstanding -= 1
        if member.state == "draining" and not member.num_outstanding:
            member.state, member.ended = "retired", self.env.now

    def _done(self, member: Member, index: int) -> None:
        """A request on a replica is over, one way or another."""
        ticket = member.tickets.get(index)
        if ticket is not None:
            self._leave(member, ticket)
            self._tell(index)

    def _tell(self, index: int) -> None:
        if self.on_done is not None:
            self.on_done(index)

    def _report(self) -> None:
        if self.on_step is not None:
            self.on_step()

    # Replicas that come and go.

    def _new(self, like: int) -> Member:
        index = len(self.members)
        member = self._make(index, like, self.env.now)
        member.replica.on_done = lambda row: self._done(member, row)
        member.replica.on_step = self._report
        self.members.append(member)
        self._published[index] = Published(index, member.name)
        return member

    def _open(self, member: Member) -> None:
        """Let a replica take requests, those that wait at the router first."""
        member.state = "serving"
        self._published[member.index].refresh(member)
        insort(self._serving, member, key=lambda each: each.index)
        held, self._held = self._held, deque()
        for ticket in held:
            if not self._dispatch(ticket):
                self._tell(ticket.index)

    def _fail(self, outage: Outage) -> Wait:
        yield from self._until(outage.at)
        member = self.members[outage.replica]
        if member.state in ("serving", "draining"):
            self._kill(member)
        if outage.back is not None:
            yield from self._until(outage.back)
            self._open(self._new(member.index))

    def _kill(self, member: Member) -> None:
        if member in self._serving:
            self._serving.remove(member)
        member.state, member.ended = "dead", self.env.now
        lost = sorted(member.tickets.values(), key=lambda ticket: ticket.index)
        member.tickets.clear()
        member.num_outstanding = 0
        for ticket in lost:
            assert ticket.seq is not None, "it is under way"
            member.replica.lose(ticket.seq)
            ticket.member = ticket.seq = None
            if self._retry:
                self.num_retried += 1
                if not self._dispatch(ticket):
                    self._tell(ticket.index)
            else:
                ticket.gone = True
                self.log.aborted(ticket.index, self.env.now, DIED)
                self._tell(ticket.index)

    def _scale(self, scaling: Scaling) -> Wait:
        while (yield from self._tick(scaling.interval)):
            starting = sum(member.state == "starting" for member in self.members)
            wanted = scaling.autoscaler(Fleeting(self._serving, starting, self.env.now))
            wanted = min(max(wanted, scaling.least), scaling.most)
            more = wanted - len(self._serving) - starting
            for _ in range(more):
                self.env.process(self._start(scaling.start_delay))
            for _ in range(min(-more, len(self._serving) - scaling.least)):
                self._retire(self._serving[-1])

    def _start(self, delay: float) -> Wait:
        member = self._new(0)
        member.state = "starting"
        yield self.env.timeout(delay)
        self._open(member)

    def _retire(self, member: Member) -> None:
        self._serving.remove(member)
        member.state = "draining"
        if not member.num_outstanding:
            member.state, member.ended = "retired", self.env.now

    def _publish(self) -> Wait:
        """Let every replica tell its state each `signal_delay` seconds."""
        while (yield from self._tick(self._delay)):
            for member in self.members:
                self._published[member.index].refresh(member)

    def _tick(self, seconds: float) -> Generator[simpy.events.Event, None, bool]:
        """Wait; say whether anything can still happen but such ticks, which must not keep a run alive."""
        self._num_ticks += 1
        yield self.env.timeout(seconds)
        self._num_ticks -= 1
        others = len(self.env._queue) - self._num_ticks  # SimPy has no public count of its events
        return others > 0 and self.log.num_done < len(self.log)

    def _until(self, moment: float) -> Wait:
        while self.env.now < moment:
            yield self.env.timeout(towards(self.env.now, moment))
