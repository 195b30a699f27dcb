"""JSON from outside, read field by field: every complaint names the file, the field and the rule.

Parsed, never executed. NaN, infinities, overlong lists and deep nesting are refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.latency.base import Floats

MAX_BYTES = 16 * 2**20  # a profile is some tens of kilobytes; more is not one
MAX_LIST = 2**15


class Section:
    """A JSON object with its place, so that every complaint names file and field."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{place}: expected an object, got {type(value).__name__}")
        self.fields: dict[str, object] = value
        self.place = place

    def get(self, key: str) -> object:
        if key not in self.fields:
            raise InputError(f"{self.place}: lacks {key!r}")
        return self.fields[key]

    def section(self, key: str) -> Section:
        return Section(self.get(key), f"{self.place}: {key}")

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise InputError(f"{self.place}: {key} must be text, got {type(value).__name__}")
        return " ".join(value.split())

    def texts(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{self.place}: {key} must be a list of texts")
        return [" ".join(item.split()) for item in value]

    def number(self, key: str, low: float = 0.0, high: float = 1e18) -> float:
        return _number(self.get(key), f"{self.place}: {key}", low, high)

    def integer(self, key: str, low: int = 1) -> int:
        value = self.number(key, low, 2**40)
        if value != int(value):
            raise InputError(f"{self.place}: {key} must be a whole number, got {value}")
        return int(value)

    def numbers(self, key: str, size: int | None = None, rising: bool = False) -> Floats:
        return _numbers(self.get(key), f"{self.place}: {key}", size, rising)

    def table(self, key: str, rows: int, columns: int) -> Floats:
        value = self.get(key)
        if not isinstance(value, list) or len(value) != rows:
            raise InputError(f"{self.place}: {key} must have {rows} rows")
        place = f"{self.place}: {key}"
        return np.array([_numbers(row, f"{place}[{i}]", columns, False) for i, row in enumerate(value)])


def _number(value: object, place: str, low: float = 0.0, high: float = 1e18) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{place} must be a number, got {str(value)[:40]!r}")
    if not low <= value <= high:
        raise InputError(f"{place} must be between {low:g} and {high:g}, got {str(value)[:40]}")
    return float(value)


def _numbers(value: object, place: str, size: int | None, rising: bool) -> Floats:
    if not isinstance(value, list) or len(value) < 2 or len(value) > MAX_LIST:
        raise InputError(f"{place} must be a list of 2 to {MAX_LIST} numbers")
    if size is not None and len(value) != size:
        raise InputError(f"{place} must have {size} numbers, got {len(value)}")
    numbers = np.array([_number(item, f"{place}[{i}]") for i, item in enumerate(value)])
    if rising and (numbers[0] < 1 or np.any(np.diff(numbers) <= 0)):
        raise InputError(f"{place} must start at 1 or more and rise")
    return numbers


def read_json(path: Path, what: str) -> Section:
    """Read a JSON object from a file; `what` says in errors what was expected, as in "a profile"."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, not {what}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not {what}: not UTF-8 text ({what} is JSON)") from None
    try:
        return Section(json.loads(text), str(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not {what}: {str(error)[:120]}") from None
