"""The decision log: one line a step, the same from a simulated and from a real engine.

A line holds what `schedule` decided and what `update` ended, and the time of the decision; two logs are
compared without the times to find the first decision in which two runs part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO, TypedDict

from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler


class Step(TypedDict):
    """One step. Chunks are (request id, tokens, position of the first); `cached` are hits at admission."""

    step: int
    t: float
    decodes: int
    chunks: list[tuple[str, int, int]]
    cached: dict[str, int]
    preempted: list[str]
    free_blocks: int
    running: int
    waiting: int
    finished: list[str]


class Decision(Step, total=False):
    """One step, and where there are any, its transfers: (request id or None, tier, blocks, "in" or "out").

    And how many of a chunk's tokens are drafts to verify; a sequence that decodes by speculation is a chunk.
    """

    moves: list[tuple[str | None, int, int, str]]
    drafts: dict[str, int]


def is_decision(line: object) -> bool:
    """Say whether a line read from a log has the keys of a decision."""
    needed, known = Step.__annotations__.keys(), Decision.__annotations__.keys()
    return isinstance(line, dict) and needed <= line.keys() <= known


class DecisionLog:
    """Collect decisions in memory; `write` puts them into a file, a JSON object a line."""

    def __init__(self) -> None:
        self.lines: list[Decision] = []

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        """Note a step as `schedule` left it; a call that decided nothing is no step."""
        if not batch and not batch.preempted and not batch.moves:
            return
        line = Decision(
            step=len(self.lines),
            t=now,
            decodes=batch.num_decodes - batch.num_verified,
            chunks=[(chunk.seq.id, chunk.num_tokens, chunk.start) for chunk in batch.chunks],
            cached={chunk.seq.id: chunk.cached for chunk in batch.chunks if chunk.cached},
            preempted=[seq.id for seq in batch.preempted],
            free_blocks=scheduler.kv.num_free,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            finished=[],
        )
        if batch.moves:
            line["moves"] = [
                (seq.id if seq else None, tier, n, direction) for seq, tier, n, direction in batch.moves
            ]
        if batch.num_drafts:
            line["drafts"] = {chunk.seq.id: chunk.num_draft for chunk in batch.chunks if chunk.num_draft}
        self.lines.append(line)

    def finished(self, sequences: Iterable[Sequence], now: float) -> None:
        """Note what the step decided last, or an abort after it, ended."""
        if self.lines:
            self.lines[-1]["finished"].extend(seq.id for seq in sequences)

    def write(self, file: TextIO) -> None:
        """Write one JSON object a line."""
        for line in self.lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
