"""Block hashes as integers: consecutive numbers for consecutive blocks of one prefix.

vLLM hashes (hash of the block before, token ids of the block, extra keys), rule 6.1. Interning that very
key gives each distinct prefix block one integer, compares contents exactly (two prompts never share a
block by an unlucky hash), and numbers the blocks of a new prompt consecutively, so that it is one range.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from simulator.request import HashRange

PRIVATE_BASE = 1 << 60
"""Hashes from here on belong to one request alone; those below are shared names from a trace."""


class PrefixIds:
    """Intern token blocks as integers."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._ids: dict[tuple[int | None, tuple[int, ...], Hashable], int] = {}

    def extend(
        self, ranges: list[HashRange], have: int, tokens: Sequence[int], extra: Hashable = None
    ) -> int:
        """Append to `ranges` the hashes of the full blocks of `tokens` beyond the first `have`.

        Returns how many blocks `ranges` covers then. `extra` (a LoRA name, a cache salt) separates
        prompts that must not share; tag it, since ("lora", "x") and ("salt", "x") are different keys.
        """
        parent = ranges[-1][1] - 1 if ranges else None
        size = self.block_size
        for i in range(have, len(tokens) // size):
            key = (parent, tuple(tokens[i * size : (i + 1) * size]), extra)
            parent = self._ids.setdefault(key, len(self._ids))
            if ranges and ranges[-1][1] == parent:
                ranges[-1] = (ranges[-1][0], parent + 1)
            else:
                ranges.append((parent, parent + 1))
        return max(have, len(tokens) // size)


class PrivateIds:
    """Hand out ranges of hashes that no other request will ever have."""

    def __init__(self) -> None:
        self._next = PRIVATE_BASE

    def take(self, num_blocks: int) -> HashRange:
        lo = self._next
        self._next += num_blocks
        return lo, self._next
