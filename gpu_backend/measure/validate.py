"""`make validate-cpu`: does the simulator, calibrated here and now, foretell this CPU engine by the clock?

One attempt: a canary, `gpu measure`, `calibrate fit`, three batching policies replayed twice each in the
order A B C A B C (drift then hits all alike), the canary again; each policy is simulated with the fresh
profile. A shared machine is quiet or it is not: an attempt is void if the canary moved by more than 5 %, two
replays of a policy differ by more than 5 % in median E2E, or steps waited for the core. Then it is made
again, three times at most; after that the answer is "inconclusive", never a pass. Not for CI, which tests
this module on recorded numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

POLICIES = ("chunked", "prefill_first", "static")
METRICS = tuple(f"{rank}_{name}_ms" for name in ("ttft", "tpot", "e2el") for rank in ("median", "p95"))
COLUMNS = ("measured", "simulated", "error", "noise")
JUDGED = ("median_e2el_ms", "median_ttft_ms")
RANKED_BY = "median_e2el_ms"
REPLAYS = 2  # of each policy
QUIET = 0.05  # change of canary or replay above which an attempt is void
CORE_SHARE = 1 / 1.15  # of the time of a replay's steps that its thread must have had the core
GOAL = 0.10  # error of a judged metric, where the noise floor is not larger
ATTEMPTS = 4  # one, and three times again
PASSED, MISSED, INCONCLUSIVE = "passed", "missed", "inconclusive"
EXIT = {PASSED: 0, MISSED: 1, INCONCLUSIVE: 2}

Summary = Mapping[str, object]


class Machine(Protocol):
    """What an attempt asks of the machine; tests put recorded numbers in its place."""

    def canary(self) -> float: ...  # seconds of a fixed piece of work
    def calibrate(self) -> list[str]: ...  # makes the profile that `simulate` uses; what to print of it
    def replay(self, policy: str) -> Summary: ...
    def simulate(self, policy: str) -> Summary: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One metric of one policy: milliseconds and fractions."""

    policy: str
    metric: str
    measured: float  # mean of the replays
    simulated: float
    noise: float  # the replays' largest difference, of their mean

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1

    @property
    def is_good(self) -> bool:
        return abs(self.error) <= max(GOAL, self.noise)


@dataclass(slots=True)
class Attempt:
    """What one attempt saw. `canary`: seconds before and after."""

    canary: tuple[float, float] = (0.0, 0.0)
    replays: dict[str, list[Summary]] = field(default_factory=dict)
    simulated: dict[str, Summary] = field(default_factory=dict)
    calibration: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[Line]:
        return [_line(self, policy, metric) for policy in self.replays for metric in METRICS]

    @property
    def drift(self) -> float:
        before, after = self.canary
        return after / before - 1

    @property
    def disturbed(self) -> list[str]:
        """Return why the attempt is void; nothing if it is not."""
        found = [f"the canary moved by {self.drift:+.1%}"] if abs(self.drift) > QUIET else []
        noise = {line.policy: line.noise for line in self.lines if line.metric == RANKED_BY}
        shares = self.core_shares
        if shares and min(shares) < CORE_SHARE:
            found.append(f"a replay had {min(shares):.0%} of its core, limit {CORE_SHARE:.0%}")
        return found + [
            f"two replays of {policy} differ by {value:.1%} in {RANKED_BY}"
            for policy, value in noise.items()
            if value > QUIET
        ]

    @property
    def core_shares(self) -> list[float]:
        """Return each replay's CPU time over the time of its steps, where the machine tells."""
        told = [summary.get("core_share") for each in self.replays.values() for summary in each]
        return [value for value in told if isinstance(value, float)]

    def ranking(self, clock: str) -> list[str]:
        """Return the policies, the quickest first, by the machine ("measured") or the model ("simulated")."""
        values = {x.policy: getattr(x, clock) for x in self.lines if x.metric == RANKED_BY}
        return sorted(values, key=values.__getitem__)

    @property
    def verdict(self) -> str:
        if self.disturbed:
            return INCONCLUSIVE
        good = all(line.is_good for line in self.lines if line.metric in JUDGED)
        return PASSED if good and self.ranking("measured") == self.ranking("simulated") else MISSED

    def to_dict(self) -> dict[str, object]:
        rows = [
            {
                name: getattr(x, name)
                for name in ("policy", "metric", "measured", "simulated", "error", "noise")
            }
            for x in self.lines
        ]
        return {
            "verdict": self.verdict,
            "disturbed": self.disturbed,
            "core_shares": self.core_shares,
            "canary_s": self.canary,
            "ranking": {clock: self.ranking(clock) for clock in ("measured", "simulated")},
            "metrics": rows,
            "calibration": self.calibration,
        }


def _line(attempt: Attempt, policy: str, metric: str) -> Line:
    values = [_number(summary, metric) for summary in attempt.replays[policy]]
    mean = sum(values) / len(values)
    noise = (max(values) - min(values)) / mean
    return Line(policy, metric, mean, _number(attempt.simulated[policy], metric), noise)


def _number(summary: Summary, metric: str) -> float:
    value = summary[metric]
    assert isinstance(value, int | float), f"{metric} of a run that served requests"
    return float(value)


def attempt(machine: Machine, policies: Iterable[str] = POLICIES) -> Attempt:
    """Calibrate, replay and simulate once."""
    named = list(policies)
    before = machine.canary()
    made = Attempt(calibration=machine.calibrate())
    for _ in range(REPLAYS):
        for policy in named:
            made.replays.setdefault(policy, []).append(machine.replay(policy))
    made.canary = (before, machine.canary())
    made.simulated = {policy: machine.simulate(policy) for policy in named}
    return made


def validate(machine: Machine, tell: Callable[[str], object], attempts: int = ATTEMPTS) -> list[Attempt]:
    """Attempt until the machine was quiet, so many times at most; the last attempt is the answer."""
    made: list[Attempt] = []
    for number in range(1, attempts + 1):
        made.append(attempt(machine))
        for text in report(made[-1]):
            tell(text)
        if not made[-1].disturbed:
            break
        tell(f"attempt {number} of {attempts} is VOID: {'; '.join(made[-1].disturbed)}")
    tell(f"verdict: {made[-1].verdict}")
    return made


def report(made: Attempt) -> list[str]:
    """Return an attempt as text: every metric with its error and, beside it, the noise floor."""
    before, after = made.canary
    lines = [
        *made.calibration,
        f"{'policy':<14} {'metric':<15} {'measured':>9} {'simulated':>9} {'error':>7} {'noise':>7}",
        *(
            f"{x.policy:<14} {x.metric:<15} {x.measured:9.1f} {x.simulated:9.1f} "
            f"{x.error:+7.1%} {x.noise:7.1%}" + ("" if x.metric not in JUDGED or x.is_good else "  missed")
            for x in made.lines
        ),
        f"share of the core while steps ran: {', '.join(f'{x:.0%}' for x in made.core_shares) or 'unknown'}",
        f"canary {before * 1e3:.2f} ms before, {after * 1e3:.2f} ms after ({made.drift:+.1%})",
    ]
    ranks = {clock: made.ranking(clock) for clock in ("measured", "simulated")}
    same = "the same" if ranks["measured"] == ranks["simulated"] else "NOT the same"
    return [
        *lines,
        f"ranking by {RANKED_BY}: {same}: {' < '.join(ranks['measured'])} on the machine, "
        f"{' < '.join(ranks['simulated'])} simulated",
    ]


def save(path: Path, made: list[Attempt]) -> None:
    """Write all attempts, void ones too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"verdict": made[-1].verdict, "attempts": [each.to_dict() for each in made]}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
