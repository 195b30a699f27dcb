"""Conversations: Qwen-Bailian, LLMServingSim's agents, ShareGPT, BurstGPT 3, sessions by a column."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.workload import Workload, read_trace


def read(tmp_path: Path, text: str, **options: object) -> Workload:
    path = tmp_path / "t"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, **options)  # type: ignore[arg-type]


def chat(id: int, parent: int, t: float, prompt: int, ids: list[int]) -> str:
    keys = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "turn", "hash_ids")
    return json.dumps(dict(zip(keys, (id, parent, t, prompt, 5, 1, ids), strict=True))) + "\n"


def follows(w: Workload) -> list[list[int]]:
    assert w.follows is not None
    return w.follows.tolist()  # type: ignore[no-any-return]


def think(w: Workload) -> list[float]:
    assert w.think is not None
    return w.think.tolist()  # type: ignore[no-any-return]


def test_a_chat_follows_its_parent_if_the_file_has_it(tmp_path: Path) -> None:
    w = read(
        tmp_path,
        chat(7, -1, 10.0, 40, [1, 2, 3])
        + chat(9, 3, 11.5, 32, [8, 9])
        + chat(8, 7, 30.25, 60, [1, 2, 4])
        + chat(10, 7, 31.0, 20, [1]),
    )
    assert w.arrival.tolist() == [0.0, 1.5, 20.25, 21.0]
    assert follows(w) == [[0, 2], [0, 3]]
    assert think(w) == [0.0, 0.0, 20.25, 21.0]
    assert w.session == ["7", "9", "7", "7"]
    assert w.blocks is not None
    assert w.blocks.block_size == 16
    assert w.blocks.hit_blocks().tolist() == [0, 0, 2, 1]
    assert "1 turns whose parent is not among the requests start on their own" in w.notes
    assert "2 of 2 think times include the server's time, which the file lacks" in w.notes


def test_a_parent_that_arrives_later_is_not_waited_for(tmp_path: Path) -> None:
    w = read(tmp_path, chat(7, -1, 10.0, 20, [1]) + chat(8, 7, 5.0, 20, [1]))
    assert follows(w) == []
    assert "1 requests do not wait for a predecessor that arrives after them" in w.notes


def test_sub_requests_follow_the_tools_between(tmp_path: Path) -> None:
    turns = [{"input_toks": n, "output_toks": 5, "tool_duration_ns": n * 10**7} for n in (100, 0, 300)]
    row = {"session_id": "a", "arrival_time_ns": 5, "sub_requests": turns}
    w = read(tmp_path, (json.dumps(row) + "\n") + json.dumps({**row, "sub_requests": [5]}))
    assert w.num_prompt.tolist() == [100, 300]
    assert follows(w) == [[0, 1]]
    assert think(w) == [0.0, 1.0]
    assert w.skipped == {"prompt < 1": 1, "sub_requests is not a list of JSON objects": 1}


def test_a_conversation_without_times_needs_starts_and_shares_its_past(tmp_path: Path) -> None:
    turns = [("human", 40), ("gpt", 10), ("human", 6), ("gpt", 20), ("human", 9)]
    other = [("gpt", 5), ("system", 30), ("human", 4), ("bard", 3)]
    rows = [f"{c},{i},{r},{n}\n" for c, part in enumerate((turns, other)) for i, (r, n) in enumerate(part)]
    w = read(tmp_path, "conversation,turn,role,tokens\n" + "".join(rows))
    assert (w.num_prompt.tolist(), w.num_output.tolist()) == ([40, 56, 39], [10, 20, 3])
    assert follows(w) == [[0, 1]]
    assert think(w) == [0.0, 0.0, 0.0]
    assert w.skipped == {"prompt < 1": 1}  # the piece that begins with an answer
    assert w.blocks is not None
    assert w.blocks.hit_blocks().tolist() == [0, 2, 0]
    assert w.info()["sessions"] is not None
    with pytest.raises(ConfigError, match=r"t has no times: its conversations need an arrival process"):
        w.requests  # noqa: B018
    started = w.with_session_starts(np.array([1.0, 3.0]))
    assert [r.arrival for r in started.requests] == [1.0, 1.0, 3.0]


def test_burstgpt_3_continues_a_session_after_its_elapsed_time(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = "100.0,s1,43,m,9,4,13,C\n120.0,,5,m,8,4,12,A\n130.0,,5,m,7,4,11,A\n163.0,s1,2,m,20,4,24,C\n"
    w = read(tmp_path, head + rows)
    assert follows(w) == [[0, 3]]
    assert think(w) == [0.0, 0.0, 0.0, 20.0]
    assert w.num_sessions == 3


def test_burstgpt_1_counts_failures_and_says_that_its_stamps_are_coarse(tmp_path: Path) -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    w = read(tmp_path, head + "5,m,9,4,13,C\n5,m,0,0,0,C\n5,m,7,4,11,C\n6,m,7,0,7,C\n")
    assert w.skipped == {"prompt < 1": 1, "output < 1": 1}
    assert "time stamps are whole seconds; workload.spread_ms: 1000 spreads them" in w.notes


def test_a_column_may_name_the_session(tmp_path: Path) -> None:
    columns = {"arrival": "t", "prompt": "p", "output": "o", "session": "who", "think_s": "z"}
    text = "t,p,o,who,z\n0,5,5,a,\n1,5,5,b,\n4,5,5,a,2.5\n9,5,5,a,\n"
    w = read(tmp_path, text, columns=columns, time_unit="s")
    assert follows(w) == [[0, 2], [2, 3]]
    assert think(w) == [0.0, 0.0, 2.5, 5.0]
