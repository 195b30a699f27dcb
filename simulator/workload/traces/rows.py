"""Rows of a trace on their way into a workload: each is checked, and counted if it cannot be a request."""

from __future__ import annotations

import re
from array import array
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simulator.errors import InputError
from simulator.workload.lengths import MAX_TOKENS
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.traces.clock import Clock, Unreadable
from simulator.workload.workload import Workload

MAX_SPAN = 10 * 365 * 86_400  # s; stamps further apart come from two clocks or have another unit
_WHOLE = re.compile(r"[+-]?\d{1,18}(?:\.0*)?", re.ASCII)


class Row(NamedTuple):
    """One row as the file has it; None or "" where it has nothing."""

    arrival: object
    prompt: object
    output: object
    max_tokens: object = None
    priority: object = None
    tenant: object = None
    id: object = None
    timeout_s: object = None
    hash_ids: object = None


class Rows:
    """Collects rows as columns of machine numbers. `hash_block` is the trace's block size in tokens."""

    def __init__(self, clock: Clock, hash_block: int = 512) -> None:
        self.clock = clock
        self.hash_block = hash_block
        self._skipped: dict[str, tuple[int, int]] = {}  # reason -> count, first line
        self._ns, self._prompt, self._output = array("q"), array("q"), array("q")
        self._max_tokens, self._priority, self._timeout = array("q"), array("q"), array("d")
        self._ids: list[str] = []
        self._tenants: list[str] = []
        self._hashes, self._num_hashes = array("q"), array("q")

    def add(self, line: int, row: Row) -> None:
        """Append a row, or count it as skipped."""
        try:
            self._append(line, row)
        except Unreadable as reason:
            self.skip(line, str(reason))

    def skip(self, line: int, reason: str) -> None:
        count, first = self._skipped.get(reason, (0, line))
        self._skipped[reason] = (count + 1, first)

    def _append(self, line: int, row: Row) -> None:
        prompt, output = _length("prompt", row.prompt), _length("output", row.output)
        if prompt + output > MAX_TOKENS:
            raise Unreadable(f"prompt + output > {MAX_TOKENS:,} tokens")
        hashes = _hashes(row.hash_ids, prompt, self.hash_block)
        max_tokens = 0 if row.max_tokens in (None, "") else _length("max_tokens", row.max_tokens)
        priority = 0 if row.priority in (None, "") else _whole("priority", row.priority)
        timeout = _timeout(row.timeout_s)
        self._ns.append(self.clock.read(row.arrival, line))
        self._prompt.append(prompt)
        self._output.append(output)
        self._max_tokens.append(min(max_tokens, MAX_TOKENS))
        self._priority.append(priority)
        self._timeout.append(timeout)
        self._tenants.append("" if row.tenant is None else str(row.tenant))
        self._ids.append("" if row.id is None else str(row.id))
        self._hashes.extend(hashes)
        self._num_hashes.append(len(hashes))

    def workload(self) -> Workload:
        """Sort by time (equal times keep the file's order) and count time from the first arrival."""
        source = self.clock.source
        total = len(self._ns) + sum(count for count, _ in self._skipped.values())
        reasons = [
            f"skipped {count:,} of {total:,} rows: {reason} (first at line {first})"
            for reason, (count, first) in self._skipped.items()
        ]
        if not self._ns:
            raise InputError(
                f"{source}: no row can be a request: {'; '.join(reasons) or 'the file has none'}"
            )
        ns = np.array(self._ns, np.int64)
        order = np.argsort(ns, kind="stable")
        ns = ns[order] - ns.min()
        if ns[-1] < 0 or ns[-1] / 1e9 > MAX_SPAN:
            raise InputError(
                f"{source}: arrivals span over ten years: two clocks in one file, or a wrong time unit"
            )
        rows = order.tolist()
        ids, tenants, notes = [self._ids[i] for i in rows], [self._tenants[i] for i in rows], reasons
        if any(ids) and len(set(ids)) < len(ids):
            notes.append("ids are not unique; rows are numbered instead")
        timeout = np.array(self._timeout)[order]
        offsets = np.concatenate([[0], np.cumsum(np.array(self._num_hashes, np.int64))])
        blocks = TraceBlocks(np.array(self._hashes, np.int64), offsets, self.hash_block).reordered(order)
        return Workload(
            arrival=ns / 1e9,
            num_prompt=np.array(self._prompt, np.int64)[order],
            num_output=np.array(self._output, np.int64)[order],
            max_tokens=np.array(self._max_tokens, np.int64)[order],
            priority=np.array(self._priority, np.int64)[order],
            timeout=None if np.isnan(timeout).all() else timeout,
            ids=ids if len(set(ids)) == len(ids) and any(ids) else None,
            tenants=tenants if any(tenants) else None,
            blocks=blocks if len(blocks.ids) else None,
            skipped={reason: count for reason, (count, _) in self._skipped.items()},
            source=Path(source).name,
            notes=tuple(notes),
        )


def _whole(name: str, value: object) -> int:
    """Read a whole number such as 12, "12" or "12.0"; no exponents, no signs of doubt."""
    if value is None or value == "":
        raise Unreadable(f"{name} is missing")
    if isinstance(value, Decimal):
        value = str(value)
    if isinstance(value, str):
        value = value.strip()
        if not _WHOLE.fullmatch(value):
            raise Unreadable(f"{name} is not a whole number")
        return int(value.partition(".")[0])
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unreadable(f"{name} is not a whole number")
    if abs(value) >= 1 << 62:
        raise Unreadable(f"{name} is out of range")
    return value


def _length(name: str, value: object) -> int:
    number = _whole(name, value)
    if number < 1:
        raise Unreadable(f"{name} < 1")
    return number


def _timeout(value: object) -> float:
    if value is None or value == "":
        return float("nan")
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise Unreadable("timeout_s is not a time > 0")
    return seconds


def _hashes(value: object, prompt: int, block: int) -> array[int]:
    """Check prefix ids: one per started block of the prompt, or none at all."""
    if value is None or value == []:
        return array("q")
    if not isinstance(value, list):
        raise Unreadable("hash_ids is not a list")
    if len(value) != -(-prompt // block):
        raise Unreadable(f"hash_ids are not one per {block} prompt tokens")
    try:
        return array("q", value)
    except (TypeError, OverflowError):
        raise Unreadable("hash_ids are not whole numbers below 2^63") from None
