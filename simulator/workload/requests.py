"""A workload's rows as `Request` objects, made when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from simulator.errors import ConfigError
from simulator.request import Request
from simulator.workload.trace_blocks import BlockRanges

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

DEFAULT_MAX_TOKENS = 2048
"""What a client asks for when neither the scenario nor the trace says so."""


class Requests(Sequence[Request]):
    """A view of a workload's rows as `Request` objects; ConfigError if it cannot be replayed yet."""

    def __init__(self, workload: Workload) -> None:
        self._workload = w = workload
        if w.needs_starts:
            raise ConfigError(f"workload: {w.source} {w.needs_starts}")
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
