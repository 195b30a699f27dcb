"""The claims as a page: every case with its number, its interval and its scenario, and why."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.experiments.claims.claim import OPEN, Claim, interval, shown

LEAD = """# Claims

What popular tuning articles say about serving a language model, each number computed and judged. Computed by
`python scripts/claims.py`, which runs [notebook 14](../notebooks/14_claims.ipynb); do not edit.

A claim is a range; a round number is read as +-20 %. A case holds if its whole interval is in the range and
is wrong if all of it is outside; if the interval crosses a bound it is open. The verdict follows from the
cases. Intervals hold the chance in the requests and the error that the latency profile states of itself,
and where a price is derived and not measured, as that of INT8 is, an error assumed for it; "exact" is
arithmetic. A scenario is told as changes to `chat-a100`; what it is compared with comes after a
slash, as changes to the first."""


def page(claims: Sequence[Claim], lead: str = LEAD) -> str:
    """Return the claims as Markdown: a table of verdicts, then each claim with its cases."""
    counts = {word: sum(claim.verdict == word for claim in claims) for word in _verdicts(claims)}
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    rows = [[_linked(claim), str(claim.said), claim.words] for claim in claims]
    table = _table(["claim", "said", "verdict"], rows)
    return "\n".join([lead, "", f"{len(claims)} claims: {told}.", "", *table, *_sections(claims)]) + "\n"


def _verdicts(claims: Sequence[Claim]) -> list[str]:
    return list(dict.fromkeys(claim.verdict for claim in claims))


def _sections(claims: Sequence[Claim]) -> list[str]:
    lines = []
    for claim in claims:
        rows = [
            [
                case.when,
                shown(case.number.value),
                interval(case.number),
                _level(case.number.level),
                case.judged(claim.said),
                case.scenario,
            ]
            for case in claim.cases
        ]
        titles = ["when", "computed", "interval", "level", "judged", "scenario"]
        lines += ["", f"## {claim.name}", "", f"Said: {claim.said}. **{claim.words}.** {claim.why}"]
        lines += ["", *_table(titles, rows)] if rows else []
        undecided = [case.when for case in claim.cases if case.judged(claim.said) == OPEN]
        lines += (
            ["", f"Open, since the interval crosses a bound: {'; '.join(undecided)}."] if undecided else []
        )
    return lines


def _linked(claim: Claim) -> str:
    anchor = "".join(sign for sign in claim.name.lower() if sign.isalnum() or sign in " -_")
    return f"[{claim.name}](#{anchor.replace(' ', '-')})"


def _level(level: float | None) -> str:
    return "" if level is None else f"{100 * level:.0f} %"


def _table(titles: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table; bars within cells are escaped."""
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]
