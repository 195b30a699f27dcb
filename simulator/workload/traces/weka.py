"""Sessions of coding agents, as kv-cache-tester records them (the Weka form of GuideLLM and AIPerf).

One JSON object is a session: requests of the agent in order, with the think time before each (tools run, the
user types) and the server's time, and between them sub-agents, which have requests of their own. A sub-agent
starts when the request before it is answered; its `t` is when it reported back, `duration_ms` later. The
agent's next request waits for all of them, unless they were launched asynchronously.

Prefix ids are local to a session, one per full block of 64 tokens. Left out: what sessions of one tool have
in common (`tool_tokens` + `system_tokens`), because equal ids in two sessions mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simulator.workload.traces.clock import Clock, Unreadable
from simulator.workload.traces.csv_rows import Columns, iter_csv
from simulator.workload.traces.fields import read_seconds
from simulator.workload.traces.hash_blocks import HashIds
from simulator.workload.traces.json_rows import iter_objects
from simulator.workload.traces.rows import Row, Rows

WEKA_BLOCK = 64  # tokens per id, README of callanjfox/kv-cache-tester
MAX_DEPTH = 20  # sub-agents of sub-agents of ...
NO_STARTS = "when sessions start is not recorded: all begin at 0 unless an arrival process starts them"
OWN_IDS = "prefix ids are local to a session: system prompts that sessions share are not seen as shared"

REQUESTS: Columns = {
    "arrival": "t_s",
    "prompt": "input_tokens",
    "output": "output_tokens",
    "session": "session",
    "agent": "agent",
    "think_s": "think_time_s",
    "api_s": "api_time_s",
}


def read_weka(path: Path, hash_block: int | None = None) -> Rows:
    """Read sessions, one a line or one a file, holding one at a time."""
    rows = Rows(Clock(str(path), "s"), HashIds(hash_block or WEKA_BLOCK, last="full"))
    names: set[str] = set()
    for line, session in iter_objects(path, rows):
        block, entries = session.get("block_size", WEKA_BLOCK), session.get("requests")
        if not names and hash_block is None and isinstance(block, int) and block > 0:
            rows.hashes.block = block
        if hash_block is None and block != rows.hashes.block:
            rows.skip(line, f"session has a block_size other than {rows.hashes.block}")
        elif not isinstance(entries, list):
            rows.skip(line, "requests is not a list")
        else:
            name = str(session.get("id") or line)
            name = f"{name}, line {line}" if name in names else name
            names.add(name)
            rows.hashes.new_scope()
            _Session(rows, line, name).turns(entries, 0.0, [])
    rows.notes += [NO_STARTS, OWN_IDS]
    return rows


class _Session:
    """Walks the tree of a session, adding its requests to `rows`."""

    def __init__(self, rows: Rows, line: int, name: str) -> None:
        self.rows = rows
        self.line = line
        self.name = name

    def turns(self, entries: list[object], start: float, waits: list[int], depth: int = 0) -> list[int]:
        """Add the requests of an agent that starts at `start`, after the rows `waits`.

        Return the rows that its successor waits for. A request that is skipped leaves its successor to
        wait for its predecessors; the think time between is then what the stamps leave.
        """
        joined: list[int] = []  # last requests of sub-agents since the agent's own last
        is_next = False  # the entry before was the agent's own request, so think_time counts from it
        for entry in entries:
            if not isinstance(entry, dict):
                self.rows.skip(self.line, "request is not a JSON object")
            elif entry.get("type") == "subagent":
                joined += self._subagent(entry, start, waits, depth)
                is_next = False
            else:
                row = self._request(entry, start, entry.get("think_time") if is_next else None)
                is_next = row is not None
                if row is not None:
                    self.rows.follow(row, list(dict.fromkeys(waits + joined)))
                    waits, joined = [row], []
        return waits + joined

    def _request(self, entry: Mapping[str, object], start: float, think: object) -> int | None:
        try:
            t = start + read_seconds("t", entry.get("t"))
        except Unreadable as reason:
            self.rows.skip(self.line, str(reason))
            return None
        columns = {"prompt": entry.get("in"), "output": entry.get("out"), "hash_ids": entry.get("hash_ids")}
        return self.rows.add(
            self.line,
            Row(arrival=t, session=self.name, think_s=think, api_s=entry.get("api_time"), **columns),
        )

    def _subagent(self, entry: Mapping[str, object], start: float, waits: list[int], depth: int) -> list[int]:
        """Add a sub-agent's requests; return the rows that the agent must wait for."""
        entries = entry.get("requests")
        try:
            if depth == MAX_DEPTH or not isinstance(entries, list):
                raise Unreadable("sub-agent has no list of requests, or is nested too deep")
            t, duration = entry.get("t"), entry.get("duration_ms")
            begin = max(read_seconds("t", t) - (read_seconds("duration_ms", duration or 0) / 1000), 0.0)
        except Unreadable as reason:
            self.rows.skip(self.line, str(reason))
            return []
        last = self.turns(entries, start + begin, waits, depth + 1)
        return [] if entry.get("status") == "async_launched" else last


def read_agent_requests(path: Path) -> Rows:
    """Read one request a row, as derived from such sessions: without prefix ids, forks and joins."""
    rows = Rows(Clock(str(path), "s"))
    for line, values in iter_csv(path, REQUESTS, rows):
        agent = values.pop("agent")
        values["session"] += "" if agent == "main" else f"/{agent}"
        rows.add(line, Row(**values))
    rows.notes += [
        NO_STARTS,
        "sub-agents are sessions of their own: the file does not say who waits for them",
    ]
    return rows
