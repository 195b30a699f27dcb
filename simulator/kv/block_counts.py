"""The free blocks of a pool as counts: those without a hash, used first, and cached ones nobody holds."""

from __future__ import annotations

from collections.abc import Callable


class BlockCounts:
    """What the pools have in common; a subclass says in `_take_cached` which cached blocks go."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_unhashed_free = num_blocks
        self.num_cached_free = 0
        self.num_evicted = 0
        self.on_evict: Callable[[int, int], None] | None = None  # told hashes lo..hi-1 as the last copy goes

    @property
    def num_free(self) -> int:
        """Blocks that an allocation may take: never used, unhashed, or cached and held by nobody."""
        return self.num_unhashed_free + self.num_cached_free

    def take(self, n: int) -> None:
        """Take n free blocks, evicting cached ones when the unhashed ones do not suffice."""
        spare = self.num_unhashed_free - n
        if spare >= 0:
            self.num_unhashed_free = spare
            return
        if -spare > self.num_cached_free:
            raise ValueError(f"take({n}) exceeds the {self.num_free} free blocks")
        self.num_unhashed_free = 0
        self._take_cached(-spare)

    def give(self, n: int) -> None:
        """Return n unhashed blocks."""
        if n > self.num_blocks - self.num_free:
            raise ValueError(f"give({n}) frees more than the pool's {self.num_blocks} blocks: double free")
        self.num_unhashed_free += n

    def _take_cached(self, n: int) -> None:
        raise NotImplementedError("a pool says which cached blocks go")
