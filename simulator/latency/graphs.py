"""CUDA graphs: a step of few tokens runs as the next larger size that was captured.

Sizes are those of vLLM V1 (`config/vllm.py`), which replays a full graph for decodes and piecewise graphs for
mixed steps. Left out: the choice between the two, and the memory that graphs take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def graph_sizes(largest: int = 512) -> list[int]:
    """Return the batch sizes for which vLLM captures CUDA graphs: 1, 2, 4, by 8 to 248, by 16 from 256."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in sizes if size <= largest]


def padded(tokens: ArrayLike, sizes: list[int]) -> NDArray[np.int64]:
    """Return the tokens that a step computes: the next graph size, or the true number above the largest.

    >>> padded([3, 9, 16, 17, 33], [1, 2, 4, 8, 16, 24, 32]).tolist()
    [4, 16, 16, 24, 33]
    """
    true = np.asarray(tokens, dtype=np.int64)
    ladder = np.array([*sizes, np.iinfo(np.int64).max])
    size = ladder[np.searchsorted(ladder, true)]
    return np.where(size == ladder[-1], true, size)
