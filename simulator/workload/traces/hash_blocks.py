"""How many prompt tokens one prefix id covers, and prefix ids on their way into `TraceBlocks`.

A file may have an id for a last block that the prompt fills only partly (Mooncake) or not (kv-cache-tester).
Mooncake's form says nowhere how large its blocks are: 512 in the published traces, but converters write
others. The number of ids per prompt shows it: of all powers of two at most one fits a prompt of two ids.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.traces.clock import Unreadable
from simulator.workload.traces.fields import MAX_ID, read_ids

Ints = NDArray[np.int64]

MOONCAKE_BLOCK = 512  # tokens per id, README of kvcache-ai/Mooncake FAST25-release/traces
OTHER_BLOCKS = (16, 32, 64, 128, 256, 1024)  # tokens; what engines and converters use


class HashIds:
    """Collects the prefix ids of rows as runs.

    `block` is the tokens per id, None to find out in the end. Of a last, partly filled block there is an
    id (`last` "partial"), is none ("full"), or may be one ("either").
    """

    def __init__(self, block: int | None, last: str = "partial") -> None:
        self.block = block
        self.last = last
        self._lo, self._hi, self._runs, self._count = array("q"), array("q"), array("q"), array("q")
        self._base = 0  # added to every id
        self._next = 0  # above every id so far

    def new_scope(self) -> None:
        """Let ids from here on name other blocks than the same ids did before."""
        self._base = self._next

    def read(self, value: object, prompt: int) -> Ints:
        """Check a row's ids."""
        ids = read_ids(value)
        if self.block is not None and len(ids) and not self._fits(self.block, prompt, len(ids)):
            each = {"partial": "one per", "full": "one per full", "either": "one per"}[self.last]
            raise Unreadable(f"hash_ids are not {each} {self.block} prompt tokens")
        if self._base and len(ids) and not (ids.min() >= 0 and int(ids.max()) + self._base < MAX_ID):
            raise Unreadable("hash_ids of a session are negative or too large")
        return ids

    def add(self, ids: Ints) -> None:
        """Append a row's ids, as `read` gave them."""
        self._count.append(len(ids))
        if not len(ids):
            self._runs.append(0)
            return
        ids, cuts = ids + self._base, np.flatnonzero(np.diff(ids) != 1)
        self._runs.append(len(cuts) + 1)
        self._lo.extend(ids[np.append(0, cuts + 1)].tolist())
        self._hi.extend((ids[np.append(cuts, len(ids) - 1)] + 1).tolist())
        self._next = max(self._next, int(ids.max()) + 1)

    def blocks(self) -> TraceBlocks:
        offsets = np.concatenate([[0], np.cumsum(np.array(self._runs, np.int64))])
        lo, hi = np.array(self._lo, np.int64), np.array(self._hi, np.int64)
        return TraceBlocks(lo, hi, offsets, self.block or MOONCAKE_BLOCK)

    def settle(self, prompt: Ints, source: str) -> NDArray[np.bool_]:
        """Find the block size if it was not given; return which rows agree with it. See `_found`."""
        count = np.array(self._count, np.int64)
        if self.block is None:
            self.block = self._found(prompt[count > 0], count[count > 0], source)
        agree: NDArray[np.bool_] = (count == 0) | self._fits(self.block, prompt, count)
        return agree

    def _found(self, prompt: Ints, count: Ints, source: str) -> int:
        """Return 512 if every row agrees, else the power of two that does, else 512 if most rows agree."""
        agrees = self._fits(MOONCAKE_BLOCK, prompt, count)
        if agrees.all():
            return MOONCAKE_BLOCK
        for block in OTHER_BLOCKS:
            if self._fits(block, prompt, count).all():
                return block
        if agrees.mean() > 0.5:
            return MOONCAKE_BLOCK
        raise InputError(
            f"{source}: hash_ids are not one per block of {MOONCAKE_BLOCK} or of "
            f"{', '.join(map(str, OTHER_BLOCKS))} prompt tokens; give a block_size in the first row"
        )

    def _fits(self, block: int, prompt: Ints | int, count: Ints | int) -> NDArray[np.bool_]:
        """Say which rows have as many ids as their prompts have blocks."""
        is_full, is_started = np.equal(count, prompt // block), np.equal(count, -(-prompt // block))
        fits: dict[str, NDArray[np.bool_]] = {
            "partial": is_started,
            "full": is_full,
            "either": is_full | is_started,
        }
        return fits[self.last]
