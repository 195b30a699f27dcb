"""A workload's rows as `Request` objects, made when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from simulator.errors import ConfigError
from simulator.request import Request
from simulator.workload.trace_blocks import BlockRanges

if TYPE_CHECKING:
    from simulator.workload.workload import Floats, Ints, Workload

DEFAULT_MAX_TOKENS = 2048
"""What a client asks for when neither the scenario nor the trace says so."""
PART = 4096  # rows whose columns are turned into Python numbers at once


class Requests(Sequence[Request]):
    """A view of a workload's rows as `Request` objects; ConfigError if it cannot be replayed yet."""

    def __init__(self, workload: Workload) -> None:
        self.workload = w = workload
        if w.needs_starts:
            raise ConfigError(f"workload: {w.source} {w.needs_starts}")
        self._ranges: BlockRanges | None = None
        if w.blocks is not None and w.block_size:
            self._ranges = w.blocks.ranges(w.num_prompt, w.block_size)

    def __len__(self) -> int:
        return len(self.workload)

    @overload
    def __getitem__(self, i: int) -> Request: ...
    @overload
    def __getitem__(self, i: slice) -> list[Request]: ...
    def __getitem__(self, i: int | slice) -> Request | list[Request]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"request {i} of {len(self)}")
        return next(self._rows(i % len(self), i % len(self) + 1))

    def __iter__(self) -> Iterator[Request]:
        for lo in range(0, len(self), PART):
            yield from self._rows(lo, lo + PART)

    @property
    def ids(self) -> list[str]:
        w = self.workload
        return list(map(str, range(len(w)))) if w.ids is None else w.ids

    @property
    def tenants(self) -> list[str]:
        w = self.workload
        return [""] * len(w) if w.tenants is None else w.tenants

    def _rows(self, lo: int, hi: int) -> Iterator[Request]:
        w = self.workload
        columns = (w.arrival, w.num_prompt, w.num_output, w.max_tokens, w.priority)
        rows = zip(*(column[lo:hi].tolist() for column in columns), strict=True)
        limits, predictions = _part(w.ttft_limit, lo, hi), _part(w.predicted_len, lo, hi)
        for i, (arrival, num_prompt, num_output, max_tokens, priority) in enumerate(rows, lo):
            timeout = None if w.timeout is None else float(w.timeout[i])
            limit = None if limits is None else limits[i - lo]
            yield Request(
                str(i) if w.ids is None else w.ids[i],
                arrival,
                num_prompt,
                num_output,
                max_tokens or DEFAULT_MAX_TOKENS,
                () if self._ranges is None else self._ranges.of(i),
                priority,
                "" if w.tenants is None else w.tenants[i],
                None if timeout is None or timeout != timeout else timeout,
                None if limit is None or limit != limit else limit,
                None if predictions is None else predictions[i - lo],
                "" if w.session is None else w.session[i],
            )


def sent_columns(requests: Iterable[Request]) -> tuple[list[str], Ints, Ints, list[str]]:
    """Return ids, prompt lengths, priorities and tenants; a workload has them as columns."""
    if isinstance(requests, Requests):
        return requests.ids, requests.workload.num_prompt, requests.workload.priority, requests.tenants
    every = list(requests)
    num_prompt, priority = [r.num_prompt for r in every], [r.priority for r in every]
    return (
        [r.id for r in every],
        np.array(num_prompt, dtype=np.int64),
        np.array(priority, dtype=np.int64),
        [r.tenant for r in every],
    )


def _part(column: Floats | None, lo: int, hi: int) -> list[float] | None:
    return None if column is None else column[lo:hi].tolist()
