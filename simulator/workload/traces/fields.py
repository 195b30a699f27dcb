"""Values of one row, checked: lengths, seconds, prefix ids. Each raises Unreadable with the reason."""

from __future__ import annotations

import re
from array import array
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from simulator.workload.traces.clock import Unreadable

Ints = NDArray[np.int64]

MAX_ID = 1 << 62  # prefix ids stay below, so that the end of a run is a machine number too
_WHOLE = re.compile(r"[+-]?\d{1,18}(?:\.0*)?", re.ASCII)


def read_whole(name: str, value: object) -> int:
    """Read a whole number such as 12, "12" or "12.0"; no exponents, no signs of doubt."""
    if value is None or value == "":
        raise Unreadable(f"{name} is missing")
    if isinstance(value, Decimal):
        value = str(value)
    if isinstance(value, str):
        value = value.strip()
        if not _WHOLE.fullmatch(value):
            raise Unreadable(f"{name} is not a whole number")
        return int(value.partition(".")[0])
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unreadable(f"{name} is not a whole number")
    if abs(value) >= 1 << 62:
        raise Unreadable(f"{name} is out of range")
    return value


def read_length(name: str, value: object) -> int:
    """Read a number of tokens >= 1."""
    number = read_whole(name, value)
    if number < 1:
        raise Unreadable(f"{name} < 1")
    return number


def read_seconds(name: str, value: object, above_zero: bool = False) -> float:
    """Read a duration >= 0 (or > 0), NaN where the row has none."""
    if value is None or value == "":
        return float("nan")
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = float("nan")
    if not 0 <= seconds < float("inf") or (above_zero and not seconds):
        raise Unreadable(f"{name} is not a time {'>' if above_zero else '>='} 0")
    return seconds


def read_ids(value: object) -> Ints:
    """Read a list of prefix ids, or a range that a reader made; empty where the row has none."""
    if value is None or value == [] or value == range(0):
        return np.zeros(0, np.int64)
    if not isinstance(value, list | range):
        raise Unreadable("hash_ids is not a list")
    try:
        ids = np.frombuffer(array("q", value), np.int64)
    except (TypeError, OverflowError):
        raise Unreadable("hash_ids are not whole numbers below 2^62") from None
    if int(ids.max()) >= MAX_ID or int(ids.min()) < -MAX_ID:
        raise Unreadable("hash_ids are not whole numbers below 2^62")
    return ids
