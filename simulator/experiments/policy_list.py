"""All policies that ship, by axis: a line on what each does, where it comes from, which is the default.

Read from the docstrings: the first sentence says what a policy does, and what its closing parenthesis holds
is the source. One without has none: it is ours, or the folklore's.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.config.axes import AXES
from simulator.config.scenario import Scenario
from simulator.schedulers.preempting import PREEMPTIONS

OWN = "ours"
"""The source of what comes from nowhere else."""


class Entry(NamedTuple):
    """What a docstring says about a policy."""

    description: str
    source: str


def describe(text: str | None) -> Entry:
    """Return the first sentence of a docstring, and the parenthesis that closes it as the source.

    >>> describe("Pass over what was hit (NSDI 2024, alg. 1). The queue is cut.")
    Entry(description='Pass over what was hit', source='NSDI 2024, alg. 1')
    """
    sentence = _first_sentence(" ".join((text or "").split()))
    at, depth = len(sentence), 0
    while at and (depth or at == len(sentence)):
        at -= 1
        depth += (sentence[at] == ")") - (sentence[at] == "(")
    if not sentence.endswith(")") or depth:
        return Entry(sentence, OWN)
    return Entry(sentence[:at].rstrip(), sentence[at + 1 : -1])


def _first_sentence(text: str) -> str:
    """Return a text up to its first full stop outside of parentheses, without it."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "." and not depth and text[at + 1 : at + 2] in ("", " "):
            return text[:at]
    return text


class Choices(NamedTuple):
    """What one scenario key chooses among."""

    key: str
    entries: dict[str, Entry]
    own: str | None = None  # what a policy of one's own must be; None if there can be none
    unset: str = ""  # what the scenario's null, or an empty list, stands for

    @property
    def default(self) -> object:
        section, _, name = self.key.partition(".")
        return getattr(getattr(Scenario(), section), name, None)


def all_choices() -> dict[str, Choices]:
    """Return every axis of policies, by its name."""
    found = {}
    for axis in AXES.values():
        entries = {name: describe(policy.__doc__) for name, policy in axis.table.items()}
        found[axis.name] = Choices(axis.key, entries, axis.signature, axis.unset)
        if axis.name == "victim":
            modes = {str(mode): describe(text) for mode, text in PREEMPTIONS.items()}
            found["preemption"] = Choices("scheduler.preemption", modes)
    return found


def policies_as_dict() -> dict[str, object]:
    """Return every axis with its key, default, what a policy of one's own must be, and its entries."""
    return {
        name: {
            "key": each.key,
            "default": each.default,
            "unset": each.unset or None,
            "own": each.own,
            "entries": {entry: told._asdict() for entry, told in each.entries.items()},
        }
        for name, each in all_choices().items()
    }


def policies_text() -> str:
    """Return the list as text: an axis, its policies, and what a policy of one's own must be."""
    return "\n\n".join("\n".join(_lines(name, each)) for name, each in all_choices().items())


def _lines(axis: str, choices: Choices) -> list[str]:
    own = {} if choices.own is None else {"file.py:name": f"your own: {choices.own}"}
    width = max(map(len, (*choices.entries, *own)))
    lines = [f"{axis} ({choices.key}" + (f"; default {choices.unset})" if choices.unset else ")")]
    for name, (what, source) in choices.entries.items():
        mark = " [default]" if name == choices.default else ""
        lines.append(f"  {name:<{width}}  {what} ({source}){mark}")
    return [*lines, *(f"  {name:<{width}}  {what}" for name, what in own.items())]
