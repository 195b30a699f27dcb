"""One step on the device: rows to flat tensors, the model's forward pass, logits of the rows that sample.

Decodes and chunks share one flattened batch, as in Sarathi-Serve and vLLM. The number of tokens is padded to
a ladder of sizes: on CUDA a graph replays captured sizes, on the CPU small matrix products are quicker at
these sizes than just below them (MKL at m = 2, 3: twice the time of m = 4), the head's among them.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence as Many

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_backend.attention.base import AttentionBackend, AttentionInputs, ChunkRows
from gpu_backend.block_tables import BlockTables
from gpu_backend.graphs import DecodeGraphs
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.model import Decoder
from gpu_backend.rows import Row
from gpu_backend.token_book import TokenBook

LADDER = (1, 4, 8, 12, *range(16, 65, 8), *range(80, 257, 16), *range(288, 513, 32))
"""Sizes that a step's tokens are padded to; beyond the last, multiples of 64."""
STRIDE = 64


def padded(num_tokens: int) -> int:
    """Return the size that a step of this many tokens is padded to.

    >>> padded(2), padded(17), padded(513)
    (4, 24, 576)
    """
    at = bisect.bisect_left(LADDER, num_tokens)
    return LADDER[at] if at < len(LADDER) else -(-num_tokens // STRIDE) * STRIDE


class Runner:
    """Runs one model over the pages of one device."""

    def __init__(
        self,
        decoder: Decoder,
        kv: KvTensors,
        tables: BlockTables,
        tokens: TokenBook,
        attention: AttentionBackend,
        *,
        pads: bool = True,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.decoder = decoder
        self.kv = kv
        self.tables = tables
        self.tokens = tokens
        self.attention = attention
        self.pads = pads
        self.graphs = graphs
        self.device = kv.pages.device

    @torch.inference_mode()
    def run(self, rows: Many[Row]) -> Tensor:
        """Compute the rows; return the logits of those that sample, in order of `rows`: (sampled, vocab).

        A row with drafts has one for its last known token and one for each draft.
        """
        ordered = [row for row in rows if row.num_tokens == 1] + [row for row in rows if row.num_tokens > 1]
        last = np.cumsum([row.num_tokens for row in ordered]) - 1
        at = dict(zip(map(id, ordered), last.tolist(), strict=True))
        sampled = [at[id(row)] - back for row in rows if row.samples for back in range(row.num_draft, -1, -1)]
        more = padded(len(sampled)) - len(sampled) if sampled and self.device.type == "cpu" else 0
        wanted = self._to_device(np.array(sampled + sampled[:1] * more, dtype=np.int64))
        if self.graphs is not None and last[-1] < len(rows) and self.graphs.fits(len(rows)):
            numbers, own = self._decodes(ordered)
            hidden = self.graphs.run(numbers, self._blocks(own, numbers[3]))
        else:
            ids, positions, inputs = self._flatten(ordered)
            hidden = self.decoder.forward(ids, positions, self.kv, inputs, self.attention)
        if not sampled:  # no kernel is asked to work on nothing
            return torch.empty((0, self.decoder.config.vocab_size), device=self.device)
        return self.decoder.head(hidden[wanted])[: len(sampled)]

    @torch.inference_mode()
    def warm_up(self, sizes: Many[int] = (1, 16, 64), chunks: Many[int] = ()) -> None:
        """Compute steps on the dummy block, so that the first step of a run is like any other.

        They are decodes of these sizes and, on CUDA, of tables of any width, and chunks of so many tokens,
        each with a short context and with the longest. Returns when the device has done them.
        """
        steps = [self.dummies(size) for size in sizes]
        longest = self.tables.matrix.shape[1]
        if self.device.type == "cuda":  # kernels are compiled, and split contexts by the tables' width
            steps += [self.dummies(1, 1 << i) for i in range(1, longest.bit_length())]
        steps += [self.dummies(0, width, num_tokens) for num_tokens in chunks for width in (1, longest)]
        for inputs in steps:
            zeros = torch.zeros_like(inputs.slots)
            hidden = self.decoder.forward(zeros, zeros, self.kv, inputs, self.attention)
            self.decoder.head(hidden[-max(inputs.num_decodes, 1) :]).argmax(-1)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def dummies(self, num_decodes: int, num_blocks: int = 1, num_tokens: int = 0) -> AttentionInputs:
        """Return inputs that read and write the dummy block alone, with tables of so many blocks at least.

        After the decodes comes a chunk of `num_tokens`, if any.
        """
        dummy, size = self.kv.dummy_block, self.kv.block_size
        context = max(num_tokens, num_blocks * size)
        chunks = [ChunkRows(num_decodes, num_tokens, context)] if num_tokens else []

        def full(shape: tuple[int, ...], value: int) -> Tensor:
            return self._to_device(np.full(shape, value, dtype=np.int32))

        return AttentionInputs(
            slots=full((num_decodes + num_tokens,), dummy * size).long(),
            num_decodes=num_decodes,
            decode_tables=full((num_decodes, num_blocks), dummy),
            decode_lens=full((num_decodes,), 1),
            decode_contexts=[1] * num_decodes,
            chunks=chunks,
            chunk_tables=full((len(chunks), -(-context // size)), dummy),
            chunk_starts=self._to_device(np.array([0, num_tokens][: 1 + len(chunks)], dtype=np.int32)),
            chunk_lens=full((len(chunks),), context),
        )

    def _decodes(self, rows: Many[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ids, positions, slots and contexts of one-token rows, (4, n), and their rows of tables."""
        size, tables = self.kv.block_size, self.tables.tables
        numbers = np.zeros((4, len(rows)), dtype=np.int64)
        own = np.array([tables[row.seq].row for row in rows], dtype=np.int64)
        starts = np.array([row.start for row in rows], dtype=np.int64)
        numbers[0] = [self._last_id(row) for row in rows]
        numbers[1] = starts
        numbers[2] = self.tables.matrix[own, starts // size] * size + starts % size
        numbers[3] = starts + 1
        for i, row in enumerate(rows):
            if row.is_padding:
                numbers[2, i] = self.kv.dummy_block * size
                numbers[3, i] = max(row.start, 1)
        return numbers, own

    def _flatten(self, rows: Many[Row]) -> tuple[Tensor, Tensor, AttentionInputs]:
        """Return token ids, positions and attention inputs of rows that are in order, decodes first."""
        size = self.kv.block_size
        num_tokens = sum(row.num_tokens for row in rows)
        numbers = np.zeros((3, padded(num_tokens) if self.pads else num_tokens), dtype=np.int64)
        numbers[2] = self.kv.dummy_block * size
        ids, positions, slots = numbers
        n = sum(row.num_tokens == 1 for row in rows)
        decodes, own = self._decodes(rows[:n])
        numbers[:, :n] = decodes[:3]
        at, chunks = n, []
        for row in rows[n:]:
            where, rest = np.arange(row.start, row.end), slice(at, at + row.num_tokens)
            ids[rest], positions[rest] = self.tokens[row.seq][row.start : row.end], where
            slots[rest] = self.tables.of(row.seq)[where // size] * size + where % size
            chunks.append(ChunkRows(at, row.num_tokens, row.end))
            at += row.num_tokens
        contexts = np.array([chunk.context for chunk in chunks], dtype=np.int64)
        others = np.array([self.tables.tables[row.seq].row for row in rows[n:]], dtype=np.int64)
        inputs = AttentionInputs(
            slots=self._to_device(slots),
            num_decodes=n,
            decode_tables=self._to_device(self._blocks(own, decodes[3])),
            decode_lens=self._to_device(decodes[3].astype(np.int32)),
            decode_contexts=decodes[3].tolist(),
            chunks=chunks,
            chunk_tables=self._to_device(self._blocks(others, contexts)),
            chunk_starts=self._to_device(np.array([c.first - n for c in chunks] + [at - n], dtype=np.int32)),
            chunk_lens=self._to_device(contexts.astype(np.int32)),
        )
        return self._to_device(ids), self._to_device(positions), inputs

    def _blocks(self, own: NDArray[np.int64], contexts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return these rows of the tables, as wide as the longest context needs."""
        return self.tables.matrix[own, : -(-int(contexts.max(initial=0)) // self.kv.block_size)]

    def _last_id(self, row: Row) -> int:
        return 0 if row.is_padding else int(self.tokens[row.seq][row.start])

    def _to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)
