"""Sessions of agents as kv-cache-tester records them: turns, sub-agents, prefix ids of a session's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.workload import Workload, read_trace

Entry = dict[str, object]


def turn(at: object, prompt: int, first_id: int = 0, **changes: object) -> Entry:
    ids = list(range(first_id, first_id + prompt // 64))
    return {"t": at, "type": "n", "in": prompt, "out": 10, "hash_ids": ids, "api_time": 2.0} | changes


def read(tmp_path: Path, *sessions: object, indent: int | None = None) -> Workload:
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(s, indent=indent) + "\n" for s in sessions), encoding="utf-8")
    return read_trace(path, format="weka")


def one(*requests: object, **changes: object) -> Entry:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests)} | changes


def story(w: Workload) -> list[tuple[int, list[int], float]]:
    """Prompt of each request, prompts of those it waits for, and its think time; prompts tell rows apart."""
    assert w.follows is not None
    assert w.think is not None
    prompts = w.num_prompt.tolist()
    waits = {p: [prompts[a] for a, b in w.follows.tolist() if prompts[b] == p] for p in prompts}
    return [(p, waits[p], think) for p, think in zip(prompts, w.think.round(6).tolist(), strict=True)]


def test_turns_follow_each_other_after_their_think_time(tmp_path: Path) -> None:
    w = read(tmp_path, one(turn(0, 100), turn(9, 200, think_time=6.5), turn(20, 300, think_time=8.0)))
    assert story(w) == [(100, [], 0.0), (200, [100], 6.5), (300, [200], 8.0)]
    assert w.arrival.tolist() == [0.0, 9.0, 20.0]
    assert w.api_time is not None
    assert w.api_time.tolist() == [2.0] * 3


def test_sub_agents_fork_and_join(tmp_path: Path) -> None:
    """A sub-agent's t is when it reported back; its requests count their time from its start."""
    child = {"type": "subagent", "t": 40.0, "duration_ms": 36_000, "status": "completed"}
    w = read(
        tmp_path,
        one(
            turn(0, 100),
            child | {"requests": [turn(0, 70, think_time=0.0), turn(30, 80, think_time=28.0)]},
            child | {"t": 20.0, "duration_ms": 17_000, "requests": [turn(0, 90, think_time=0.0)]},
            turn(45, 200, think_time=43.0),
            turn(60, 300, think_time=13.0),
        ),
    )
    assert w.arrival.tolist() == [0.0, 3.0, 4.0, 34.0, 45.0, 60.0]
    assert story(w) == [
        (100, [], 0.0),
        (90, [100], 1.0),
        (70, [100], 2.0),
        (80, [70], 28.0),
        (200, [100, 80, 90], 9.0),  # since the last one's answer at 36 s
        (300, [200], 13.0),
    ]


def test_nobody_waits_for_an_agent_launched_asynchronously(tmp_path: Path) -> None:
    child = {"type": "subagent", "t": 5.0, "duration_ms": None, "status": "async_launched"}
    w = read(tmp_path, one(turn(0, 100), child | {"requests": [turn(0, 70)]}, turn(9, 200)))
    assert story(w) == [(100, [], 0.0), (70, [100], 3.0), (200, [100], 7.0)]


def test_successors_of_a_skipped_request_follow_its_predecessors(tmp_path: Path) -> None:
    w = read(tmp_path, one(turn(0, 100), turn(9, 200, out=0, think_time=7), turn(20, 300, think_time=9)))
    assert story(w) == [(100, [], 0.0), (300, [100], 18.0)]
    assert w.skipped == {"output < 1": 1}


def test_think_times_that_are_missing_are_what_the_stamps_leave(tmp_path: Path) -> None:
    w = read(tmp_path, one(turn(0, 100), turn(9, 200, api_time=None), turn(20, 300), turn(20.5, 400)))
    assert [think for _, _, think in story(w)] == [0.0, 7.0, 11.0, 0.0]
    assert "1 of 3 think times include the server's time, which the file lacks" in w.notes


def test_equal_ids_of_two_sessions_mean_nothing(tmp_path: Path) -> None:
    w = read(tmp_path, one(turn(0, 200), turn(5, 300)), one(turn(1, 200)))
    assert w.blocks is not None
    assert [w.blocks.of(i) for i in range(3)] == [[0, 1, 2], [4, 5, 6], [0, 1, 2, 3]]
    assert w.blocks.hit_blocks().tolist() == [0, 0, 3]
    assert w.num_sessions == 2
    assert any("local to a session" in note for note in w.notes)


def test_a_session_may_be_a_file_of_many_lines(tmp_path: Path) -> None:
    w = read(tmp_path, one(turn(0, 100), turn(9, 200)), indent=2)
    assert len(w) == 2


def deep(levels: int) -> Entry:
    entry: Entry = turn(0, 64)
    for _ in range(levels):
        entry = {"type": "subagent", "t": 1, "requests": [entry]}
    return entry


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (one(turn(0, 64), turn(0, 64, hash_ids=[1, 2])), "hash_ids are not one per full 64 prompt tokens"),
        (one(turn(0, 64), turn(0, 64, hash_ids=["x"])), "hash_ids are not whole numbers below 2^62"),
        (one(turn(0, 64), turn("soon", 64)), "t is not a time >= 0"),
        (one(turn(0, 64), turn(None, 64)), "arrival is not finite"),
        (
            one(turn(0, 64), turn(0, 64, think_time=-1), turn(0, 64, think_time=-1)),
            "think_s is not a time >= 0",
        ),
        (one(turn(0, 64), "request"), "request is not a JSON object"),
        (one(turn(0, 64), {"type": "subagent"}), "sub-agent has no list of requests, or is nested too deep"),
        (one(turn(0, 64), deep(100)), "sub-agent has no list of requests, or is nested too deep"),
        (one(turn(0, 64), {"type": "subagent", "t": -5, "requests": []}), "t is not a time >= 0"),
    ],
)
def test_se_05_hostile_requests_are_counted(session: object, reason: str, tmp_path: Path) -> None:
    w = read(tmp_path, session)
    assert w.num_prompt[0] == 64
    assert w.skipped[reason] == 1


def test_se_05_hostile_sessions_are_counted(tmp_path: Path) -> None:
    good = one(turn(0, 64))
    w = read(tmp_path, good, one(id="x", block_size=32), one(id="y") | {"requests": 5}, [1])
    assert w.skipped == {
        "session has a block_size other than 64": 1,
        "requests is not a list": 1,
        "line is not a JSON object": 1,
    }
    with pytest.raises(InputError, match="no row can be a request"):
        read(tmp_path, one())


def test_sub_agents_of_the_table_of_requests_are_sessions_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(
        "session,agent,req,t_s,input_tokens,output_tokens,think_time_s,api_time_s\n"
        "a,main,0,0.0,100,10,0.0,2.0\na,main,1,9.0,200,10,6.5,\na,agent_1,0,0.0,70,10,0.0,1\n"
    )
    w = read_trace(path)
    assert w.session == ["a", "a/agent_1", "a"]
    assert story(w) == [(100, [], 0.0), (70, [], 0.0), (200, [100], 6.5)]
