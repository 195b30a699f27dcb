"""Conversations: Qwen-Bailian's chats, LLMServingSim's agents, ShareGPT's turns.

Qwen-Bailian: one request a line, seconds, one prefix id per 16 tokens, the chat it continues by number.
LLMServingSim: one session a line, nanoseconds, sub-requests with the tool's time after each.
ShareGPT: tokens of each turn, without times; the prompt of an answer is everything said before it.
"""

from __future__ import annotations

from pathlib import Path

from simulator.workload.traces.clock import Clock, Unreadable
from simulator.workload.traces.csv_rows import LLMSERVINGSIM, Columns, iter_csv
from simulator.workload.traces.fields import read_whole
from simulator.workload.traces.hash_blocks import HashIds
from simulator.workload.traces.json_rows import MOONCAKE, iter_objects
from simulator.workload.traces.rows import Row, Rows

BAILIAN_BLOCK = 16  # tokens per id, README of alibaba-edu/qwen-bailian-usagetraces-anon
SHAREGPT: Columns = {"conversation": "conversation", "turn": "turn", "role": "role", "tokens": "tokens"}
ANSWERS = ("gpt", "chatgpt", "bing", "bard", "assistant")  # roles whose turns a model wrote
SHAREGPT_BLOCK = 16  # tokens; what turns of a conversation share is known to the token


def read_bailian(path: Path, unit: str | None = None, hash_block: int | None = None) -> Rows:
    """Read chats; a turn whose parent is in the file waits for it."""
    rows = Rows(Clock(str(path), unit or "s"), HashIds(hash_block or BAILIAN_BLOCK, last="either"))
    known: dict[str, tuple[int, str]] = {}  # chat -> its row, its session
    orphans = 0
    for line, value in iter_objects(path, rows):
        chat, parent = str(value.get("chat_id")), str(value.get("parent_chat_id"))
        is_root = parent in ("-1", "None")
        before = None if is_root else known.get(parent)
        session = chat if before is None else before[1]
        columns = {field: value.get(MOONCAKE[field]) for field in ("arrival", "prompt", "output", "hash_ids")}
        row = rows.add(line, Row(**columns, id=chat, session=session))
        if row is not None:
            orphans += before is None and not is_root
            rows.follow(row, [] if before is None else [before[0]])
            known[chat] = row, session
    if orphans:
        rows.notes.append(f"{orphans:,} turns whose parent is not among the requests start on their own")
    return rows


def read_llmservingsim_agents(path: Path) -> Rows:
    """Read sessions of sub-requests; a tool's time is the think time after its sub-request."""
    rows = Rows(Clock(str(path), "ns"))
    for line, value in iter_objects(path, rows):
        turns = value.get("sub_requests")
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            rows.skip(line, "sub_requests is not a list of JSON objects")
            continue
        try:
            now, think = read_whole("arrival", value.get("arrival_time_ns")), 0
            before: list[int] = []
            for turn in turns:
                lengths = {f: turn.get(LLMSERVINGSIM[f]) for f in ("prompt", "output")}
                name = str(value.get("session_id") or line)
                row = rows.add(line, Row(arrival=now, session=name, think_s=think / 1e9, **lengths))
                if row is not None:
                    rows.follow(row, before)
                    before, think = [row], 0
                tool = read_whole("tool_duration_ns", turn.get("tool_duration_ns") or 0)
                now, think = now + max(tool, 0), think + max(tool, 0)
        except Unreadable as reason:
            rows.skip(line, str(reason))
    return rows


def read_sharegpt(path: Path) -> Rows:
    """Read turns into one request per answer. The file has no times, so its sessions need starts."""
    rows = Rows(Clock(str(path), "s"), HashIds(SHAREGPT_BLOCK, last="full"))
    rows.needs_starts = "has no times: its conversations need an arrival process (workload.arrivals)"
    conversation, context = "", 0
    for line, values in iter_csv(path, SHAREGPT, rows):
        if values["conversation"] != conversation:
            conversation, context = values["conversation"], 0
            rows.hashes.new_scope()
        try:
            tokens = read_whole("tokens", values["tokens"])
        except Unreadable as reason:
            rows.skip(line, str(reason))
            continue
        if values["role"] in ANSWERS:
            shared = range(context // SHAREGPT_BLOCK)
            rows.add(line, Row(0, context, tokens, session=conversation, think_s=0, hash_ids=shared))
        context += max(tokens, 0)
    rows.notes.append("users answer at once: the file has no think times")
    return rows
