"""The blocks that sequences hold: which runs they are, and that no block is lost or owned twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from simulator.kv.block_pool import BlockPool, Run
from simulator.kv.keyed_pool import KeyedPool
from simulator.request import Sequence


def held_runs(seq: Sequence) -> Iterator[Run]:
    """Yield the runs a sequence holds, in prefix order, following splits."""
    for run, count in cast("list[tuple[Run, int]]", seq.runs):
        piece: Run | None = run
        while count > 0:
            assert piece is not None
            yield piece
            count -= piece.hi - piece.lo
            piece = piece.next


def check_blocks(pool: BlockPool | KeyedPool, block_size: int, sequences: Iterable[Sequence]) -> None:
    """Raise AssertionError unless every block is free or owned, and every reference is accounted for."""
    refs: dict[int, int] = {}
    runs: dict[int, Run] = {id(run): run for run in pool.cached_runs()}
    unhashed = 0
    for seq in sequences:
        unhashed += -(-max(seq.num_computed, seq.slots) // block_size) - seq.num_hashed
        for run in held_runs(seq):
            runs[id(run)] = run
            refs[id(run)] = refs.get(id(run), 0) + 1
    for key, run in runs.items():
        assert run.refs == refs.get(key, 0), f"{run!r} has {refs.get(key, 0)} holders"
        assert len(run) > 0, f"{run!r} is empty"
    cached_free = sum(len(run) for run in runs.values() if not run.refs)
    held = sum(len(run) for run in runs.values() if run.refs)
    assert cached_free == pool.num_cached_free, f"{cached_free} != {pool.num_cached_free} cached free"
    assert held + unhashed + pool.num_free == pool.num_blocks, (
        f"{held} hashed + {unhashed} other held + {pool.num_free} free != {pool.num_blocks} blocks"
    )
