"""Typed access to the fields of a JSON object from outside, with errors that name file, field and value.

`null` counts as absent, as transformers has it. Nothing is converted: a number in quotes is an error.
"""

from __future__ import annotations

from simulator.errors import InputError

LARGEST = 10**9  # more than any dimension of any model


class Fields:
    """One JSON object. `where` names it in messages, `owner` says what needs its fields."""

    def __init__(self, content: dict[str, object], where: str) -> None:
        self.content = content
        self.where = where
        self.owner = ""

    def count(self, *names: str, most: int = LARGEST) -> int:
        """Return the first of these fields that is there, a whole number from 1 to `most`."""
        value = self.maybe_count(*names, most=most)
        if value is None:
            other = f" (or {', '.join(names[1:])})" if names[1:] else ""
            need = f", which {self.owner} needs" if self.owner else ""
            raise InputError(f"{self.where}: {names[0]}{other} is missing{need}")
        return value

    def maybe_count(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """Return the first of these fields that is there, a whole number in this range; None if none is."""
        name, value = self._first(names)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, value, f"a whole number from {least} to {most:,}")
        return value

    def maybe_number(self, name: str) -> float | None:
        """Return a number above 0, None if there is none."""
        _, value = self._first((name,))
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < LARGEST**2:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def number(self, name: str) -> float:
        """Return a number above 0 that must be there."""
        value = self.maybe_number(name)
        if value is None:
            raise InputError(f"{self.where}: {name} is missing")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        _, value = self._first((name,))
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, *names: str) -> str | None:
        """Return the first of these fields that is there, a short text."""
        name, value = self._first(names)
        if value is not None and not (isinstance(value, str) and len(value) <= 100 and value.isprintable()):
            raise self._wrong(name, value, "a short text")
        return value

    def items(self, name: str) -> list[object]:
        """Return a list, empty if absent."""
        _, value = self._first((name,))
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(item, (list, dict)) for item in value):
            raise self._wrong(name, value, "a list of texts or numbers")
        return value

    def nested(self, name: str) -> Fields | None:
        """Return the object under this name."""
        _, value = self._first((name,))
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(value, f"{self.where}: {name}")

    def _first(self, names: tuple[str, ...]) -> tuple[str, object]:
        return next(
            ((name, self.content[name]) for name in names if self.content.get(name) is not None),
            (names[0], None),
        )

    def _wrong(self, name: str, value: object, rule: str) -> InputError:
        shown = repr(value) if isinstance(value, (int, float, bool)) else repr(str(value)[:40])
        return InputError(f"{self.where}: {name} must be {rule}, got {shown[:60]}")
