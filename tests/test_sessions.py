"""Drawn sessions: their shape, their shared prefixes, and the recorded sessions whose figures they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.workload import Workload, generate, read_trace
from simulator.workload.replay import session_numbers
from simulator.workload.sessions import draw_sessions

CONTEXT = 131_072
SESSIONS = {"kind": "sessions", "name": "agentic"}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def drawn(n: int = 400, seed: int = 0) -> Workload:
    return generate({"kind": "poisson", "rate": 0.01}, SESSIONS, n, seed)


def test_turns_extend_their_context_and_fit_the_model() -> None:
    d = draw_sessions(rng(), 3000, "agentic")
    assert len(d.num_prompt) == 3000
    inside = d.turn[1:] > 0
    assert (np.diff(d.num_prompt)[inside] >= 0).all()
    assert (d.num_prompt + d.num_output <= CONTEXT).all()
    assert (d.num_prompt >= 1).all()
    assert (d.num_output >= 1).all()
    assert (d.think[d.turn == 0] == 0).all()


def test_a_turn_repeats_the_prefix_of_the_turn_before_unless_history_is_rewritten() -> None:
    d = draw_sessions(rng(), 3000, "agentic")
    assert (d.blocks.num_ids == d.num_prompt // d.blocks.block_size).all()
    hits, before = d.blocks.hit_blocks(), np.roll(d.blocks.num_ids, 1)
    later = d.turn > 0
    assert (hits[~later] == 0).all()
    assert (hits[later] <= before[later]).all()
    assert (hits[later] < before[later]).mean() == pytest.approx(0.012, abs=0.006)


def test_every_session_waits_for_its_answers_and_starts_when_told() -> None:
    w = drawn()
    assert w.follows is not None
    assert w.session is not None
    number = session_numbers(w.session)
    assert (number[w.follows[:, 0]] == number[w.follows[:, 1]]).all()
    assert len(w.follows) == len(w) - w.num_sessions
    starts = np.sort(w.arrival[np.unique(number, return_index=True)[1]])
    alone = generate({"kind": "poisson", "rate": 0.01}, {"kind": "constant", "prompt": 1, "output": 1}, 50)
    assert starts.tolist() == alone.arrival[: len(starts)].tolist()  # the arrivals' own stream


def test_the_seed_fixes_the_sessions() -> None:
    one, same, other = drawn(), drawn(), drawn(seed=1)
    assert one.num_prompt.tolist() == same.num_prompt.tolist() != other.num_prompt.tolist()
    assert list(one.with_blocks(16).requests) == list(same.with_blocks(16).requests)


def test_sessions_that_cannot_be_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"lengths.name: no bundled table 'agentik' of sessions; did you mean"
    ):
        generate({"kind": "poisson", "rate": 1}, {"kind": "sessions", "name": "agentik"}, 5)
    with pytest.raises(ConfigError, match="sessions need arrivals that start them"):
        generate({"kind": "closed_loop", "clients": 2}, SESSIONS, 5)
    with pytest.raises(ConfigError, match=r"lengths.kind: unknown kind 'session'; did you mean sessions"):
        generate({"kind": "poisson", "rate": 1}, {"kind": "session"}, 5)


def test_drawn_sessions_have_the_published_figures() -> None:
    """README of the traces, of all turns: hits, outputs, think times. The cut changes them little."""
    d = draw_sessions(rng(1), 25_000, "agentic")
    assert d.blocks.hit_blocks().sum() / d.blocks.num_ids.sum() == pytest.approx(0.963, abs=0.004)
    assert np.median(d.num_output) == pytest.approx(216, rel=0.08)
    assert np.median(d.think[d.turn > 0]) == pytest.approx(10, rel=0.15)


def test_drawn_sessions_have_the_figures_of_the_recorded_ones_cut_at_the_context(shared_data: Path) -> None:
    """Leading requests of each session that fit; main agents, from the table of requests."""
    w = read_trace(shared_data / "traces" / "agentic_coding_requests.csv.gz")
    assert w.session is not None
    assert w.think is not None
    number = session_numbers(w.session)
    order = np.argsort(number, kind="stable")
    order = order[["/" not in w.session[i] for i in order]]
    full = w.num_prompt[order] + w.num_output[order] > CONTEXT
    start = np.append(0, np.flatnonzero(np.diff(number[order])) + 1)
    before = np.cumsum(full) - np.repeat(
        (np.cumsum(full) - full)[start], np.diff(np.append(start, len(order)))
    )
    kept = order[before == 0]
    waits = kept[np.append(False, np.diff(number[kept]) == 0)]
    d = draw_sessions(rng(1), 50_000, "agentic")

    def close(ours: np.ndarray, recorded: np.ndarray, rel: float, p: list[int]) -> None:
        assert np.percentile(ours, p) == pytest.approx(np.percentile(recorded, p), rel=rel)
        assert ours.mean() == pytest.approx(recorded.mean(), rel=rel)

    close(np.bincount(d.session), np.unique(number[kept], return_counts=True)[1], 0.08, [25, 50, 75, 90, 99])
    close(d.num_prompt, w.num_prompt[kept], 0.05, [10, 25, 50, 75, 90, 99])
    close(d.num_output, w.num_output[kept], 0.05, [10, 25, 50, 75, 90, 99])
    close(np.minimum(d.think[d.turn > 0], 60), np.minimum(w.think[waits], 60), 0.13, [10, 25, 50, 75, 90])
