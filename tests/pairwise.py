"""A small set of combinations in which every pair of values of any two axes occurs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


def pairwise(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Cover all pairs greedily: begin with a pair not yet covered, add what covers most.

    >>> pairwise({"a": ["1", "2"], "b": ["x", "y"]})
    [{'a': '1', 'b': 'x'}, {'a': '1', 'b': 'y'}, {'a': '2', 'b': 'x'}, {'a': '2', 'b': 'y'}]
    """
    names = list(axes)
    open_pairs = dict.fromkeys(
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]
    )
    found = []
    while open_pairs:
        combination = dict(next(iter(open_pairs)))
        for name in names:
            if name not in combination:
                combination[name] = max(
                    axes[name],
                    key=lambda value: sum(
                        _pair(names, name, value, other, combination[other]) in open_pairs
                        for other in combination
                    ),
                )
        for a, b in itertools.combinations(names, 2):
            open_pairs.pop(((a, combination[a]), (b, combination[b])), None)
        found.append({name: combination[name] for name in names})
    return found


def _pair(names: list[str], a: str, x: str, b: str, y: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ((a, x), (b, y)) if names.index(a) < names.index(b) else ((b, y), (a, x))
