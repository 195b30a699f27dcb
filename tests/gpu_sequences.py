"""Sequences on scattered blocks, and batches of them, for tests of model and attention: no scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gpu_backend.attention.base import AttentionBackend, AttentionInputs, ChunkRows
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.model import Decoder


@dataclass(eq=False)
class Sequence:
    """Token ids, the blocks they live in, and how many of them are computed."""

    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0


@dataclass(eq=False)
class Pages:
    """A decoder with its KV, and free blocks that come in random order."""

    decoder: Decoder
    attention: AttentionBackend
    num_blocks: int = 64
    block_size: int = 4
    seed: int = 0
    kv: KvTensors = field(init=False)

    def __post_init__(self) -> None:
        config = self.decoder.config
        sizes = (config.num_layers, self.num_blocks, self.block_size, config.num_kv_heads, config.head_dim)
        self.kv = KvTensors(*sizes, dtype=self.decoder.dtype, device=self.decoder.device)
        self.free = np.random.default_rng(self.seed).permutation(self.num_blocks).tolist()

    def sequence(self, tokens: list[int], shared: list[int] | None = None, room: int = 24) -> Sequence:
        """Give a sequence blocks for its tokens and `room` more, after the ones it shares."""
        blocks = list(shared or [])
        while len(blocks) * self.block_size < len(tokens) + room:
            blocks.append(self.free.pop())
        return Sequence(tokens, blocks, num_computed=len(shared or []) * self.block_size)

    def step(self, *work: tuple[Sequence, int], padding: int = 0) -> Tensor:
        """Compute the next tokens of each sequence; returns the logits of their rows, in the same order.

        One token is a decode and comes first, as in a step of the engine.
        """
        assert sorted(work, key=lambda item: item[1] > 1) == list(work), "decodes come first"
        tokens, positions = [0] * padding, [0] * padding
        rows: list[tuple[Sequence, int]] = []
        for sequence, count in work:
            rows += [(sequence, sequence.num_computed + i) for i in range(count)]
        tokens = [sequence.tokens[position] for sequence, position in rows] + tokens
        positions = [position for _, position in rows] + positions
        spans = [(sequence.blocks, sequence.num_computed, count) for sequence, count in work]
        inputs = attention_inputs(spans, self.block_size, padding, self.kv.dummy_block)
        hidden = self.decoder.forward(
            torch.tensor(tokens), torch.tensor(positions), self.kv, inputs, self.attention
        )
        for sequence, count in work:
            sequence.num_computed += count
        return self.decoder.head(hidden[: len(rows)])


def attention_inputs(
    spans: list[tuple[list[int], int, int]], block_size: int, padding: int = 0, dummy: int = 0
) -> AttentionInputs:
    """Build a step's inputs from (blocks, first position, tokens) of each sequence, decodes first."""
    slots, chunks = [], []
    for blocks, start, count in spans:
        if count > 1:
            chunks.append(ChunkRows(len(slots), count, start + count))
        slots += [
            blocks[at // block_size] * block_size + at % block_size for at in range(start, start + count)
        ]
    decodes = [span for span in spans if span[2] == 1]
    contexts = [start + 1 for _, start, _ in decodes]
    first = len(decodes)
    return AttentionInputs(
        slots=torch.tensor(slots + [dummy * block_size] * padding, dtype=torch.int64),
        num_decodes=len(decodes),
        decode_tables=_tables([span[0] for span in decodes]),
        decode_lens=torch.tensor(contexts, dtype=torch.int32),
        decode_contexts=contexts,
        chunks=chunks,
        chunk_tables=_tables([span[0] for span in spans if span[2] > 1]),
        chunk_starts=torch.tensor([chunk.first - first for chunk in chunks] + [len(slots) - first]).int(),
        chunk_lens=torch.tensor([chunk.context for chunk in chunks], dtype=torch.int32),
    )


def _tables(tables: list[list[int]]) -> Tensor:
    """Pad to the longest with block 0, which somebody else may own."""
    width = max(map(len, tables), default=1)
    return torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int32).view(
        -1, width
    )
