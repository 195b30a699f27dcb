"""What a latency model is asked, and how it answers.

A step is described by a handful of sums (`StepFeatures`), never by its sequences one by one, so its
price does not depend on how many sequences run. `Batch` has the same fields, so a batch is priced as it is.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Features(Protocol):
    """The sums over one step's rows that decide how long it takes. All counts are tokens unless named."""

    @property
    def num_tokens(self) -> int: ...  # rows of the step: decodes, prefill tokens and drafts to verify
    @property
    def num_seqs(self) -> int: ...  # sequences in the step
    @property
    def num_sampled(self) -> int: ...  # rows of the head: sequences that sample a token, and drafts
    @property
    def num_decodes(self) -> int: ...
    @property
    def decode_kv(self) -> int: ...  # sum over decodes of the context they read, the new token included
    @property
    def decode_kv_max(self) -> int: ...
    @property
    def prefill_tokens(self) -> int: ...  # sum of chunk lengths s
    @property
    def prefill_work(self) -> float: ...  # sum of s * (kv + s / 2), kv = tokens computed before the chunk
    @property
    def prefill_kv_max(self) -> int: ...  # longest kv + s


class StepFeatures(NamedTuple):
    """A step in numbers, for tests, tables and plots; the engine passes its `Batch` instead."""

    num_tokens: int = 0
    num_seqs: int = 0
    num_sampled: int = 0
    num_decodes: int = 0
    decode_kv: int = 0
    decode_kv_max: int = 0
    prefill_tokens: int = 0
    prefill_work: float = 0.0
    prefill_kv_max: int = 0

    @classmethod
    def decode(cls, kv_lens: list[int]) -> StepFeatures:
        """Describe a step that decodes one token for each context length given."""
        n = len(kv_lens)
        return cls(n, n, n, n, sum(kv_lens), max(kv_lens, default=0))

    @classmethod
    def prefill(cls, chunks: list[tuple[int, int]], sampled: bool = True) -> StepFeatures:
        """Describe a step that prefills chunks given as (length s, tokens computed before it)."""
        tokens = sum(s for s, _ in chunks)
        work = sum(s * (kv + s / 2) for s, kv in chunks)
        longest = max((kv + s for s, kv in chunks), default=0)
        n = len(chunks)
        return cls(tokens, n, n if sampled else 0, 0, 0, 0, tokens, work, longest)


class LatencyModel(Protocol):
    """Predict how long one forward pass takes. Implementations are immutable and deterministic."""

    @property
    def name(self) -> str: ...
    @property
    def provenance(self) -> str: ...  # one line: where the numbers come from
    @property
    def error(self) -> float | None: ...  # held-out error of a whole step as a fraction, None if unknown

    def step_time(self, step: Features) -> float:
        """Predict one step, in seconds, host time included, always > 0 and finite."""
        ...

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k pure decode steps that follow each other, shape (k,), seconds.

        Step i reads `decode_kv + i * num_decodes` tokens. Every entry is bitwise the `step_time` of
        that step, so that skipping steps cannot move an arrival across a step boundary.
        """
        ...

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Say which steps lie outside the measured range. `steps` holds one array per feature."""
        ...

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> LatencyModel:
        """Return the model of a GPU with this many times the FLOP/s and memory bandwidth."""
        ...

    def overlapped(self) -> LatencyModel:
        """Return the model in which the host works beside the GPU: a step takes the longer of the two."""
        ...
