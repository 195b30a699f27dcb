"""Sessions of agents, drawn: turns that extend one context, think times, prefixes that turns share.

A session has a number of turns, a first prompt and a growth of its context, drawn together by class from a
bundled table; each turn adds its output and a step (tool results, the user's words), scaled so that they sum
to the growth, as far as the model's context goes. Now and then a turn rewrites its history, and what follows
the kept part of its prefix is new. Turns wait for the answer before and a think time. Left out: sub-agents,
system prompts that sessions share, and that a session's steps resemble each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.workload.tables import SessionTable, load_table
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HERE = "workload.lengths"
BLOCK = 64  # tokens per prefix id, as in the recorded sessions


@dataclass(frozen=True, slots=True)
class Drawn:
    """Turns in order, session by session: turn k of session `session[k]` is its `turn[k]`-th."""

    session: Ints
    turn: Ints
    num_prompt: Ints
    num_output: Ints
    think: Floats
    api_time: Floats
    blocks: TraceBlocks

    @property
    def num_sessions(self) -> int:
        return int(self.session[-1]) + 1

    def workload(self, starts: Floats, source: str) -> Workload:
        """Let session k start at starts[k]; the other arrivals are as if the recorded server answered."""
        is_first = self.turn == 0
        answered = np.where(is_first, 0.0, np.roll(self.api_time, 1)) + self.think
        clock = np.cumsum(answered)
        arrival = clock - clock[is_first][self.session] + starts[self.session]
        order = np.argsort(arrival, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        later = np.flatnonzero(~is_first)
        return Workload(
            arrival=arrival[order],
            num_prompt=self.num_prompt[order],
            num_output=self.num_output[order],
            ids=[f"{self.session[i]}.{self.turn[i]}" for i in order.tolist()],
            blocks=self.blocks.take(order),
            source=source,
            follows=np.stack([place[later - 1], place[later]], axis=1),
            think=self.think[order],
            api_time=self.api_time[order],
            session=[str(s) for s in self.session[order].tolist()],
        )


def draw_sessions(rng: np.random.Generator, num_requests: int, name: str) -> Drawn:
    """Draw sessions from a bundled table until they have `num_requests` turns; the last is cut there.

    The table's classes come in turn, in random order, so that few sessions are a fair sample too.
    """
    t = load_table(name, f"{HERE}.name", "sessions")["sessions"]
    turns, first, growth = _sessions(rng, t, num_requests)
    n = int(turns.sum())
    session = np.repeat(np.arange(len(turns)), turns)
    turn = np.arange(n) - (np.cumsum(turns) - turns)[session]
    output, step, think, api = (
        read_quantiles(rng, t["p_all"], t[law], n) for law in ("output", "step", "think_s", "api_s")
    )
    added = np.where(turn > 0, np.roll(output, 1) + step, 0.0)
    reached = np.cumsum(added)
    whole = np.bincount(session, added)[session]
    share = (reached - (reached - added)[turn == 0][session]) / np.where(whole > 0, whole, 1.0)
    num_prompt = np.rint(first[session] + share ** t["bend"] * growth[session]).astype(np.int64)
    num_output = np.clip(np.rint(output).astype(np.int64), 1, t["context"] - num_prompt)
    blocks = _prefixes(rng, t, turn, num_prompt // BLOCK)
    cut = slice(num_requests)
    return Drawn(
        session[cut],
        turn[cut],
        num_prompt[cut],
        num_output[cut],
        np.where(turn > 0, think, 0.0)[cut],
        api[cut],
        blocks.take(np.arange(num_requests)),
    )


def _sessions(rng: np.random.Generator, t: SessionTable, num_requests: int) -> tuple[Ints, Floats, Floats]:
    """Draw turns, first prompt and growth (tokens) of sessions that have so many turns together."""
    num_classes = len(t["turns"])
    kinds = np.zeros(0, np.int64)
    turns = np.zeros(0, np.int64)
    while turns.sum() < num_requests:
        kind = rng.permutation(num_classes)
        kinds = np.append(kinds, kind)
        more = [read_quantiles(rng, t["p"], t["turns"][c], 1)[0] for c in kind]
        turns = np.append(turns, np.maximum(np.rint(more), 1).astype(np.int64))
    needed = int(np.searchsorted(np.cumsum(turns), num_requests)) + 1
    kinds, turns = kinds[:needed], turns[:needed]
    first, growth = (
        np.array([read_quantiles(rng, t["p"], t[law][c], 1)[0] for c in kinds]) for law in ("first", "growth")
    )
    first = np.clip(first, 1, t["context"] - 1)
    return turns, first, np.minimum(growth, t["context"] - 1 - first)


def _prefixes(rng: np.random.Generator, t: SessionTable, turn: Ints, num_blocks: Ints) -> TraceBlocks:
    """Give each turn the ids of the turn before and new ones; a rewrite keeps only the first part."""
    rewrites = (rng.random(len(turn)) < t["rewrite_probability"]) & (turn > 0)
    kept = read_quantiles(rng, t["p"], t["kept"], len(turn))
    runs: list[tuple[int, int]] = []  # of the turn before
    flat, offsets, fresh = [], [0], 0
    for k, (which, count) in enumerate(zip(turn.tolist(), num_blocks.tolist(), strict=True)):
        have = sum(hi - lo for lo, hi in runs)
        runs = [] if which == 0 else _leading(runs, int(kept[k] * have) if rewrites[k] else have)
        missing = count - sum(hi - lo for lo, hi in runs)
        if runs and runs[-1][1] == fresh:
            runs[-1] = runs[-1][0], fresh + missing
        elif missing:
            runs = [*runs, (fresh, fresh + missing)]
        fresh += missing
        flat += runs
        offsets.append(len(flat))
    lo, hi = np.array(flat, np.int64).reshape(-1, 2).T
    return TraceBlocks(lo, hi, np.array(offsets), BLOCK)


def _leading(runs: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return the first `count` ids of runs, as runs."""
    leading = []
    for lo, hi in runs:
        if count > 0:
            leading.append((lo, min(hi, lo + count)))
        count -= hi - lo
    return leading


def read_quantiles(rng: np.random.Generator, p: list[float], law: list[float], n: int) -> Floats:
    """Draw from the law with these quantiles, linear in between."""
    values: Floats = np.interp(rng.random(n), p, law)
    return values


SESSIONS: dict[str, Callable[..., Drawn]] = {"sessions": draw_sessions}
"""Kinds of `workload.lengths` that draw whole sessions."""
