"""Which replica serves a request: the routers.

A router is a function of the request, the replicas that take requests, and a context; it returns an index
into the replicas. One that remembers where it sent what is a small class with `__call__`. It sees what a
router in front of real servers sees: its own counts, and signals that may be old (`signal_delay_s`).
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Protocol

import numpy as np

from simulator.request import Request

SHARE_KNOWN = 0.5
"""Prefix affinity follows a prefix that is at least this share of the prompt; else the shortest queue."""
LEAD = 1.5
"""It follows no prefix to a replica with this many times the requests of the least loaded one, .."""
MARGIN = 8
""".. and this many more."""


class ReplicaState(Protocol):
    """What a router may read of a replica. With a signal delay all but `index` and `name` may be old."""

    @property
    def index(self) -> int: ...  # of the replica in the fleet, which never changes
    @property
    def name(self) -> str: ...  # what it runs on
    @property
    def num_outstanding(self) -> int: ...  # requests sent to it that are not over
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...


class RouterContext:
    """What a router may know besides: the time, how many requests came before, and a random stream."""

    __slots__ = ("block_size", "now", "num_routed", "rng")

    def __init__(self, rng: np.random.Generator, block_size: int) -> None:
        self.rng = rng
        self.block_size = block_size  # tokens, of the hashes in `request.block_hashes`
        self.now = 0.0  # s
        self.num_routed = 0


Router = Callable[[Request, Many[ReplicaState], RouterContext], int]


def round_robin(request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
    """Send to each in turn."""
    return ctx.num_routed % len(replicas)


def random(request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
    """Send to any, all alike."""
    return int(ctx.rng.integers(len(replicas)))


def least_outstanding(request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
    """Send to the one with the fewest requests that are not over, those that run included."""
    counts = [replica.num_outstanding for replica in replicas]
    return counts.index(min(counts))


def least_kv(request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
    """Send to the one whose KV pool is used least; of equals, the one with the fewest requests."""
    used = [(1.0 - each.free_blocks / each.num_blocks, each.num_outstanding) for each in replicas]
    return used.index(min(used))


def power_of_two(request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
    """Send to the less loaded of two drawn at random (Mitzenmacher, IEEE TPDS 12(10), 2001)."""
    if len(replicas) == 1:
        return 0
    first = int(ctx.rng.integers(len(replicas)))
    second = (first + 1 + int(ctx.rng.integers(len(replicas) - 1))) % len(replicas)
    one, other = replicas[first].num_outstanding, replicas[second].num_outstanding
    return first if one <= other else second


def session_affinity(request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
    """Keep a session on one replica by rendezvous hashing (Thaler and Ravishankar, IEEE/ACM ToN 6(1), 1998).

    A request without one goes to the shortest queue.
    """
    if not request.session:
        return least_outstanding(request, replicas, ctx)
    name = request.session.encode()
    draws = [zlib.crc32(name + each.index.to_bytes(4, "little")) for each in replicas]
    return draws.index(max(draws))


class PrefixAffinity:
    """Send to who was sent most of the prompt before, unless that one is much busier (SGLang's router).

    One entry a run of blocks, where SGLang keeps a tree of texts.
    """

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, int]] = {}  # first block of a run -> (replica, end of the run)

    def __call__(self, request: Request, replicas: Many[ReplicaState], ctx: RouterContext) -> int:
        chosen = self._known(request, replicas, ctx.block_size)
        counts = [replica.num_outstanding for replica in replicas]
        least = min(counts)
        if chosen is None or counts[chosen] > max(least + MARGIN, LEAD * least):
            chosen = counts.index(least)
        where = replicas[chosen].index
        for lo, hi in request.block_hashes:
            known = self._sent.get(lo)
            longest = max(hi, known[1]) if known is not None and known[0] == where else hi
            self._sent[lo] = where, longest
        return chosen

    def _known(self, request: Request, replicas: Many[ReplicaState], block_size: int) -> int | None:
        """Return who was sent the longest part of the prompt, None if it is short or its replica is gone."""
        found, best, before = None, 0, 0
        for lo, hi in request.block_hashes:
            known = self._sent.get(lo)
            if known is None:
                break
            where, end = known
            place = _place_of(where, replicas)
            if place is not None:
                found, best = place, before + min(hi, end) - lo
            if end < hi:
                break
            before += hi - lo
        return found if best * block_size >= SHARE_KNOWN * request.num_prompt else None


def _place_of(index: int, replicas: Many[ReplicaState]) -> int | None:
    """Return where among the replicas the one of this index is; they are in order of it."""
    at = bisect_left(replicas, index, key=lambda replica: replica.index)
    return at if at < len(replicas) and replicas[at].index == index else None


ROUTERS: dict[str, Router | type] = {
    "round_robin": round_robin,
    "random": random,
    "least_outstanding": least_outstanding,
    "least_kv": least_kv,
    "power_of_two": power_of_two,
    "prefix_affinity": PrefixAffinity,
    "session_affinity": session_affinity,
}
