"""The largest key, and keys that have no order: which two cannot be compared, or which one is nan."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from simulator.errors import ConfigError
from simulator.request import Sequence

MOST = 1000
"""Keys among which a pair is looked for; all pairs are tried, but only after a run has failed."""


def largest(axis: str, policy: Callable[..., Any], sequences: Iterable[Sequence], ctx: object) -> Sequence:
    """Return the sequence with the largest key, of equals the first; ConfigError if keys have no order."""
    found = [(seq, policy(seq, ctx)) for seq in sequences]
    try:
        if not any(is_nan(key) for _, key in found):
            return max(found, key=lambda pair: pair[1])[0]
    except Exception as error:  # a key may be anything
        raise no_order(axis, policy, ((seq.id, key) for seq, key in found)) from error
    raise no_order(axis, policy, ((seq.id, key) for seq, key in found))


def is_nan(key: Any) -> bool:
    """Say whether a key, or a part of it, is nan, which is neither above nor below anything."""
    return bool(key != key) or (type(key) is tuple and any(map(is_nan, key)))


def no_order(axis: str, policy: object, keys: Iterable[tuple[str, Any]]) -> ConfigError:
    """Return the error that names a nan, or two keys that cannot be compared, among (request, key)."""
    known = list(itertools.islice(keys, MOST))
    name = getattr(policy, "__name__", type(policy).__name__)
    bad = [pair for pair in known if _is_bad(pair[1])][:1]
    if not bad:
        bad = next(([a, b] for a, b in itertools.combinations(known, 2) if _clash(a[1], b[1])), known[:2])
    told = " and ".join(f"{_text(key)} for {id!r:.40}" for id, key in bad)
    return ConfigError(f"{axis}: {name} gives keys that have no order: {told}")


def _is_bad(key: Any) -> bool:
    try:
        return is_nan(key)
    except Exception:  # a key may be anything
        return True


def _clash(a: Any, b: Any) -> bool:
    try:
        bool(a < b)
    except Exception:  # a key may be anything
        return True
    return False


def _text(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # a key may be anything
        text = object.__repr__(key)
    if text == object.__repr__(key):  # which tells an address
        text = f"a {type(key).__name__}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return text if len(text) <= 80 else f"{text[:77]}..."
