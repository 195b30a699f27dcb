"""Replications in batches until verdicts are possible, or the time is spent.

How many are made decides what is told; which machine made them, how many processes and in which order does
not. A limit of seconds makes their number depend on the machine: `Rounds.stopped_by` says so, and asking for
that number gives the same values again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.experiments.jobs import Progress, Values, serve_all
from simulator.experiments.replications import BOOTSTRAP, WINDOWED
from simulator.experiments.tournament.contest import Contest

FEWEST = 2  # one value has no spread
BATCH = 5
FIRST_OF_BOOTSTRAP = 10  # fewer, asked for by number, may be windows instead
MOST = 40
MOST_ASKED = 10_000
AUTO_SECONDS = 60.0

ASKED, SETTLED, SECONDS, ALL = "asked", "settled", "max_seconds", "most"

Rows = dict[str, list[Values]]
"""Numbers by candidate, one entry per replication."""


class Rounds(NamedTuple):
    """What was served, and why no more of it."""

    values: Rows
    stopped_by: str

    @property
    def num(self) -> int:
        return len(next(iter(self.values.values())))


def checked_replications(wanted: object) -> int | None:
    """Return a number of replications, None for "auto"; ConfigError else."""
    if wanted == "auto":
        return None
    if isinstance(wanted, str) and wanted.isascii() and wanted.isdigit() and len(wanted) < 9:
        wanted = int(wanted)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not FEWEST <= wanted <= MOST_ASKED:
        raise ConfigError(
            f"replications (--replications): must be auto or {FEWEST} to {MOST_ASKED:,}, got {wanted!r:.40}"
        )
    return wanted


def checked_seconds(limit: float | None) -> float:
    """Return the limit of "auto" in seconds; ConfigError if it is none."""
    if limit is None:
        return AUTO_SECONDS
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < float("inf"):
        raise ConfigError(f"max_seconds (--max-seconds): must be > 0, got {limit!r:.40}")
    return float(limit)


def checked_margin(margin: float | None) -> float | None:
    """Return a margin of practical equivalence, a share; ConfigError if it is none."""
    is_number = isinstance(margin, int | float) and not isinstance(margin, bool)
    if margin is not None and not (is_number and 0 <= margin < float("inf")):
        got = f"{100 * margin:g} %" if is_number else f"{margin!r:.40}"
        raise ConfigError(f"margin (--margin): must be >= 0 and finite, got {got}")
    return margin


def play(contest: Contest, num: int, workers: int = 0, progress: Progress | None = None) -> Rounds:
    """Serve so many replications."""
    values: Rows = {name: [] for name in contest.runs}
    serve_replications(contest, values, num, workers, progress)
    return Rounds(values, ASKED)


def play_until(
    contest: Contest,
    is_settled: Callable[[Rows], bool],
    max_seconds: float,
    workers: int = 0,
    progress: Progress | None = None,
) -> Rounds:
    """Serve replications until `is_settled`, the seconds are spent, or there are `MOST`."""
    started = time.monotonic()
    values: Rows = {name: [] for name in contest.runs}
    kind, num = contest.replications.kind, 0
    most = contest.replications.most or MOST
    target = {WINDOWED: most, BOOTSTRAP: FIRST_OF_BOOTSTRAP}.get(kind, BATCH)
    while True:
        if kind != WINDOWED:  # windows are the trace, cut: together they cost one run of it
            left = max_seconds - (time.monotonic() - started)
            fit = num + int(left * num / (time.monotonic() - started)) if num else FEWEST
            target = max(min(target, fit), FEWEST)
        if target <= num:
            return Rounds(values, SECONDS)
        serve_replications(contest, values, target, workers, progress)
        is_look = num > 0 or target > FEWEST or kind == WINDOWED
        num = target
        if is_look and is_settled(values):
            return Rounds(values, SETTLED)
        if num >= most:
            return Rounds(values, ALL)
        target = _next_look(kind, num)


def _next_look(kind: str, num: int) -> int:
    first = FIRST_OF_BOOTSTRAP if kind == BOOTSTRAP else BATCH
    return max(first, BATCH * (num // BATCH + 1))


def serve_replications(
    contest: Contest, values: Rows, target: int, workers: int, progress: Progress | None
) -> None:
    """Add to each candidate's numbers until there are `target` replications."""
    done = len(values[contest.baseline])
    missing: list[tuple[str, int]] = []
    for index in range(done, target):
        for name in contest.runs:
            known = contest.known(name, index)
            values[name].append({} if known is None else known)
            if known is None:
                missing.append((name, index))
    jobs = [contest.job(name, index) for name, index in missing]
    told = _told(progress, done * len(contest.runs), target * len(contest.runs), len(jobs))
    served = serve_all(jobs, contest.workers(workers, len(jobs)), told)
    for (name, index), found in zip(missing, served, strict=True):
        values[name][index] = found


def _told(progress: Progress | None, before: int, total: int, num_jobs: int) -> Progress | None:
    if progress is None:
        return None
    known = total - before - num_jobs
    return lambda done, _: progress(before + known + done, total)


def means(rows: Sequence[Values], metric: str) -> list[float]:
    """Return a metric's values over the replications that have one."""
    return [values[metric] for values in rows if metric in values]
