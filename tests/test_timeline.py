"""The Chrome trace is sound: slices nest, spans end, counters count, and bytes repeat."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from toy_run import step_table, toy_run

from simulator.experiments.timeline import ENGINE, trace_events, write_timeline
from simulator.metrics.tables import RequestTable


def trace_problems(events: Iterable[Mapping[str, object]]) -> list[str]:
    """Return what a trace viewer would draw wrong, one line each; empty for a sound trace."""
    problems: list[str] = []
    slices: dict[object, list[tuple[int, int]]] = defaultdict(list)
    spans: dict[object, list[str]] = defaultdict(list)  # open spans of an id, the innermost last
    latest: dict[object, int] = defaultdict(int)
    for i, event in enumerate(events):
        kind, name = event.get("ph"), event.get("name")
        if kind not in ("X", "C", "b", "e", "M", "i") or not isinstance(name, str):
            problems.append(f"event {i}: unknown kind {kind!r} or no name")
        elif kind != "M" and _nanoseconds(event.get("ts")) is None:
            problems.append(f"event {i}: ts is no time: {event.get('ts')!r}")
        elif kind == "X" and _nanoseconds(event.get("dur")) is None:
            problems.append(f"event {i}: dur is no duration: {event.get('dur')!r}")
        elif kind == "X":
            start = _nanoseconds(event["ts"]) or 0
            length = _nanoseconds(event["dur"]) or 0
            slices[event.get("pid"), event.get("tid")].append((start, start + length))
        elif kind == "C":
            values = event.get("args")
            if not isinstance(values, dict) or not values or not all(map(_is_number, values.values())):
                problems.append(f"event {i}: counter {name} has a value that is no number")
        elif kind in ("b", "e"):
            key, at = (event.get("cat"), event.get("id")), _nanoseconds(event["ts"]) or 0
            if at < latest[key]:
                problems.append(f"event {i}: {name} goes back in time")
            latest[key] = at
            if kind == "b":
                spans[key].append(name)
            elif not spans[key] or spans[key].pop() != name:
                problems.append(f"event {i}: end of {name}, which is not the innermost open span")
    problems += [f"{names[-1]} of {key} never ends" for key, names in spans.items() if names]
    return problems + [f"{track}: {p}" for track, pairs in slices.items() for p in _overlaps(pairs)]


def _overlaps(pairs: list[tuple[int, int]]) -> list[str]:
    found: list[str] = []
    open_ends: list[int] = []
    for start, end in sorted(pairs, key=lambda pair: (pair[0], -pair[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            found.append(f"slice {start}-{end} outlasts the one around it")
        open_ends.append(end)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _nanoseconds(value: object) -> int | None:
    return round(value * 1000) if isinstance(value, int | float) and 0 <= value < float("inf") else None


def read(path: Path) -> list[dict[str, object]]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    return list(document["traceEvents"])


@pytest.mark.parametrize("horizon", [None, 3.0])
def test_trace_of_a_run_is_sound(tmp_path: Path, horizon: float | None) -> None:
    requests, steps = toy_run(80, rate=12, horizon=horizon)
    write_timeline(tmp_path / "timeline.json.gz", requests, steps, num_blocks=160)
    events = read(tmp_path / "timeline.json.gz")
    assert trace_problems(events) == []
    assert sum(e["ph"] == "X" and e["name"] == "step" for e in events) == len(steps)
    assert sum(e["ph"] == "b" and e["name"] in requests.id for e in events) == len(requests)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (
            [{"ph": "X", "name": "s", "ts": 0, "dur": 2}, {"ph": "X", "name": "s", "ts": 1, "dur": 2}],
            "outlasts",
        ),
        ([{"ph": "b", "name": "r", "id": "1", "ts": 0}], "never ends"),
        ([{"ph": "e", "name": "r", "id": "1", "ts": 0}], "innermost"),
        ([{"ph": "C", "name": "n", "ts": 0, "args": {"v": "3"}}], "no number"),
        ([{"ph": "i", "name": "n", "ts": float("nan")}], "no time"),
        ([{"ph": "Q", "name": "n", "ts": 0}], "unknown kind"),
    ],
)
def test_the_check_finds_an_unsound_trace(events: list[dict[str, object]], problem: str) -> None:
    assert len(trace_problems(events)) == 1
    assert problem in trace_problems(events)[0]


def one_request(**changes: float) -> RequestTable:
    times = {"arrival": 0.0, "scheduled": 1.0, "first_token": 2.0, "finish": 4.0} | changes
    ints = ("num_cached", "num_preemptions", "priority", "status")
    return RequestTable(
        id=["a"],
        reason=["length"],
        tenant=[""],
        num_prompt=np.array([8]),
        num_output=np.array([3]),
        **{name: np.array([0]) for name in ints},
        **{name: np.array([value]) for name, value in times.items()},
    )


def test_a_request_is_a_nest_of_spans() -> None:
    events = list(trace_events(one_request(), step_table({})))
    spans = [(e["ph"], e["name"], e["ts"]) for e in events if e["ph"] in "be"]
    assert spans == [
        ("b", "a", 0.0),
        ("b", "waiting", 0.0),
        ("e", "waiting", 1e6),
        ("b", "prefill", 1e6),
        ("e", "prefill", 2e6),
        ("b", "decode", 2e6),
        ("e", "decode", 4e6),
        ("e", "a", 4e6),
    ]


def test_a_request_never_scheduled_only_waits() -> None:
    never = one_request(scheduled=np.nan, first_token=np.nan)
    spans = [(e["ph"], e["name"], e["ts"]) for e in trace_events(never, step_table({})) if e["ph"] in "be"]
    assert spans == [("b", "a", 0.0), ("b", "waiting", 0.0), ("e", "waiting", 4e6), ("e", "a", 4e6)]


def test_a_mixed_step_holds_prefill_and_decode() -> None:
    rows = {
        "start": [0.0],
        "end": [0.01],
        "prefill_tokens": [5.0],
        "num_decodes": [2.0],
        "num_preempted": [1.0],
    }
    events = list(trace_events(one_request(), step_table(rows)))
    slices = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [("step", 0.0, 1e4), ("prefill", 0.0, 1e4), ("decode", 0.0, 1e4)]
    assert [e["args"] for e in events if e["ph"] == "i"] == [{"sequences": 1}]


def test_counters_are_written_when_they_change() -> None:
    rows = {"start": [0.0, 1.0, 2.0], "end": [1.0, 2.0, 3.0], "num_running": [1.0, 1.0, 2.0]}
    events = list(trace_events(one_request(), step_table(rows), num_blocks=4))
    name = "vllm:num_requests_running"
    counted = [(e["ts"], e["args"]) for e in events if e["ph"] == "C" and e["name"] == name]
    assert counted == [(0.0, {"requests": 1.0}), (2e6, {"requests": 2.0})]
    assert {e["pid"] for e in events if e["ph"] == "C"} == {ENGINE}


def test_same_tables_give_same_bytes(tmp_path: Path) -> None:
    requests, steps = toy_run(20)
    for name in ("a.json.gz", "b.json.gz"):
        write_timeline(tmp_path / name, requests, steps, num_blocks=160)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_an_empty_run_gives_a_sound_trace(tmp_path: Path) -> None:
    requests, steps = toy_run(5, horizon=0.0)
    write_timeline(tmp_path / "t.json.gz", requests, steps)
    assert trace_problems(read(tmp_path / "t.json.gz")) == []
