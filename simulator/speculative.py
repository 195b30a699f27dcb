"""How many draft tokens a simulated model accepts: by rates, or as a real engine measured it.

Every verification has a random number of its own, drawn by request and position in the answer and not by
the moment, so that the same seed accepts the same drafts under every policy (common random numbers). With
one rate `a` for all positions, a step of g drafts gives (1 - a**(g+1)) / (1 - a) tokens in the mean
(Leviathan et al., ICML 2023, equation 1). Left out: that drafts for easy text are accepted in streaks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from collections.abc import Sequence as Many
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from simulator.errors import InputError
from simulator.request import Sequence

LOG_COLUMNS = ("request", "position", "drafted", "accepted")
_CHUNK = 64  # random numbers drawn at once for a request


class Verification(NamedTuple):
    """One row of an acceptance log: a step that gave a decoding request tokens."""

    request: str
    position: int  # output tokens that the request had before
    drafted: int  # draft tokens verified; 0 if none were proposed
    accepted: int


class Acceptance(Protocol):
    """Say what is proposed and what is accepted; the answers depend on request and position alone."""

    def num_proposed(self, seq: Sequence, position: int) -> int:
        """Return how many tokens are drafted for the verification behind `position` output tokens."""
        ...

    def num_accepted(self, seq: Sequence, position: int, num_draft: int) -> int:
        """Return how many of the drafts verified there are accepted."""
        ...

    def forget(self, seq: Sequence) -> None:
        """Drop what is kept of a sequence that has left."""
        ...


class Uniforms:
    """A stream of random numbers in [0, 1) for every request, read at any position."""

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._seed = seed
        self._streams: dict[int, tuple[np.random.Generator, list[float]]] = {}

    def at(self, index: int, position: int) -> float:
        stream = self._streams.get(index)
        if stream is None:
            key = (*self._seed.spawn_key, index)
            rng = np.random.default_rng(np.random.SeedSequence(self._seed.entropy, spawn_key=key))
            stream = self._streams[index] = rng, []
        rng, drawn = stream
        while len(drawn) <= position:
            drawn += rng.random(_CHUNK).tolist()
        return drawn[position]

    def forget(self, index: int) -> None:
        self._streams.pop(index, None)


class ByRate:
    """Accept draft i of a verification, and so all before it, with probability `rates[i]`."""

    def __init__(self, rates: Many[float], seed: np.random.SeedSequence) -> None:
        if any(later > rate for rate, later in pairwise(rates)):
            raise ValueError(f"acceptance rates must not rise with the position, got {list(rates)}")
        self.rates = tuple(rates)
        self._uniforms = Uniforms(seed)

    def num_proposed(self, seq: Sequence, position: int) -> int:
        return len(self.rates)

    def num_accepted(self, seq: Sequence, position: int, num_draft: int) -> int:
        u = self._uniforms.at(seq.index, position)
        return sum(u < rate for rate in self.rates[:num_draft])

    def forget(self, seq: Sequence) -> None:
        self._uniforms.forget(seq.index)


class ByLog:
    """Repeat a log: at a request and position that it has, what happened there; else a row drawn from it.

    At most `num_tokens` are drafted, though more may have been when the log was written.
    """

    def __init__(self, log: Iterable[Verification], num_tokens: int, seed: np.random.SeedSequence) -> None:
        self._known = {(row.request, row.position): row for row in log}
        self._rows = list(self._known.values())
        self._num_tokens = num_tokens
        self._uniforms = Uniforms(seed)

    def _row(self, seq: Sequence, position: int) -> Verification:
        row = self._known.get((seq.id, position))
        if row is not None:
            return row
        return self._rows[int(self._uniforms.at(seq.index, position) * len(self._rows))]

    def num_proposed(self, seq: Sequence, position: int) -> int:
        return min(self._row(seq, position).drafted, self._num_tokens)

    def num_accepted(self, seq: Sequence, position: int, num_draft: int) -> int:
        return min(self._row(seq, position).accepted, num_draft)

    def forget(self, seq: Sequence) -> None:
        self._uniforms.forget(seq.index)


def same_rate(rate: float, num_tokens: int) -> list[float]:
    """Return the rates of drafts that are accepted independently of each other.

    >>> same_rate(0.5, 3)
    [0.5, 0.25, 0.125]
    """
    return [rate**i for i in range(1, num_tokens + 1)]


def expected_tokens(rates: Iterable[float]) -> float:
    """Return a verification's mean number of tokens: one, and each draft as often as it is accepted.

    Leviathan et al., ICML 2023, equation 1, for any rates by position.

    >>> round(expected_tokens(same_rate(0.8, 4)), 4)
    3.3616
    """
    return 1.0 + sum(rates)


def read_log(path: Path) -> list[Verification]:
    """Read an acceptance log; InputError names the file, the line and what is wrong with it."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except OSError as error:
        raise InputError(f"{path}: cannot be read as an acceptance log: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not an acceptance log: {error}") from None
    if not lines or tuple(lines[0]) != LOG_COLUMNS:
        raise InputError(f"{path}: an acceptance log begins with the line {','.join(LOG_COLUMNS)}")
    rows = [_verification(path, number, line) for number, line in enumerate(lines[1:], 2) if line]
    if not any(row.drafted for row in rows):
        raise InputError(f"{path}: has no verification of draft tokens")
    return rows


def _verification(path: Path, number: int, line: list[str]) -> Verification:
    try:
        request, *counts = line
        row = Verification(request, *(int(each) for each in counts))
    except (ValueError, TypeError):
        raise InputError(f"{path}, line {number}: must be a name and three whole numbers") from None
    if not (row.position >= 0 and 0 <= row.accepted <= row.drafted):
        raise InputError(f"{path}, line {number}: needs position >= 0 and 0 <= accepted <= drafted")
    return row


def write_log(path: Path, rows: Iterable[Verification]) -> None:
    """Write an acceptance log: CSV with a header, one verification a line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LOG_COLUMNS)
        writer.writerows(rows)
