"""Replay a trace's prefixes against a cache, without time: which eviction keeps what is needed again?

Requests come in the order of their arrival, each at once and whole; a block hits if all blocks before it hit.
`belady` knows the future and is a bound for this replay alone: on a server an eviction also changes how long
requests take, and so the order in which blocks are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.config.policies import PolicyFile, find_policy, is_file_policy, policy_file, suspects
from simulator.config.wrong_policies import Suspect, blaming, object_suspect
from simulator.errors import ConfigError
from simulator.experiments.cache_accesses import Accesses, Ints
from simulator.kv.block_cache import BlockCache
from simulator.kv.eviction import EVICTIONS, ONE_KEY_A_RUN, Eviction, belady, lru
from simulator.workload.workload import Workload

BELADY = "belady"
TITLES = ("eviction", "capacity_blocks", "hit_rate", "token_hit_rate", "gap_to_belady", "gap_closed")


class CachePoint(NamedTuple):
    """What one eviction kept in a cache of `capacity` blocks."""

    eviction: str
    capacity: int
    hit_blocks: int
    hit_tokens: int


@dataclass(frozen=True)
class CacheReplay:
    """A trace's hits by eviction and capacity. `unlimited` is a cache that forgets nothing."""

    trace: str
    block_size: int
    vllm_rules: bool
    num_requests: int
    num_blocks: int  # of all prompts
    num_tokens: int
    num_distinct: int  # blocks that differ
    unlimited: CachePoint
    points: tuple[CachePoint, ...]

    @property
    def evictions(self) -> list[str]:
        return list(dict.fromkeys(point.eviction for point in self.points))

    @property
    def capacities(self) -> list[int]:
        return list(dict.fromkeys(point.capacity for point in self.points))

    def hit_rate(self, point: CachePoint) -> float:
        return point.hit_blocks / max(self.num_blocks, 1)

    def widest_gap(self) -> int:
        """Return the capacity at which LRU is furthest from Belady."""
        gap = {p.capacity: p.hit_blocks for p in self.points if p.eviction == BELADY}
        for point in self.points:
            if point.eviction == "lru":
                gap[point.capacity] -= point.hit_blocks
        return max(gap, key=lambda capacity: gap[capacity])

    def verdict(self) -> str:
        """Say which eviction comes closest to Belady where LRU is furthest from it."""
        at = self.widest_gap()
        rates = {p.eviction: self.hit_rate(p) for p in self.points if p.capacity == at}
        bound = rates.pop(BELADY)
        best = max(rates, key=lambda name: rates[name])
        words = f"{best} is best" if best != "lru" else "none asked for beats it"
        return (
            f"At {at:,} blocks, where LRU is furthest from the bound ({rates['lru']:.1%} of blocks hit, "
            f"Belady {bound:.1%}), {words}" + (f" ({rates[best]:.1%})" if best != "lru" else "")
        )

    def rows(self) -> list[dict[str, object]]:
        """One row per eviction and capacity, with the keys `TITLES`; rates as fractions.

        `gap_to_belady` is how much higher Belady's hit rate is, `gap_closed` the share of the way from LRU to
        Belady that the eviction goes (below 0: worse than LRU; None: LRU is as good as Belady).
        """
        hits = {(each.eviction, each.capacity): each.hit_blocks for each in self.points}
        rows: list[dict[str, object]] = []
        for each in self.points:
            best, plain = hits[BELADY, each.capacity], hits["lru", each.capacity]
            closed = (each.hit_blocks - plain) / (best - plain) if best > plain else None
            tokens = each.hit_tokens / max(self.num_tokens, 1)
            gap = (best - each.hit_blocks) / max(self.num_blocks, 1)
            values = (each.eviction, each.capacity, self.hit_rate(each), tokens, gap, closed)
            rows.append(dict(zip(TITLES, values, strict=True)))
        return rows

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        unlimited = self.unlimited
        return {
            "trace": self.trace,
            "block_size": self.block_size,
            "vllm_rules": self.vllm_rules,
            "num_requests": self.num_requests,
            "num_blocks": self.num_blocks,
            "num_tokens": self.num_tokens,
            "distinct_blocks": self.num_distinct,
            "unlimited_hit_rate": self.hit_rate(unlimited),
            "unlimited_token_hit_rate": unlimited.hit_tokens / max(self.num_tokens, 1),
            "points": [
                row | {"hit_blocks": point.hit_blocks, "hit_tokens": point.hit_tokens}
                for row, point in zip(self.rows(), self.points, strict=True)
            ],
        }


def replay_cache(
    workload: Workload,
    evictions: Iterable[str | Eviction] | Mapping[str, Eviction] = tuple(EVICTIONS),
    capacities: Iterable[int] | None = None,
    block_size: int | None = None,
    *,
    vllm_rules: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CacheReplay:
    """Replay a workload for each eviction and capacity (None: six in steps of two); LRU and Belady included.

    An eviction is a name of `EVICTIONS`, `file.py:name`, or a function or class itself. ConfigError says
    which cannot be used, InputError that the workload has no prefix ids.
    """
    named, blamed = _find(evictions)
    accesses = Accesses.of(workload, block_size, vllm_rules)
    capacities = default_capacities(accesses.num_distinct) if capacities is None else list(capacities)
    if bad := [n for n in capacities if isinstance(n, bool) or not isinstance(n, int) or n < 0]:
        raise ConfigError(f"capacities: must be whole numbers of blocks >= 0, got {bad[0]!r:.40}")
    if not capacities:
        raise ConfigError("capacities: name at least one")
    capacities = sorted(set(capacities))
    unlimited = _point("unlimited", accesses.num_distinct, accesses, accesses.unlimited_hits())
    jobs = [(name, each, n) for name, each in named.items() for n in capacities]
    points = []
    with blaming(blamed):
        for done, (name, each, capacity) in enumerate(jobs, start=1):
            hits = _hits(accesses, each, capacity)
            if each is belady:
                points.append(_bound(capacity, accesses, hits, unlimited))
            else:
                points.append(_point(name, capacity, accesses, np.minimum(hits, accesses.may_hit)))
            if progress is not None:
                progress(done, len(jobs))
    return CacheReplay(
        trace=workload.source,
        block_size=accesses.block_size,
        vllm_rules=vllm_rules,
        num_requests=len(accesses),
        num_blocks=int(accesses.num_blocks.sum()),
        num_tokens=int(accesses.num_prompt.sum()),
        num_distinct=accesses.num_distinct,
        unlimited=unlimited,
        points=tuple(points),
    )


def default_capacities(num_distinct: int) -> list[int]:
    """Return a 64th to a half of the blocks that differ, in steps of two, to two digits.

    >>> default_capacities(182_790)
    [2900, 5700, 11000, 23000, 46000, 91000]
    """
    return sorted({max(int(float(f"{num_distinct / 2**k:.1e}")), 1) for k in range(1, 7)})


def _hits(accesses: Accesses, eviction: Eviction, capacity: int) -> Ints:
    """Return how many blocks of each request were cached."""
    each = accesses if eviction in ONE_KEY_A_RUN else accesses.singles
    cache = BlockCache(capacity, eviction, each.pieces, each.block_size)
    hits = np.zeros(len(each), np.int64)
    for i, (now, pieces, next_uses, tenant) in enumerate(each.rows):
        if eviction is belady:
            for piece, next_use in zip(pieces, next_uses, strict=True):
                cache.ctx.next_uses[piece] = next_use
        hits[i] = cache.request(now, pieces, tenant)
    return hits


def _bound(capacity: int, accesses: Accesses, hits: Ints, unlimited: CachePoint) -> CachePoint:
    """Return Belady's hits as a bound: it does not foresee which cached blocks vLLM's rules let not hit."""
    free = _point(BELADY, capacity, accesses, hits)
    return free._replace(
        hit_blocks=min(free.hit_blocks, unlimited.hit_blocks),
        hit_tokens=min(free.hit_tokens, unlimited.hit_tokens),
    )


def _point(name: str, capacity: int, accesses: Accesses, hits: Ints) -> CachePoint:
    return CachePoint(name, capacity, int(hits.sum()), accesses.tokens(hits))


def _find(
    evictions: Iterable[str | Eviction] | Mapping[str, Eviction],
) -> tuple[dict[str, Eviction], list[Suspect]]:
    """Look evictions up, and name those of the user's; LRU comes first and Belady last, asked for or not."""
    if isinstance(evictions, str):
        evictions = [evictions]
    given = evictions.items() if isinstance(evictions, Mapping) else ((None, each) for each in evictions)
    found: dict[str, Eviction] = {"lru": lru}
    files: list[PolicyFile] = []
    objects: list[Suspect] = []
    for name, given_as in given:
        each = given_as
        if isinstance(each, str):
            name, value = name or each, each
            if value == BELADY:
                continue
            if is_file_policy(value):
                files.append(policy_file(value, "kv.eviction"))
            each = find_policy(EVICTIONS, value, "kv.eviction", trust=True, files=files)
        name = name or getattr(each, "__name__", "") or type(each).__name__
        if not callable(each) or (isinstance(each, type) and not hasattr(each, "evict")):
            raise ConfigError(
                f"kv.eviction: {name!r:.80} is neither a function of (block, ctx) nor a class with release, "
                "hit and evict"
            )
        if found.setdefault(name, each) is not each:
            raise ConfigError(f"kv.eviction: two evictions are called {name!r:.80}")
        if not isinstance(given_as, str) and each not in EVICTIONS.values():
            objects.append(object_suspect("kv.eviction", name, each))
    return found | {BELADY: belady}, suspects(files) + objects
