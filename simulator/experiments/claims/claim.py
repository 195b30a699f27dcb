"""A claim, the cases in which it was computed, and the verdict that follows from their numbers.

A claim says a range. Each case has a number with its interval: inside the range the claim holds there,
outside it is wrong there, across a bound it stays open. A verdict is made of cases and of nothing else, so
no text can say what the numbers do not. Left out: what no number can settle, and how common a case is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

HOLDS, HOLDS_WHEN, WRONG, OPEN, NOT_HERE = "holds", "holds when", "wrong", "open", "not in this version"
ROUNDING = 0.2
"""A single number that an article gives stands for so much on both sides: its authors rounded."""
LARGE = 100  # from here on numbers are shown without decimals
DIGITS = 3  # significant, of smaller ones


class Number(NamedTuple):
    """A value and the interval that it lies in with probability `level`; of arithmetic, all three are one."""

    value: float
    low: float
    high: float
    level: float | None = None  # None: exact

    @classmethod
    def exact(cls, value: float) -> Number:
        return cls(value, value, value)


class Said(NamedTuple):
    """What a claim says of its number: that it is in [low, high]; `unit` is for the reader."""

    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.low == self.high:
            return f"{self.low:,.10g}{unit}"
        if math.isinf(self.high):
            return f"{self.low:,.4g}{unit} or more"
        return f"{self.low:,.4g} to {self.high:,.4g}{unit}"


def about(value: float, unit: str = "") -> Said:
    """Read a round number as a range.

    >>> str(about(50, "tok/s"))
    '40 to 60 tok/s'
    """
    return Said(value * (1 - ROUNDING), value * (1 + ROUNDING), unit)


class Case(NamedTuple):
    """One computation: the condition it stands for, as what follows "holds when", and what was run."""

    when: str
    number: Number
    scenario: str

    def judged(self, said: Said) -> str:
        """Return holds, wrong, or open where the interval lies across a bound of the range."""
        _, low, high, _ = self.number
        if said.low <= low and high <= said.high:
            return HOLDS
        return WRONG if high < said.low or low > said.high else OPEN


@dataclass(frozen=True)
class Claim:
    """What is said, in which cases it was computed, and why it comes out so, in one sentence."""

    name: str
    said: Said
    cases: tuple[Case, ...]  # the plainest reading first; none: this version cannot compute it
    why: str

    @property
    def held(self) -> list[Case]:
        """The cases in which the claim holds."""
        return [case for case in self.cases if case.judged(self.said) == HOLDS]

    @property
    def verdict(self) -> str:
        """Return holds, holds when, or wrong; open if no case holds and one is undecided."""
        if not self.cases:
            return NOT_HERE
        if self.held:
            return HOLDS if len(self.held) == len(self.cases) else HOLDS_WHEN
        return OPEN if any(case.judged(self.said) == OPEN for case in self.cases) else WRONG

    @property
    def words(self) -> str:
        """The verdict with its conditions."""
        if self.verdict != HOLDS_WHEN:
            return self.verdict
        return f"{HOLDS_WHEN} {'; or '.join(case.when for case in self.held)}"

    @property
    def shown(self) -> Case:
        """The case whose number stands for the claim: the first that holds, else the first."""
        return (self.held or self.cases)[0]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per case: its number, interval and how it was judged."""
        import pandas as pd

        rows = {
            case.when: {"computed": shown(case.number.value), "interval": interval(case.number)}
            | {"judged": case.judged(self.said)}
            for case in self.cases
        }
        rows = rows or {NOT_HERE: {"computed": "", "interval": "", "judged": NOT_HERE}}
        return pd.DataFrame(rows).T.rename_axis("when")


def summary(claims: list[Claim]) -> pd.DataFrame:
    """Return one row per claim: what is said, one number with its interval, the verdict."""
    import pandas as pd

    rows = {}
    for claim in claims:
        row = {"said": str(claim.said), "computed": "", "interval": "", "when": "", "verdict": claim.verdict}
        if claim.cases:
            number = claim.shown.number
            row |= {"computed": shown(number.value), "interval": interval(number), "when": claim.shown.when}
        rows[claim.name] = row
    return pd.DataFrame(rows).T.rename_axis("claim")


def shown(value: float) -> str:
    """Return a number as text.

    >>> shown(57344), shown(2.7183), shown(0.0123)
    ('57,344', '2.72', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.{DIGITS}g}"


def interval(number: Number) -> str:
    """Return an interval as text; arithmetic has none."""
    return "exact" if number.level is None else f"{shown(number.low)} to {shown(number.high)}"
