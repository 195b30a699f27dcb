"""From the scheduler's batch to rows: which tokens of which sequence a step computes.

The batch describes its decodes by sums; an engine needs them one by one. A row starts earlier than decided
where a block that the scheduler counts as cached was never computed (see `block_tables`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_backend.block_tables import BlockTables
from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler


@dataclass(slots=True)
class Row:
    """Tokens `start`..`start + num_tokens`-1 of a sequence. `samples`: the last gives a new token."""

    seq: Sequence
    start: int
    num_tokens: int
    samples: bool
    is_padding: bool = False  # computed and thrown away: it writes no KV
    num_draft: int = 0  # of the tokens, the last so many are drafts; the token before them and they sample

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


def rows_of(batch: Batch, scheduler: Scheduler) -> Iterator[Row]:
    """Yield the rows of a batch as `schedule` left it, decodes in order of admission before the chunks.

    A sequence that has ended since (asynchronous scheduling) is left out; its row would be thrown away.
    """
    chunked = {chunk.seq for chunk in batch.chunks}
    for seq, num_tokens in batch.rows(scheduler.running):
        if seq not in chunked:
            yield Row(seq, seq.num_computed - num_tokens, num_tokens, samples=True)
    if batch.num_padding:
        for seq in scheduler.padding:
            yield Row(seq, seq.num_computed, 1, samples=False, is_padding=True)
    for chunk in batch.chunks:
        if chunk.seq.state == "running":
            yield Row(chunk.seq, chunk.start, chunk.num_tokens, chunk.samples, num_draft=chunk.num_draft)


def place(rows: Iterable[Row], tables: BlockTables) -> int:
    """Give every row its blocks and note what it fills; return how many tokens are computed once more.

    Rows of sequences that took others' blocks come after the rest, since those may be filled by this step.
    """
    unsure = []
    for row in rows:
        if row.is_padding:
            continue
        if row.seq in tables.unsure:
            unsure.append(row)
        else:
            _fill(row, tables)
    mended = 0
    for row in unsure:
        begin = _first_lacking(row, tables)
        if begin < row.start:
            mended += row.start - begin
            row.num_tokens += row.start - begin
            row.start = begin
        _fill(row, tables)
        tables.unsure.discard(row.seq)
    return mended


def _fill(row: Row, tables: BlockTables) -> None:
    size, filled = tables.block_size, tables.filled
    blocks = tables.grow(row.seq, -(-row.end // size))
    for i in range(row.start // size, len(blocks)):
        have = min(size, row.end - i * size)
        if have > filled[blocks[i]]:
            filled[blocks[i]] = have


def _first_lacking(row: Row, tables: BlockTables) -> int:
    """Return the first position before the row whose KV no block has, else the row's start."""
    size = tables.block_size
    blocks = tables.grow(row.seq, -(-row.end // size))
    for i in range(-(-row.start // size)):
        if tables.filled[blocks[i]] < min(size, row.start - i * size):
            return i * size
    return row.start
