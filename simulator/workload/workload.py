"""A workload as columns: who asks what, and when.

Columns rather than objects, so that a million requests cost some tens of bytes each; `requests` makes the
`Request` objects one at a time. Every change returns a new workload that shares the columns it left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError
from simulator.request import Request
from simulator.workload.info import Info, workload_info
from simulator.workload.trace_blocks import BlockRanges, TraceBlocks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEFAULT_MAX_TOKENS = 2048
"""What a client asks for when neither the scenario nor the trace says so."""


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, one row each. Times in seconds, lengths in tokens.

    `max_tokens` is 0 where the trace does not give it. `timeout` (seconds from the arrival) is NaN where
    there is none. `blocks` are the prefix ids of the trace; they become hashes of blocks of `block_size`
    tokens once that is known (`with_blocks`). `skipped` counts the rows left out, by reason.
    """

    arrival: Floats
    num_prompt: Ints
    num_output: Ints
    max_tokens: Ints = field(default_factory=_no_ints)
    priority: Ints = field(default_factory=_no_ints)
    timeout: Floats | None = None
    ids: list[str] | None = None
    tenants: list[str] | None = None
    blocks: TraceBlocks | None = None
    block_size: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_tokens", "priority"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self), np.int64))
        columns = (self.num_prompt, self.num_output, self.max_tokens, self.priority)
        others = (self.timeout, self.ids, self.tenants, self.blocks)
        if any(len(c) != len(self) for c in (*columns, *(c for c in others if c is not None))):
            raise ValueError(f"every column must have {len(self)} rows, as arrival has")
        if len(self) and not (self.arrival[0] >= 0 and np.isfinite(self.arrival[-1])):
            raise ValueError("arrival must be >= 0 and finite")
        if not (np.diff(self.arrival) >= 0).all():
            raise ValueError("arrival must be sorted")
        if (self.num_prompt < 1).any() or (self.num_output < 1).any():
            raise ValueError("num_prompt and num_output must be >= 1")

    def __len__(self) -> int:
        return len(self.arrival)

    @cached_property
    def requests(self) -> Requests:
        """The rows as `Request` objects, made when asked for."""
        return Requests(self)

    def info(self) -> Info:
        """Describe the workload in numbers; see `simulator.workload.info`."""
        return workload_info(self)

    def window(
        self, start_s: float = 0.0, duration_s: float | None = None, limit: int | None = None
    ) -> Workload:
        """Keep the arrivals in [start_s, start_s + duration_s), at most `limit`; time 0 is `start_s` then."""
        end = np.inf if duration_s is None else start_s + duration_s
        lo, hi = np.searchsorted(self.arrival, [start_s, end]).tolist()
        hi = hi if limit is None else min(hi, lo + limit)
        if hi <= lo:
            raise ConfigError(
                f"workload: no request between {start_s:g} s and {end:g} s (limit {limit}); "
                f"the {len(self)} arrivals reach {self.arrival[-1] if len(self) else 0.0:.6g} s"
            )
        rows = slice(lo, hi)
        return replace(
            self,
            arrival=self.arrival[rows] - start_s,
            num_prompt=self.num_prompt[rows],
            num_output=self.num_output[rows],
            max_tokens=self.max_tokens[rows],
            priority=self.priority[rows],
            timeout=None if self.timeout is None else self.timeout[rows],
            ids=None if self.ids is None else self.ids[rows],
            tenants=None if self.tenants is None else self.tenants[rows],
            blocks=None if self.blocks is None else self.blocks.rows(lo, hi),
        )

    def scaled(self, rate_scale: float) -> Workload:
        """Multiply the rate by compressing time: CV stays, bursts get shorter. Timeouts stay as they are."""
        if not 0 < rate_scale < float("inf"):
            raise ConfigError(f"workload.rate_scale: must be > 0 and finite, got {rate_scale}")
        return replace(self, arrival=self.arrival / rate_scale)

    def spread(self, ms: float, rng: np.random.Generator) -> Workload:
        """Delay each arrival by a uniform time below `ms`, for traces whose stamps are that coarse.

        Rows keep their order: within one stamp the true one is unknown, and the file's is causal.
        """
        if not 0 <= ms < float("inf"):
            raise ConfigError(f"workload.spread_ms: must be >= 0 and finite, got {ms}")
        return replace(self, arrival=np.sort(self.arrival + rng.random(len(self)) * (ms / 1000)))

    def with_max_tokens(self, max_tokens: int | None, max_model_len: int) -> Workload:
        """Settle what each client asks for at most: this value, else the trace's, else 2,048.

        Capped at the room that the prompt leaves below `max_model_len`; a prompt that leaves none asks
        for 1, and the server refuses it. The true output length plays no part.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"workload.max_tokens: must be >= 1, got {max_tokens}")
        given = np.where(self.max_tokens > 0, self.max_tokens, DEFAULT_MAX_TOKENS)
        asked = given if max_tokens is None else np.full(len(self), max_tokens, np.int64)
        capped = np.maximum(np.minimum(asked, max_model_len - self.num_prompt), 1)
        return replace(self, max_tokens=capped.astype(np.int64))

    def with_blocks(self, block_size: int) -> Workload:
        """Let the requests carry the hashes of their full blocks of `block_size` tokens."""
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1, got {block_size}")
        return replace(self, block_size=block_size)


class Requests(Sequence[Request]):
    """A view of a workload's rows as `Request` objects."""

    def __init__(self, workload: Workload) -> None:
        self._workload = w = workload
        self._ranges: BlockRanges | None = None
        if w.blocks is not None and w.block_size:
            self._ranges = w.blocks.ranges(w.num_prompt, w.block_size)

    def __len__(self) -> int:
        return len(self._workload)

    @overload
    def __getitem__(self, i: int) -> Request: ...
    @overload
    def __getitem__(self, i: slice) -> list[Request]: ...
    def __getitem__(self, i: int | slice) -> Request | list[Request]:
        if isinstance(i, slice):
            return [self._row(j) for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"request {i} of {len(self)}")
        return self._row(i % len(self))

    def __iter__(self) -> Iterator[Request]:
        return map(self._row, range(len(self)))

    def _row(self, i: int) -> Request:
        w = self._workload
        timeout = None if w.timeout is None else float(w.timeout[i])
        return Request(
            id=str(i) if w.ids is None else w.ids[i],
            arrival=float(w.arrival[i]),
            num_prompt=int(w.num_prompt[i]),
            num_output=int(w.num_output[i]),
            max_tokens=int(w.max_tokens[i]) or DEFAULT_MAX_TOKENS,
            block_hashes=() if self._ranges is None else self._ranges.of(i),
            priority=int(w.priority[i]),
            tenant="" if w.tenants is None else w.tenants[i],
            timeout=None if timeout is None or timeout != timeout else timeout,
        )
