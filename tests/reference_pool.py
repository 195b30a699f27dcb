"""vLLM's block pool, one block at a time: what `simulator.kv` must agree with.

Rules 5-7 of vLLM 0.33's scheduler taken literally: a list for the free queue, a dict from prefix to blocks,
reference counts and block tables. A block's hash is the tuple of all tokens up to its end. Slow on purpose;
nothing here is shared with the code under test. Forking, which vLLM V1 has no more, is as in vLLM V0: all
blocks are shared, a partly filled one is copied by whoever writes first.
"""

from __future__ import annotations

Prefix = tuple[object, ...]


class Block:
    """One physical block."""

    def __init__(self) -> None:
        self.hash: Prefix | None = None
        self.refs = 0


class ReferencePool:
    """The blocks of one GPU and the block table of every running sequence, by its id."""

    def __init__(self, num_blocks: int, block_size: int, watermark: int = 0) -> None:
        self.block_size = block_size
        self.watermark = watermark
        self.free = [Block() for _ in range(num_blocks)]
        self.cached: dict[Prefix, list[Block]] = {}
        self.tables: dict[str, list[Block]] = {}
        self.num_registered: dict[str, int] = {}
        self.num_evicted = 0

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def lookup(self, tokens: list[object]) -> list[Block]:
        """Walk the prefix up to the last token but one; the earliest registered copy counts (6.3)."""
        hits = []
        for i in range((len(tokens) - 1) // self.block_size):
            here = self.cached.get(tuple(tokens[: (i + 1) * self.block_size]))
            if not here:
                break
            hits.append(here[0])
        return hits

    def admit(
        self, id: str, tokens: list[object], n: int, *, publish: bool, must_fit: int, watermark: bool
    ) -> bool:
        """Allocate to a waiting sequence its hits and slots for n more tokens (3.19, 5.2-5.5)."""
        hits = self.lookup(tokens) if publish else []
        room = len(self.free) - (self.watermark if watermark else 0)
        slots = len(hits) * self.block_size + n
        for total in (must_fit, slots):
            need = max(0, self.blocks_for(total) - len(hits)) + sum(block.refs == 0 for block in hits)
            if need > room:
                return False
        for block in hits:
            if block.refs == 0:
                self.free.remove(block)
            block.refs += 1
        self.tables[id] = list(hits)
        self.num_registered[id] = len(hits)
        self._pop(id, self.blocks_for(slots) - len(hits))
        self.register(id, tokens, slots, publish)
        return True

    def allocate(self, id: str, tokens: list[object], computed: int, n: int, publish: bool) -> bool:
        """Allocate slots for n more tokens of a running sequence, copying a shared partial block."""
        table = self.tables[id]
        need = self.blocks_for(computed + n) - len(table)
        copies = computed % self.block_size != 0 and table[-1].refs > 1
        if need + copies > len(self.free):
            return False
        if copies:
            table.pop().refs -= 1
        self._pop(id, need + copies)
        self.register(id, tokens, computed + n, publish)
        return True

    def release(self, id: str) -> None:
        """Free from last to first: unhashed blocks to the front as a unit, hashed ones to the tail (7.2)."""
        first, last = [], []
        for block in reversed(self.tables.pop(id)):
            block.refs -= 1
            if block.refs == 0:
                (first if block.hash is None else last).append(block)
        self.free = first + self.free + last

    def fork(self, parent: str, child: str) -> None:
        self.tables[child] = list(self.tables[parent])
        for block in self.tables[child]:
            block.refs += 1

    def register(self, id: str, tokens: list[object], computed: int, publish: bool) -> None:
        """Give full blocks their hashes, from the sequence's cached count on (6.4)."""
        if not publish:
            return
        upto = min(computed, len(tokens)) // self.block_size
        for i in range(self.num_registered[id], upto):
            block = self.tables[id][i]
            block.hash = tuple(tokens[: (i + 1) * self.block_size])
            self.cached.setdefault(block.hash, []).append(block)
        self.num_registered[id] = max(upto, self.num_registered[id])

    def _pop(self, id: str, n: int) -> None:
        """Take n blocks from the front of the queue, evicting what they still cache (5.5b)."""
        for _ in range(n):
            block = self.free.pop(0)
            if block.hash is not None:
                here = self.cached[block.hash]
                here.remove(block)
                if not here:
                    del self.cached[block.hash]
                block.hash = None
                self.num_evicted += 1
            block.refs = 1
            self.tables[id].append(block)
