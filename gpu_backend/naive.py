"""The baseline that articles start from: one request at a time, with or without a KV cache.

What `model.generate` does for one prompt, on pages that lie in order. Served like this, a request waits for
all before it, and every step reads the weights for one token. Under an `Engine` the same is `max_num_seqs: 1`
and, to compute every token again in every step, `kv_cache=False`.
"""

from __future__ import annotations

import numpy as np
import torch

from gpu_backend.attention.base import AttentionInputs, ChunkRows
from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.model import Decoder
from gpu_backend.token_book import TokenIds

BLOCK_SIZE = 16


@torch.inference_mode()
def generate(decoder: Decoder, prompt: TokenIds, num_tokens: int, *, kv_cache: bool = True) -> list[int]:
    """Decode greedily; without a KV cache every step computes the whole sequence again."""
    longest = len(prompt) + num_tokens
    ids = np.zeros(longest, dtype=np.int64)
    ids[: len(prompt)] = prompt
    config = decoder.config
    num_blocks = -(-longest // BLOCK_SIZE)
    sizes = (config.num_layers, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    kv, attention = KvTensors(*sizes, dtype=decoder.dtype, device=decoder.device), SdpaGather()
    computed = 0
    for end in range(len(prompt), longest):
        start = computed if kv_cache else 0
        where = torch.arange(start, end, device=decoder.device)
        tokens = torch.from_numpy(ids[start:end]).to(decoder.device)
        inputs = _one_chunk(start, end, num_blocks, decoder.device)
        hidden = decoder.forward(tokens, where, kv, inputs, attention)
        ids[end] = int(decoder.head(hidden[-1:]).argmax())
        computed = end
    return [int(token) for token in ids[len(prompt) :]]


def _one_chunk(start: int, end: int, num_blocks: int, device: torch.device) -> AttentionInputs:
    """Describe positions start..end-1 of the only sequence, whose pages are 0, 1, 2, ..."""
    nothing = torch.zeros(0, dtype=torch.int32, device=device)
    return AttentionInputs(
        slots=torch.arange(start, end, device=device),
        num_decodes=0,
        decode_tables=nothing.view(0, 1),
        decode_lens=nothing,
        decode_contexts=[],
        chunks=[ChunkRows(0, end - start, end)],
        chunk_tables=torch.arange(num_blocks, dtype=torch.int32, device=device)[None],
        chunk_starts=torch.tensor([0, end - start], dtype=torch.int32, device=device),
        chunk_lens=torch.tensor([end], dtype=torch.int32, device=device),
    )
