"""What an eviction policy sees: a cached block, and the moment at which it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Price = Callable[[int, int], float]
"""What it costs to compute tokens of a block again, given how many and how many blocks come before it."""


class Block:
    """One cached block, or a run of `size` blocks of one prefix that were cached and freed together.

    A run's facts are those of its last block, the first to be evicted. Times in seconds, lengths in tokens.
    A policy reads the facts, `recompute_time` and `pinned`; the rest belongs to the cache.
    """

    __slots__ = (
        "created",
        "depth",
        "floor",
        "held",
        "key",
        "last_used",
        "num_children",
        "num_hits",
        "num_tokens",
        "order",
        "parent",
        "piece",
        "price",
        "size",
        "tenant",
    )

    def __init__(
        self,
        *,
        created: float = 0.0,
        depth: int = 0,
        num_tokens: int = 1,
        tenant: str = "",
        price: Price = lambda num_tokens, depth: num_tokens,
        size: int = 1,
        parent: Block | None = None,
        piece: int = 0,
    ) -> None:
        self.num_hits = 0  # requests that found it cached
        self.last_used = created  # when a request last held it
        self.created = created
        self.depth = depth  # blocks before it in its prefix
        self.num_tokens = num_tokens
        self.tenant = tenant  # whose request computed it
        self.price = price
        self.held = True  # by the request that computes it
        self.num_children = 0  # cached blocks that follow it
        self.size = size
        self.parent = parent
        self.piece = piece
        self.key: Any = None  # any ordered type: what the policy's function returned, raised if need be
        self.floor: Any = None  # the highest key of followers freed since it was freed last
        self.order = 0  # number of the release that freed it; 0 while held

    @property
    def recompute_time(self) -> float:
        """Price computing it again: seconds, in a replay forward passes of one token without context."""
        return self.price(self.num_tokens, self.depth)

    @property
    def pinned(self) -> bool:
        """Whether it must stay: a request holds it, or cached blocks that follow would be out of reach."""
        return self.held or self.num_children > 0


class EvictionContext(Protocol):
    """What a policy may look at besides the block."""

    @property
    def now(self) -> float: ...  # seconds
    @property
    def num_blocks(self) -> int: ...  # the cache's capacity
    @property
    def free_blocks(self) -> int: ...  # blocks that no request holds
    @property
    def evicted_key(self) -> Any: ...  # key of the block evicted last, 0.0 before the first


class FutureContext(EvictionContext, Protocol):
    """The side door of oracles, which only a replay can open."""

    def next_use(self, block: Block) -> float:
        """Return the number of the next request that needs the block, infinity if none does."""
        ...
