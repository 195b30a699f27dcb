"""Replicas of one role behind a router of their own: the prefill side or the decode side of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.cluster.members import Member, Published, Ticket
from simulator.cluster.routers import Router, RouterContext
from simulator.cluster.wires import Transfer
from simulator.engine.admission import why_rejected
from simulator.engine.pooled import DecodeReplica, PrefillReplica
from simulator.request import Request, Sequence


@dataclass(eq=False, slots=True)
class Passage(Ticket):
    """A request on its way through both pools; `member` and `seq` are where it is served now."""

    sent_at: float = 0.0  # s; when it was sent to the prefill replica
    prefilled_at: float = 0.0  # s; when that one gave its first token
    first: tuple[Member, Sequence] | None = None  # who gave its first token
    parked: Sequence | None = None  # there, until its blocks have been sent
    transfer: Transfer | None = None  # under way, or waiting for the link


class Pool:
    """The replicas of one role; requests wait here while none of them serves."""

    def __init__(self, router: Router, ctx: RouterContext, signal_delay: float) -> None:
        self.members: list[Member] = []
        self.serving: list[Member] = []
        self.held: deque[Passage] = deque()
        self.num_held = 0
        self._router = router
        self._ctx = ctx
        self._delay = signal_delay
        self._published: dict[int, Published] = {}

    def add(self, member: Member) -> None:
        """Let a replica take requests."""
        self.members.append(member)
        self.serving.append(member)
        self._published[member.index] = Published(member.index, member.name)
        self._published[member.index].refresh(member)

    def publish(self) -> None:
        """Let every replica tell its state."""
        for member in self.serving:
            self._published[member.index].refresh(member)

    def choose(self, request: Request, asked: Request, now: float) -> Member | None:
        """Return the router's choice for a request, None while no replica serves.

        `asked` is what the replica is asked for; one that could never serve it passes it to one that can.
        """
        serving, ctx = self.serving, self._ctx
        if not serving:
            return None
        ctx.now = now
        seen = [self._published[each.index] for each in serving] if self._delay else serving
        choice = self._router(request, seen, ctx)
        if not 0 <= choice < len(serving):
            raise IndexError(f"the router returned {choice} for {len(serving)} replicas")
        ctx.num_routed += 1
        able = (each for each in (serving[choice], *serving) if self.why_not(each, asked) is None)
        return next(able, serving[choice])

    @staticmethod
    def why_not(member: Member, request: Request) -> str | None:
        """Say why a replica could never serve a request."""
        return why_rejected(request, member.replica.scheduler)

    def hold(self, passage: Passage) -> None:
        """Let a request wait until a replica serves again."""
        self.held.append(passage)
        self.num_held += 1

    def release(self) -> Iterator[Passage]:
        """Yield the requests that wait, which wait no longer."""
        held, self.held = self.held, deque()
        yield from held

    def enter(self, member: Member, passage: Passage) -> None:
        """Note that a request is sent to a replica."""
        member.num_outstanding += 1
        member.num_received += 1
        member.tickets[passage.index] = passage
        passage.member = member

    def leave(self, member: Member, passage: Passage) -> None:
        """Note that a replica is done with a request."""
        del member.tickets[passage.index]
        member.num_outstanding -= 1
        passage.member = passage.seq = None

    def forget(self, passage: Passage) -> None:
        """Let a request wait no longer, if it does."""
        if passage in self.held:
            self.held.remove(passage)

    def passages(self) -> list[Passage]:
        """Return all requests that are here, waiting or sent to a replica."""
        sent = (ticket for member in self.serving for ticket in member.tickets.values())
        return [*self.held, *(ticket for ticket in sent if isinstance(ticket, Passage))]

    def lose(self, member: Member, passage: Passage) -> None:
        """Drop a request from a replica that will be served elsewhere, or nowhere."""
        assert passage.seq is not None, "it is under way"
        member.replica.lose(passage.seq)
        self.leave(member, passage)

    def strike(self, member: Member, now: float) -> list[Passage]:
        """Take a dead replica out; return the requests that it served, by row."""
        self.serving.remove(member)
        member.state, member.ended = "dead", now
        lost = [ticket for ticket in member.tickets.values() if isinstance(ticket, Passage)]
        for passage in lost:
            self.lose(member, passage)
        return sorted(lost, key=lambda each: each.index)


def first_token_of(request: Request) -> Request:
    """Return what the prefill pool is asked for."""
    return replace(request, max_tokens=1)


def half_of(member: Member) -> DecodeReplica:
    """Return a member of the decode pool as what it is."""
    assert isinstance(member.replica, DecodeReplica), "the other half"
    return member.replica


def let_go(passage: Passage, parked: Sequence | None = None) -> None:
    """Free what is parked of a request; only if it is still `parked`, where that is given."""
    if passage.parked is None or (parked is not None and parked is not passage.parked):
        return
    assert passage.first is not None, "it is parked somewhere"
    prefill = passage.first[0].replica
    assert isinstance(prefill, PrefillReplica), "and that is where prompts are computed"
    prefill.let_go(passage.parked)
    passage.parked = None
