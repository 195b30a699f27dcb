"""Open what a benchmark wrote: one JSON object, or one a line; every complaint names file, line and rule.

Files come from other people's tools: parsed, never executed. A file of lines is read line by line, so that a
million requests need no more memory than their columns. NaN in an aggregate is "no value", as Python's tools
write it; NaN, infinities and texts among measured times are errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from simulator.errors import InputError
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section
from simulator.metrics.tables import Ints

MAX_OBJECT = 2**29  # characters of one object: results with every token's time of some 100,000 requests
MAX_NUMBER = 1e15  # of a time, count or rate; more is no measurement
NUMBERS = {int, float}


def iter_objects(path: Path) -> Iterator[Section]:
    """Yield the objects of a JSON file, or of a file with one on each line; InputError for anything else."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from _objects(path, file)
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _objects(path: Path, file: TextIO) -> Iterator[Section]:
    number = 0
    for number, line in enumerate(_lines(path, file), start=1):
        if not line.strip():
            continue
        if number > 1:
            yield _parsed(line, f"{path}:{number}")
        elif (whole := _object(line)) is not None:
            yield Section(whole, str(path))
        else:
            yield _parsed(line + _rest(path, file), str(path))
            return
    if not number:
        raise InputError(f"{path}: empty")


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    while line := file.readline(MAX_OBJECT + 1):
        _check_size(path, line)
        yield line


def _rest(path: Path, file: TextIO) -> str:
    text = file.read(MAX_OBJECT + 1)
    _check_size(path, text)
    return text


def _check_size(path: Path, text: str) -> None:
    if len(text) > MAX_OBJECT:
        raise InputError(f"{path}: an object of more than {MAX_OBJECT >> 20} MiB, not a benchmark's result")


def _object(line: str) -> dict[str, object] | None:
    """Return the object that a line is, None for the first line of one that was written with breaks."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parsed(text: str, place: str) -> Section:
    try:
        return Section(json.loads(text), place)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {str(error)[:120]}") from None


def number(section: Section, key: str, most: float = MAX_NUMBER) -> float | None:
    """Return a number >= 0, None where it is absent, null or NaN; InputError for anything else."""
    value = section.fields.get(key)
    if value is None or (isinstance(value, float) and value != value):
        return None
    return section.number(key, high=most)


def count(section: Section, key: str) -> int | None:
    """Return a whole number >= 0, None where it is absent or null."""
    value = number(section, key)
    if value is not None and value != int(value):
        raise InputError(f"{section.place}: {key} must be a whole number, got {value:g}")
    return None if value is None else int(value)


def text(section: Section, key: str) -> str | None:
    """Return a text, None where it is absent or no text."""
    value = section.fields.get(key)
    return " ".join(value.split())[:200] if isinstance(value, str) else None


def inner(section: Section, *keys: str) -> Section:
    """Return the object under a path of keys, an empty one where there is none."""
    for key in keys:
        found = section.fields.get(key)
        section = Section(found if isinstance(found, dict) else {}, f"{section.place}: {key}")
    return section


def column(section: Section, key: str, size: int | None = None) -> Floats | None:
    """Return a list of numbers >= 0, None where there is no such list; InputError names the wrong entry."""
    values = section.fields.get(key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise InputError(f"{section.place}: {key} must be a list, got {type(values).__name__}")
    if size is not None and len(values) != size:
        raise InputError(f"{section.place}: {key} has {len(values)} entries for {size} requests")
    return checked(values, f"{section.place}: {key}")


def checked(values: list[object], place: str) -> Floats:
    """Return measured numbers as an array; InputError names the first that is none, or is < 0."""
    if not set(map(type, values)) <= NUMBERS:
        at = next(i for i, value in enumerate(values) if type(value) not in NUMBERS)
        raise InputError(f"{place}[{at}] must be a number, got {str(values[at])[:40]!r}")
    try:
        found = np.array(values, dtype=np.float64)
    except OverflowError:  # an integer of hundreds of digits
        found = np.array([value if abs(value) < MAX_NUMBER else np.inf for value in values])  # type: ignore[arg-type]
    bad = ~((found >= 0) & (found <= MAX_NUMBER))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(f"{place}[{at}] must be between 0 and {MAX_NUMBER:g}, got {str(values[at])[:40]}")
    return found


def whole(values: Floats, place: str) -> Ints:
    """Return counts as whole numbers; InputError names the first that is none."""
    found = values.astype(np.int64)
    if (found != values).any():
        at = int(np.argmax(found != values))
        raise InputError(f"{place}[{at}] must be a whole number, got {values[at]:g}")
    return found
