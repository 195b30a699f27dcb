"""Block tables and a prefix cache by hand: a `BlockManager` driven without scheduler and clock.

Tokens are computed the moment a sequence holds them. Copy-on-write follows Kwon et al., "PagedAttention"
(SOSP 2023), section 4.4; vLLM's V1 scheduler never forks. `BlockTables` leaves the prefix cache out,
`PrefixCache` leaves out that requests run side by side.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.kv.block_manager import BlockManager
from simulator.kv.eviction import Eviction, lru
from simulator.kv.held_blocks import held_runs
from simulator.kv.prefix import PrefixIds
from simulator.request import HashRange, Sequence


class BlockTables:
    """A pool of `num_blocks` blocks, and the tables of the sequences that hold them.

    >>> tables = BlockTables(num_blocks=8, block_size=4)
    >>> tables.add("a", 10)
    True
    >>> tables.fork("a", "b")
    >>> tables.num_used, tables.holders()
    (3, {'a': [2, 2, 2], 'b': [2, 2, 2]})
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self._kv = BlockManager(num_blocks, block_size, enable_prefix_caching=False)
        self._seqs: dict[str, Sequence] = {}

    @property
    def num_free(self) -> int:
        return self._kv.num_free

    @property
    def num_used(self) -> int:
        return self._kv.num_used

    def add(self, name: str, num_tokens: int) -> bool:
        """Let a new sequence hold so many tokens; False and no change if they do not fit."""
        seq = self._new(name, num_tokens)
        if not self._kv.admit(seq, self._kv.lookup(seq), num_tokens, must_fit=num_tokens, watermark=False):
            return False
        seq._computed = num_tokens
        self._seqs[name] = seq
        return True

    def fork(self, parent: str, child: str) -> None:
        """Let a new sequence share all blocks of another."""
        old = self._known(parent)
        new = self._new(child, old.num_computed)
        new._computed = old.num_computed
        self._kv.fork(old, new)
        self._seqs[child] = new

    def append(self, name: str, num_tokens: int = 1) -> bool:
        """Write so many more tokens; False and no change if they do not fit."""
        seq = self._known(name)
        fits = self._kv.allocate(seq, num_tokens)
        seq._computed += num_tokens * fits
        return fits

    def free(self, name: str) -> None:
        """Let a sequence give up its blocks."""
        seq = self._known(name)
        self._kv.release(seq, seq.num_computed)
        del self._seqs[name]

    def holders(self) -> dict[str, list[int]]:
        """Return each sequence's table: for every block of it, how many sequences hold that block."""
        return {name: self._holders(seq) for name, seq in self._seqs.items()}

    def _holders(self, seq: Sequence) -> list[int]:
        shared = [run.refs for run in held_runs(seq) for _ in range(len(run))]
        return shared + [1] * (self._kv.blocks_for(seq.num_computed) - len(shared))

    def _new(self, name: str, num_tokens: int) -> Sequence:
        if name in self._seqs or num_tokens < 1:
            raise ValueError(f"a sequence needs a new name and >= 1 token, got {name!r}, {num_tokens}")
        return Sequence(name, num_tokens, max_tokens=1)

    def _known(self, name: str) -> Sequence:
        if name not in self._seqs:
            raise ValueError(f"no sequence {name!r}; there are {', '.join(self._seqs) or 'none'}")
        return self._seqs[name]


class Served(NamedTuple):
    """What became of a prompt: tokens found and computed, and the blocks that had to go for it, in order."""

    num_cached: int
    num_computed: int
    evicted: list[str]


class PrefixCache:
    """A pool of `num_blocks` blocks that serves one prompt after the other. A character is a token.

    >>> cache = PrefixCache(num_blocks=4, block_size=4)
    >>> cache.serve("Be kind.Hi")
    Served(num_cached=0, num_computed=10, evicted=[])
    >>> cache.serve("Be kind.Hello!!!")
    Served(num_cached=8, num_computed=8, evicted=[])
    >>> cache.serve("Oh?!")
    Served(num_cached=0, num_computed=4, evicted=['o!!!'])
    """

    def __init__(self, num_blocks: int, block_size: int = 4, eviction: Eviction = lru) -> None:
        self._kv = BlockManager(num_blocks, block_size, eviction=eviction)
        self._kv.pool.on_evict = self._note
        self._kv.attach(self)
        self._ids = PrefixIds(block_size)
        self._texts: dict[int, str] = {}  # of cached blocks, by hash
        self._evicted: list[str] = []
        self.now = 0.0  # prompts served
        self.num_blocks = num_blocks
        self.evicted_key: object = 0.0

    @property
    def free_blocks(self) -> int:
        return self._kv.num_free

    def recompute_time(self, num_tokens: int, start: int) -> float:
        """Price a token at one, whatever stands before it."""
        return float(num_tokens)

    def serve(self, prompt: str) -> Served:
        """Hold a prompt, compute what is not cached, and let go of it; ValueError if it can never fit."""
        size, ranges = self._kv.block_size, list[HashRange]()
        num_full = self._ids.extend(ranges, 0, [ord(c) for c in prompt])
        seq = Sequence(
            prompt, len(prompt), max_tokens=1, hash_ranges=list(ranges), hash_private_from=num_full
        )
        self._evicted, self.now = [], self.now + 1
        hit = self._kv.lookup(seq)
        found = hit.num_blocks * size
        rest = len(prompt) - found
        if not prompt or not self._kv.admit(seq, hit, rest, must_fit=len(prompt), watermark=False):
            raise ValueError(f"a prompt needs 1 to {self.num_blocks * size} tokens, got {len(prompt)}")
        for i, block in enumerate(block for lo, hi in ranges for block in range(lo, hi)):
            self._texts.setdefault(block, prompt[i * size : (i + 1) * size])
        seq._computed = len(prompt)
        self._kv.release(seq, len(prompt))
        return Served(found, rest, self._evicted)

    def _note(self, lo: int, hi: int) -> None:
        self._evicted += [self._texts.pop(block) for block in range(hi - 1, lo - 1, -1)]
