"""What an attention backend is told of a step, and what it does.

A step is one flattened batch: first the decodes, a row each; then the chunks, one after the other; then
padding, whose results nobody reads. K and V live in pages of `block_size` tokens that block tables address,
as in PagedAttention (Kwon et al., SOSP 2023, section 4). In every layer the K and V of the whole batch are
written before anybody attends, so a sequence may hit blocks that the same step fills (rule 6.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class ChunkRows(NamedTuple):
    """One chunk's place in the flattened batch, known on the host."""

    first: int  # its first row
    num_tokens: int  # rows
    context: int  # tokens that its last row reads, itself included: the chunk's start + num_tokens


@dataclass(slots=True)
class AttentionInputs:
    """Which rows belong to whom. Tensors lie on the model's device; tables hold physical block numbers.

    Entries of a table beyond its sequence's context are valid block numbers, and nobody reads their KV.
    Make new inputs for each step, unless a graph replays them: a backend may keep what it derives from them.
    """

    slots: Tensor  # (rows,) int64: block * block_size + offset, where each row's K and V are written
    num_decodes: int
    decode_tables: Tensor  # (num_decodes, blocks) int32
    decode_lens: Tensor  # (num_decodes,) int32: tokens that each reads, itself included
    decode_contexts: list[int]  # the same on the host, without padding of the batch
    chunks: list[ChunkRows]
    chunk_tables: Tensor  # (num_chunks, blocks) int32
    chunk_starts: Tensor  # (num_chunks + 1,) int32: first row of each chunk, counted from the first chunk's
    chunk_lens: Tensor  # (num_chunks,) int32: context of each


class AttentionBackend(Protocol):
    """Attend from the rows of a step to the paged KV of their sequences, causally."""

    name: str  # as results and profiles have it

    def write(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put k and v, (rows, kv_heads, head_dim), into the pages at `slots`.

        `keys` and `values` are one layer's pages: (num_blocks, block_size, kv_heads, head_dim), contiguous.
        k, v and q are slices of wider tensors: a row's numbers lie together, rows do not.
        """
        ...

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Return softmax(scale * q k) v of every row, shape and type of q: (rows, heads, head_dim).

        Query head h reads KV head h // (heads / kv_heads). With a `window`, a row at position p
        reads positions p - window + 1 .. p only. Padding rows come back as anything finite.
        """
        ...
