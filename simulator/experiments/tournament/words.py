"""A tournament in words: what a replication was, what each verdict is, how to have it again."""

from __future__ import annotations

from simulator.experiments.intervals import Interval
from simulator.experiments.metric_cells import cell
from simulator.experiments.replications import WINDOWED, Replications
from simulator.experiments.tournament.paired import LEVEL, MORE, SHARES, Difference, Estimate, is_models
from simulator.experiments.tournament.rounds import ALL, MOST, SECONDS
from simulator.experiments.tournament.standing import Standing

WHOLE = 1000  # percent: from here on a decimal tells nothing


def points(metric: str) -> bool:
    """Say whether differences of a metric are told in percentage points."""
    return metric in SHARES


def difference_text(metric: str, value: float, base: float | None) -> str:
    """Say a difference as a table shows it: points of a share, percent of the baseline, else the number.

    >>> difference_text("attainment", 0.013, 0.9), difference_text("duration", -1.0, 20.0)
    ('+1.3 pt', '-5.0%')
    """
    if points(metric):
        return f"{100 * value:+.1f} pt"
    if base:
        percent = 100 * value / abs(base)
        return f"{percent:+,.0f}%" if abs(percent) >= WHOLE else f"{percent:+.1f}%"
    return f"{'+' if value >= 0 else '-'}{cell(metric, abs(value))}"


def bounds_text(metric: str, found: Interval | Estimate | None, base: float | None) -> str:
    """Say an interval of a difference, as `difference_text` says a value."""
    if found is None:
        return "n/a"
    return f"{difference_text(metric, found.low, base)} to {difference_text(metric, found.high, base)}"


def lead(standing: Standing) -> list[str]:
    """Say what was done: replications, warm-up, intervals, margin."""
    contest, rounds = standing.contest, standing.rounds
    margin = standing.margin
    equal = (
        f"within {100 * margin:g} {'points' if points(standing.metric) else '% of the baseline'}"
        if margin is not None
        else "within 1 point"
        if points(standing.metric)
        else "within 5 % of the baseline"
    )
    lines = [
        f"{contest.replications.words(rounds.num)}; {contest.warmup_words()}.",
        f"Paired {100 * LEVEL:.0f} % t-intervals over replications; tie: includes 0 and lies {equal}.",
    ]
    if len(contest.others) > 1:
        lines.append(
            f"Each interval is for one comparison; of {len(contest.others)}, one misses by chance more often."
        )
    return lines + [line for line in (stopped(standing),) if line]


def stopped(standing: Standing) -> str:
    """Say why no more replications were made, and how to have these again; empty if they were asked for."""
    rounds, made = standing.rounds, standing.contest.replications
    again = f"--replications {rounds.num}"
    if rounds.stopped_by == SECONDS:
        run = standing.contest.runs[standing.contest.baseline]
        same = Replications.of(run.scenario, run.machine.max_model_len, rounds.num).kind == made.kind
        repeat = f"the same again on any machine: {again}" if same else "give more with --max-seconds"
        return f"Stopped by --max-seconds after {rounds.num}; {repeat}."
    if rounds.stopped_by == ALL and MORE in standing.verdicts.values():
        if made.kind == WINDOWED:
            return (
                "The trace is used up; a longer one, or fewer of its requests in a window, would tell more."
            )
        return (
            f"Stopped at {MOST}, the most that auto makes; --replications {4 * rounds.num} halves intervals."
        )
    return ""


def verdict_lines(standing: Standing) -> list[str]:
    """Say each verdict in a line: by how much, between which bounds, and what would turn it."""
    base = standing.mean(standing.contest.baseline, standing.metric)
    lines = []
    for name, found in standing.differences.items():
        verdict = standing.verdicts[name]
        turning = (standing.turning or {}).get(name)
        parts = [f"{name}: {verdict}", *reason(standing, name, found, base)]
        if turning is not None:
            parts.append(turning.text())
        lines.append("; ".join(parts))
    return lines


def reason(standing: Standing, name: str, found: Difference | None, base: float | None) -> list[str]:
    """Say what a verdict rests on."""
    if standing.is_identical(name):
        return ["every number of every replication equals the baseline's"]
    if found is None:
        return [f"fewer than two replications have {standing.metric} for both"]
    metric = standing.metric
    size = f"{difference_text(metric, found.mean, base)} ({bounds_text(metric, found.combined, base)})"
    if standing.verdicts[name] == MORE and is_models(found):
        return [size, "the model's own error leaves it open: no replication can settle that"]
    return [size]
