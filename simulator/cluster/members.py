"""One replica of a fleet: its engine, what is under way there, and what a router sees of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.engine.replica import Replica
from simulator.request import Request, Sequence


@dataclass(eq=False, slots=True)
class Ticket:
    """A request in a fleet's hands: where it is now, None while no replica takes requests."""

    index: int  # row of the workload
    request: Request
    member: Member | None = None
    seq: Sequence | None = None
    gone: bool = False  # its client has left, or it is over


@dataclass(eq=False, slots=True)
class Member:
    """A replica and its place in the fleet. Seconds; `started` is when it began to cost money.

    States: starting, serving, draining (takes no more requests), retired, dead.
    """

    index: int
    name: str  # what it runs on
    gpus: int
    replica: Replica
    started: float
    state: str = "serving"
    ended: float | None = None
    num_outstanding: int = 0
    num_received: int = 0
    tickets: dict[int, Ticket] = field(default_factory=dict)  # under way, by row of the workload
    kind: int = 0  # which of the fleet's kinds it is of

    @property
    def num_running(self) -> int:
        return len(self.replica.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return self.replica.scheduler.waiting.size

    @property
    def free_blocks(self) -> int:
        self.replica.catch_up()
        return self.replica.scheduler.kv.num_free

    @property
    def num_blocks(self) -> int:
        return self.replica.scheduler.kv.pool.num_blocks

    def gpu_seconds(self, end: float) -> float:
        """Return what it has cost until `end`, all its GPUs together."""
        return self.gpus * max(0.0, (end if self.ended is None else self.ended) - self.started)


@dataclass(slots=True)
class Published:
    """A replica as it last told of itself: what routers see under a signal delay."""

    index: int
    name: str
    num_outstanding: int = 0
    num_running: int = 0
    num_waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0

    def refresh(self, member: Member) -> None:
        """Take over the replica's state of now."""
        self.num_outstanding = member.num_outstanding
        self.num_running = member.num_running
        self.num_waiting = member.num_waiting
        self.free_blocks = member.free_blocks
        self.num_blocks = member.num_blocks
