"""The token ids of every live sequence, which the scheduler does not know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.request import Sequence

TokenIds = NDArray[np.int64]


class TokenBook:
    """Prompt and answer of each sequence, by position, with room for `num_draft` tokens more."""

    def __init__(self, num_draft: int = 0) -> None:
        self._num_draft = num_draft
        self._ids: dict[Sequence, TokenIds] = {}

    def open(self, seq: Sequence, prompt: TokenIds, longest: int) -> None:
        """Begin with a prompt; prompt and answer will have at most `longest` tokens."""
        ids = np.zeros(max(longest, len(prompt)) + 1 + self._num_draft, dtype=np.int64)
        ids[: len(prompt)] = prompt
        self._ids[seq] = ids

    def close(self, seq: Sequence) -> None:
        del self._ids[seq]

    def __getitem__(self, seq: Sequence) -> TokenIds:
        """Return all ids of a sequence; those beyond its last token mean nothing."""
        return self._ids[seq]

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._ids
