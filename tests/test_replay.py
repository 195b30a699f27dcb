"""Sessions in a workload: who waits for whom, when turns arrive, what cutting and starting them changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.workload import Workload, describe
from simulator.workload.replay import REPLAYS

NAN = float("nan")


def session(**changes: object) -> Workload:
    """Session a: row 0, two sub-agents 1 and 2, joined by 4. Session b: rows 3 and 5. Row 6 has none."""
    columns: dict[str, object] = {
        "arrival": np.array([0.0, 10.0, 11.0, 15.0, 40.0, 45.0, 50.0]),
        "num_prompt": np.arange(100, 107),
        "num_output": np.full(7, 10),
        "ids": list("0123456"),
        "session": ["a", "a", "a", "b", "a", "b", ""],
        "follows": np.array([[0, 1], [0, 2], [1, 4], [2, 4], [3, 5]]),
        "think": np.array([0.0, 5.0, 6.0, 0.0, 100.0, 20.0, 0.0]),
        "api_time": np.array([5.0, 4.0, NAN, 8.0, 1.0, 2.0, 3.0]),
    }
    return Workload(**(columns | changes))  # type: ignore[arg-type]


def pairs(w: Workload) -> list[tuple[str, str]]:
    assert w.follows is not None
    assert w.ids is not None
    return [(w.ids[a], w.ids[b]) for a, b in w.follows.tolist()]


def test_think_keeps_the_order_of_answers_and_caps_the_thinking() -> None:
    w = session().replayed("think", think_cap_s=60)
    assert pairs(w) == pairs(session())
    assert w.think is not None
    assert w.think.tolist() == [0, 5, 6, 0, 60, 20, 0]
    uncapped = session().replayed("think", think_cap_s=None)
    assert uncapped.think is not None
    assert uncapped.think.max() == 100


def test_timestamp_replays_the_recorded_arrivals() -> None:
    w = session().replayed("timestamp")
    assert (w.follows, w.think) == (None, None)
    assert w.arrival.tolist() == session().arrival.tolist()


def test_scaled_arrives_when_a_slower_server_would_have_answered() -> None:
    w = session().replayed("scaled", think_cap_s=60, time_scale=2.0)
    assert w.follows is None
    assert w.ids is not None
    # row 1: 0 + 2*5 + 5; row 2: 0 + 2*5 + 6; row 4: the later of 15 + 2*4 and 16 + 2*median 3.5, and 60
    assert dict(zip(w.ids, w.arrival.tolist(), strict=True)) == {
        "0": 0.0,
        "1": 15.0,
        "3": 15.0,
        "2": 16.0,
        "6": 50.0,
        "5": 51.0,
        "4": 83.0,
    }
    assert "1 of 7 requests without a recorded server time take the median, 3.5 s" in w.notes


@given(scale=st.floats(0, 10), more=st.floats(0, 10))
def test_a_slower_server_delays_every_turn(scale: float, more: float) -> None:
    fast, slow = (session().replayed("scaled", time_scale=s) for s in (scale, scale + more))
    for i in range(7):
        assert slow.arrival[slow.ids.index(str(i))] >= fast.arrival[fast.ids.index(str(i))]  # type: ignore[union-attr]


@pytest.mark.parametrize("replay", REPLAYS)
def test_every_replay_keeps_every_request(replay: str) -> None:
    w = session().replayed(replay)
    assert sorted(w.num_prompt.tolist()) == list(range(100, 107))
    assert w.session is not None
    assert w.session[w.num_prompt.tolist().index(104)] == "a"


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, {"replay": "thinking"}, "sessions.replay: unknown 'thinking'; did you mean think"),
        ({}, {"think_cap_s": -1}, "think_cap_s"),
        ({}, {"time_scale": NAN}, "time_scale"),
        ({"follows": None, "think": None}, {}, "has no sessions to replay"),
        ({"api_time": None}, {"replay": "scaled"}, "scaled needs recorded server times"),
    ],
)
def test_replays_that_cannot_be_are_named(
    changes: dict[str, object], options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        session(**changes).replayed(**options)  # type: ignore[arg-type]


def test_a_window_starts_turns_whose_predecessors_are_outside_when_they_were_recorded() -> None:
    w = session().window(11.0, 35.0)
    assert w.ids == list("2345")
    assert w.arrival.tolist() == [0.0, 4.0, 29.0, 34.0]
    assert pairs(w) == [("2", "4"), ("3", "5")]
    assert w.think is not None
    assert w.think.tolist() == [0.0, 0.0, 100.0, 20.0]
    assert pairs(session().window(limit=4)) == [("0", "1"), ("0", "2")]


def test_a_window_keeps_what_clients_do() -> None:
    w = session(pre_delay=np.arange(7.0), cancel_after=np.arange(7.0), closed_loop=(3, 1.0)).window(40.0)
    assert w.pre_delay is not None
    assert w.cancel_after is not None
    assert (w.pre_delay.tolist(), w.cancel_after.tolist(), w.closed_loop) == ([4, 5, 6], [4, 5, 6], (3, 1.0))


def test_scaling_the_rate_starts_sessions_faster_and_leaves_their_thinking() -> None:
    w = session().scaled(2.0)
    assert w.think is not None
    assert w.arrival[3] == 7.5
    assert w.think.tolist() == [0, 5, 6, 0, 100, 20, 0]


def test_session_starts_move_whole_sessions() -> None:
    w = session(needs_starts="has no times")
    assert w.num_sessions == 3
    with pytest.raises(ConfigError, match="has no times"):
        w.requests  # noqa: B018
    moved = w.with_session_starts(np.array([100.0, 0.0, 7.0]))
    assert moved.ids == list("3650124")
    assert moved.arrival.tolist() == [0.0, 7.0, 30.0, 100.0, 110.0, 111.0, 140.0]
    assert sorted(pairs(moved)) == sorted(pairs(session()))
    assert len(moved.requests) == 7
    with pytest.raises(ValueError, match="one start per session, 3, got 2"):
        w.with_session_starts(np.zeros(2))
    with pytest.raises(ConfigError, match="no sessions to start"):
        session(session=None).with_session_starts(np.zeros(3))


@pytest.mark.parametrize(
    "changes",
    [
        {"follows": np.array([[2, 1]])},
        {"follows": np.array([[1, 1]])},
        {"follows": np.array([[0, 7]])},
        {"think": None},
        {"think": np.full(7, NAN)},
        {"pre_delay": np.full(7, -1.0)},
        {"session": ["a"]},
    ],
)
def test_impossible_sessions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"follows|think|pre_delay|rows"):
        session(**changes)


def test_info_describes_sessions() -> None:
    info = session().info()["sessions"]
    assert info is not None
    assert (info["sessions"], info["requests"]["max"], info["duration"]["max"]) == (3, 4.0, 40.0)
    assert info["think"] is not None
    assert (info["think"]["p50"], info["think"]["max"]) == (13.0, 100.0)
    assert info["api_time"] is not None
    assert info["api_time"]["mean"] == pytest.approx(23 / 6)
    gaps = np.array([10, 1, 29, 30])
    assert info["gap_cv"] == pytest.approx(gaps.std() / gaps.mean())
    assert "requests per session" in describe(session())
