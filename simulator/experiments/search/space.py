"""What a search may vary: lists of values, and ranges of numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.config.checking import change_keys, plain
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, suggest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGE_KEYS = ("low", "high", "log", "int")


@dataclass(frozen=True)
class Choices:
    """A list of values, of any kind that a scenario key takes. Numbers that rise keep their order."""

    values: tuple[Any, ...]

    @property
    def size(self) -> int | None:
        return len(self.values)

    @property
    def is_ordered(self) -> bool:
        """Whether a value tells something of its neighbours: at least three numbers in order."""
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(self.values) > 2 and numbers == sorted(numbers)

    def distribution(self) -> BaseDistribution:
        """Return what Optuna draws: the index of a value."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        last = len(self.values) - 1
        return IntDistribution(0, last) if self.is_ordered else CategoricalDistribution(range(last + 1))

    def value(self, drawn: Any) -> Any:
        return self.values[drawn]

    def to_plain(self) -> object:
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; `log` spreads them by their logarithm."""

    low: float
    high: float
    log: bool = False
    is_int: bool = False

    @property
    def size(self) -> int | None:
        """How many values there are, None for no end of them."""
        return int(self.high - self.low) + 1 if self.is_int else 1 if self.low == self.high else None

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_int:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def value(self, drawn: Any) -> Any:
        return drawn

    def to_plain(self) -> object:
        return {"low": self.low, "high": self.high, "log": self.log, "int": self.is_int}


Space = dict[str, Choices | Range]


def parse_space(vary: object, base: Scenario, place: str) -> Space:
    """Read `vary`; ConfigError names a key that no scenario has, and a list or range of nothing."""
    if not isinstance(vary, Mapping) or not vary:
        raise ConfigError(f"{place}: vary: write at least one key: [value, ..] or {{low, high}}")
    space: Space = {}
    for key, given in vary.items():
        where = f"{place}: vary.{key}"
        change_keys(Scenario, base.to_dict(), {str(key): None})
        if isinstance(given, Mapping):
            space[str(key)] = _range(given, where)
        elif isinstance(given, list | tuple):
            space[str(key)] = _choices(given, where)
        else:
            raise ConfigError(f"{where}: write [value, ..] or {{low, high, log, int}}, got {given!r:.80}")
    return space


def size(space: Space) -> int | None:
    """Return how many points there are, None for no end of them."""
    sizes = [each.size for each in space.values()]
    return None if None in sizes else math.prod(n for n in sizes if n is not None)


def _choices(given: list[Any] | tuple[Any, ...], where: str) -> Choices:
    values = tuple(plain(each, where) for each in given)
    if not values:
        raise ConfigError(f"{where}: an empty list")
    texts = [json.dumps(value, sort_keys=True) for value in values]
    for i, text in enumerate(texts):
        if text in texts[:i]:
            raise ConfigError(f"{where}: {text[:80]} is given twice")
    return Choices(values)


def _range(given: Mapping[Any, Any], where: str) -> Range:
    for key in given:
        if key not in RANGE_KEYS:
            raise ConfigError(f"{where}: unknown key {key!r:.80}{suggest(key, RANGE_KEYS)}")
    ends = {name: given.get(name) for name in ("low", "high")}
    flags = {name: given.get(name, False) for name in ("log", "int")}
    for name, end in ends.items():
        if not isinstance(end, int | float) or isinstance(end, bool) or not math.isfinite(end):
            raise ConfigError(f"{where}: {name} must be a number, got {end!r:.80}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{where}: {name} must be true or false, got {flag!r:.80}")
    low, high = (float(end) for end in ends.values() if end is not None)
    if low > high:
        raise ConfigError(f"{where}: low ({low:g}) must be <= high ({high:g})")
    if flags["int"] and not (float(low).is_integer() and float(high).is_integer()):
        raise ConfigError(f"{where}: low and high of int: true must be whole, got {low:g} and {high:g}")
    if flags["log"] and low <= 0:
        raise ConfigError(f"{where}: low must be > 0 for log: true, got {low:g}")
    if flags["int"]:
        low, high = int(low), int(high)
    return Range(low, high, flags["log"], flags["int"])
