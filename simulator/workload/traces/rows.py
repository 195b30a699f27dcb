"""Rows of a trace on their way into a workload: each is checked, and counted if it cannot be a request."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.workload.lengths import MAX_TOKENS
from simulator.workload.replay import kept_pairs
from simulator.workload.traces.clock import Clock, Unreadable
from simulator.workload.traces.fields import read_length, read_seconds, read_whole
from simulator.workload.traces.hash_blocks import MOONCAKE_BLOCK, HashIds
from simulator.workload.traces.links import Links, chains, link
from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_SPAN = 10 * 365 * 86_400  # s; stamps further apart come from two clocks or have another unit
SECOND = 1_000_000_000  # ns


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
    session: object = None
    think_s: object = None  # between the answer before and this row
    api_s: object = None  # how long the recorded server took
    hash_ids: object = None


class Rows:
    """Collects rows as columns of machine numbers.

    Rows with a session follow each other in time, unless `follow` says who follows whom.
    """

    def __init__(self, clock: Clock, hashes: HashIds | None = None) -> None:
        self.clock = clock
        self.hashes = hashes or HashIds(MOONCAKE_BLOCK)
        self.notes: list[str] = []
        self.needs_starts = ""
        self._skipped: dict[str, tuple[int, int]] = {}  # reason -> count, first line
        self._line, self._ns, self._prompt, self._output = (array("q") for _ in range(4))
        self._max_tokens, self._priority = array("q"), array("q")
        self._timeout, self._think, self._api = array("d"), array("d"), array("d")
        self._ids: list[str] = []
        self._tenants: list[str] = []
        self._sessions: list[str] = []
        self._pairs: array[int] | None = None

    def add(self, line: int, row: Row) -> int | None:
        """Append a row and return its number, or count it as skipped."""
        try:
            self._append(line, row)
        except Unreadable as reason:
            self.skip(line, str(reason))
            return None
        return len(self._ns) - 1

    def skip(self, line: int, reason: str) -> None:
        count, first = self._skipped.get(reason, (0, line))
        self._skipped[reason] = (count + 1, first)

    @property
    def num_skipped(self) -> int:
        return sum(count for count, _ in self._skipped.values())

    def follow(self, row: int, predecessors: list[int]) -> None:
        """Let a row wait for these, by their numbers; from the first call on, sessions say nothing."""
        self._pairs = array("q") if self._pairs is None else self._pairs
        for before in predecessors:
            self._pairs.extend((before, row))

    def _append(self, line: int, row: Row) -> None:
        prompt, output = read_length("prompt", row.prompt), read_length("output", row.output)
        if prompt + output > MAX_TOKENS:
            raise Unreadable(f"prompt + output > {MAX_TOKENS:,} tokens")
        ids = self.hashes.read(row.hash_ids, prompt)
        max_tokens = 0 if row.max_tokens in (None, "") else read_length("max_tokens", row.max_tokens)
        priority = 0 if row.priority in (None, "") else read_whole("priority", row.priority)
        timeout = read_seconds("timeout_s", row.timeout_s, above_zero=True)
        think, api = read_seconds("think_s", row.think_s), read_seconds("api_s", row.api_s)
        self._ns.append(self.clock.read(row.arrival, line))
        self._line.append(line)
        self._prompt.append(prompt)
        self._output.append(output)
        self._max_tokens.append(min(max_tokens, MAX_TOKENS))
        self._priority.append(priority)
        self._timeout.append(timeout)
        self._think.append(think)
        self._api.append(api)
        self._tenants.append("" if row.tenant is None else str(row.tenant))
        self._ids.append("" if row.id is None else str(row.id))
        self._sessions.append("" if row.session is None else str(row.session))
        self.hashes.add(ids)

    def workload(self) -> Workload:
        """Sort by time (equal times keep the file's order) and count time from the first arrival."""
        total = len(self._ns) + self.num_skipped
        kept = self._settle_blocks()
        if not len(kept):
            reasons = "; ".join(self.reasons(total)) or "the file has none"
            raise InputError(f"{self.clock.source}: no row can be a request: {reasons}")
        ns = np.array(self._ns, np.int64)[kept]
        order = np.argsort(ns, kind="stable")
        ns, rows = ns[order] - ns.min(), kept[order]
        if ns[-1] < 0 or ns[-1] / SECOND > MAX_SPAN:
            raise InputError(
                f"{self.clock.source}: arrivals span over ten years: two clocks in one file, "
                "or a wrong time unit"
            )
        links = self._linked(ns / SECOND, rows)
        ids, tenants = self._texts(self._ids, rows), self._texts(self._tenants, rows)
        unique = len(set(ids)) == len(ids)
        if any(ids) and not unique:
            self.notes.append("ids are not unique; rows are numbered instead")
        if not (ns % SECOND).any() and (np.diff(ns) == 0).any() and links is None:
            self.notes.append("time stamps are whole seconds; workload.spread_ms: 1000 spreads them")
        timeout, blocks = np.array(self._timeout)[rows], self.hashes.blocks().take(rows)
        return Workload(
            arrival=ns / SECOND,
            num_prompt=np.array(self._prompt, np.int64)[rows],
            num_output=np.array(self._output, np.int64)[rows],
            max_tokens=np.array(self._max_tokens, np.int64)[rows],
            priority=np.array(self._priority, np.int64)[rows],
            timeout=None if np.isnan(timeout).all() else timeout,
            ids=ids if unique and any(ids) else None,
            tenants=tenants if any(tenants) else None,
            blocks=blocks if len(blocks.lo) else None,
            skipped={reason: count for reason, (count, _) in self._skipped.items()},
            source=Path(self.clock.source).name,
            notes=(*self.reasons(total), *self.notes),
            follows=None if links is None else links.follows,
            think=None if links is None else links.think,
            api_time=None if links is None else links.api_time,
            session=None if links is None else links.session,
            needs_starts=self.needs_starts,
        )

    def _settle_blocks(self) -> Ints:
        """Return the rows whose prefix ids agree with the file's block size; count the others."""
        given = self.hashes.block
        agree = self.hashes.settle(np.array(self._prompt, np.int64), self.clock.source)
        for line in np.array(self._line, np.int64)[~agree].tolist():
            self.skip(line, f"hash_ids are not one per {self.hashes.block} prompt tokens")
        if given is None and self.hashes.block != MOONCAKE_BLOCK:
            self.notes.append(
                f"prefix ids are one per {self.hashes.block} prompt tokens, as their number shows"
            )
        return np.flatnonzero(agree)

    def _linked(self, arrival: Floats, rows: Ints) -> Links | None:
        """Return who follows whom among the sorted rows; None if the file knows no sessions."""
        session = self._texts(self._sessions, rows)
        if not any(session):
            return None
        if self._pairs is None:
            pairs = chains(session)
        else:
            pairs = kept_pairs(np.array(self._pairs, np.int64), rows, len(self._ns))
        links = link(arrival, session, pairs, np.array(self._think)[rows], np.array(self._api)[rows])
        self.notes += links.notes
        return links

    def reasons(self, total: int) -> list[str]:
        """Say what was skipped of all rows."""
        return [
            f"skipped {count:,} of {total:,} rows: {reason} (first at line {first})"
            for reason, (count, first) in self._skipped.items()
        ]

    @staticmethod
    def _texts(column: list[str], rows: Ints) -> list[str]:
        return [column[i] for i in rows.tolist()]
