"""Token ids for a replay: what a trace names by block hashes becomes a prompt that the model can read.

A trace keeps no text, only which blocks prompts share. Each block hash stands for one fixed run of tokens, so
the prefix hits of the run are hits on equal tokens; what a prompt shares with nobody is drawn for it alone.
The ids are uniform over the vocabulary: the model's work is that of real text, its answers mean nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_backend import counter_hash
from simulator.request import Request

SHARED, PRIVATE = 0, 1  # what the first part of a key is, so that no hash can meet a request's index


def prompt_tokens(
    request: Request, block_size: int, vocab_size: int, seed: int, index: int
) -> NDArray[np.int64]:
    """Return the prompt's token ids, (num_prompt,), each in 0 .. vocab_size - 1.

    A block's tokens depend on (its hash, offset, seed) alone, the others on (index, position, seed);
    `index` is the request's row in its workload. The request's hashes must be of blocks of `block_size`.
    """
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be >= 1, got {vocab_size}")
    hashes = np.concatenate(
        [np.arange(lo, hi, dtype=np.uint64) for lo, hi in [(0, 0), *request.block_hashes]]
    )
    num_shared = len(hashes) * block_size
    if num_shared > request.num_prompt:
        raise ValueError(
            f"request {request.id!r}: {len(hashes)} block hashes must fit its prompt of {request.num_prompt} "
            f"tokens, got blocks of {block_size}"
        )
    bits = np.empty(request.num_prompt, np.uint64)
    blocks = counter_hash.draws(counter_hash.fold(SHARED, seed, hashes), block_size)
    bits[:num_shared] = blocks.ravel()
    own = counter_hash.fold(PRIVATE, seed, index)
    bits[num_shared:] = counter_hash.draws(own, request.num_prompt)[0, num_shared:]
    return (bits % np.uint64(vocab_size)).astype(np.int64)
