"""Block tables by hand: a `BlockManager` driven without scheduler and clock, to see who holds what.

Sequences go by name, and their tokens are computed the moment they are added. Copy-on-write follows Kwon et
al., "PagedAttention" (SOSP 2023), section 4.4; vLLM's V1 scheduler never forks. Left out: the prefix cache.
"""

from __future__ import annotations

from simulator.kv.block_manager import BlockManager, held_runs
from simulator.request import Sequence


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
