"""Finished trials, and the file that keeps them: one line a trial, on the disk before the next is begun.

A killed search leaves whole lines and perhaps half of one, which is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import InputError
from simulator.experiments.jobs import Values
from simulator.experiments.search.goals import Constraint, Objective
from simulator.experiments.search.study import Point
from simulator.experiments.sweep.journal import write_whole


class Outcome(NamedTuple):
    """A point's metrics in the mean over replications, and the standard errors of these; or what went wrong.

    `error` is one line, `trace` the calls that led to it.
    """

    values: Values
    errors: Values
    error: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Trial:
    """A point that was tried: metrics and their standard errors over replications, or an error."""

    number: int
    point: Point
    values: Values = field(default_factory=dict)
    errors: Values = field(default_factory=dict)
    error: str = ""
    trace: str = ""

    @property
    def is_complete(self) -> bool:
        return not self.error

    def scores(self, objectives: Sequence[Objective]) -> list[float]:
        """Return the objectives' values of a complete trial."""
        return [self.values[each.metric] for each in objectives]

    def violations(self, constraints: Sequence[Constraint]) -> list[tuple[Constraint, float]]:
        """Return by how much a complete trial misses each constraint, as a share of the bound."""
        return [(each, each.violation(self.values[each.metric])) for each in constraints]

    def is_feasible(self, constraints: Sequence[Constraint]) -> bool:
        return self.is_complete and all(missed <= 0 for _, missed in self.violations(constraints))

    def to_line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False) + "\n"


def point_key(point: Point) -> str:
    """Return a text that is equal for equal points."""
    return json.dumps(point, sort_keys=True)


class TrialFile:
    """trials.jsonl of a search's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[int, Trial]:
        """Return the trials by number and cut off a half-written line; InputError for a line that is none."""
        if not self.path.exists():
            return {}
        found: dict[int, Trial] = {}
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        for num, line in enumerate(whole.splitlines(), start=1):
            try:
                trial = _trial(json.loads(line))
                found.setdefault(trial.number, trial)
            except (ValueError, TypeError, RecursionError):
                raise InputError(f"{self.path}, line {num}: no trial; --fresh begins anew") from None
        if len(whole) < len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return found

    def append(self, trial: Trial) -> None:
        """Put a trial on the disk; InputError if it has no room, and the file is as before."""
        line = trial.to_line().encode("utf-8", "backslashreplace")
        with self.path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while line:  # a disk may take a part
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(end)
                raise InputError(
                    f"cannot write {self.path}: {error.strerror}; the trials finished before are kept, and "
                    "with more room the same command goes on"
                ) from None

    def rewrite(self, trials: Sequence[Trial]) -> None:
        """Replace the file by these trials, at once or not at all."""
        lines = (trial.to_line().encode("utf-8", "backslashreplace") for trial in trials)
        write_whole(self.path, b"".join(lines))


def _trial(data: dict[str, Any]) -> Trial:
    """Return a line's trial; TypeError or ValueError for one that no search has written."""
    trial = Trial(**data)
    parts = (trial.point, trial.values, trial.errors)
    texts = (trial.error, trial.trace)
    if not all(isinstance(p, dict) for p in parts) or not all(isinstance(t, str) for t in texts):
        raise TypeError("of another kind")
    numbers = [trial.number, *trial.values.values(), *trial.errors.values()]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise TypeError("no number")
    return trial
