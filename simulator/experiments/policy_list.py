"""All policies that ship, by axis: a line on what each does, where it comes from, which is the default.

Read from the docstrings: the first sentence says what a policy does, and what its closing parenthesis holds
is the source. One without has none: it is ours, or the folklore's.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.config.axes import AXES, Axis
from simulator.config.scenario import Scenario

OWN = "ours"
"""The source of what comes from nowhere else."""


class Entry(NamedTuple):
    """What a docstring says about a policy."""

    description: str
    source: str


def describe(policy: object) -> Entry:
    """Return the first sentence of a policy's docstring, and the parenthesis that closes it as the source.

    >>> class Sieve:
    ...     'Pass over what was hit (NSDI 2024, alg. 1). The queue is cut.'
    >>> describe(Sieve)
    Entry(description='Pass over what was hit', source='NSDI 2024, alg. 1')
    """
    sentence = _first_sentence(" ".join((getattr(policy, "__doc__", None) or "").split()))
    if not sentence.endswith(")"):
        return Entry(sentence, OWN)
    depth = 0
    for at in range(len(sentence) - 1, -1, -1):
        depth += (sentence[at] == ")") - (sentence[at] == "(")
        if not depth:
            return Entry(sentence[:at].rstrip(), sentence[at + 1 : -1])
    return Entry(sentence, OWN)


def _first_sentence(text: str) -> str:
    """Return a text up to its first full stop outside of parentheses, without it."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "." and not depth and text[at + 1 : at + 2] in ("", " "):
            return text[:at]
    return text


def policies_as_dict() -> dict[str, object]:
    """Return every axis with its key, default, what a policy of one's own must be, and its entries."""
    return {
        axis.name: {
            "key": axis.key,
            "default": axis.value(Scenario()),
            "unset": axis.unset or None,
            "own": axis.signature,
            "entries": {name: describe(policy)._asdict() for name, policy in axis.table.items()},
        }
        for axis in AXES.values()
    }


def policies_text() -> str:
    """Return the list as text: an axis, its policies, and what a policy of one's own must be."""
    return "\n\n".join("\n".join(_lines(axis)) for axis in AXES.values())


def _lines(axis: Axis) -> list[str]:
    default, width = axis.value(Scenario()), max(map(len, ("file.py:name", *axis.table)))
    lines = [f"{axis.name} ({axis.key}" + (f"; default {axis.unset})" if axis.unset else ")")]
    for name, policy in axis.table.items():
        what, source = describe(policy)
        mark = " [default]" if name == default else ""
        lines.append(f"  {name:<{width}}  {what} ({source}){mark}")
    return [*lines, f"  {'file.py:name':<{width}}  your own: {axis.signature}"]
