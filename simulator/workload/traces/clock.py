"""Time stamps of a trace, as whole nanoseconds.

Whole, because a float cannot hold an epoch in nanoseconds: near 1.7e18 doubles are 256 apart. A file has
one clock; numbers have a unit that somebody named.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation

from simulator.errors import InputError

UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # ns
MAX_EXPONENT = 18  # of ten: an epoch in ns
UNIT_SLIP = 9  # powers of ten between s and ns: so much above, a stamp has another unit; beyond, it is none

_EPOCH = datetime(1970, 1, 1)
_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?\s*(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?", re.ASCII
)


class Unreadable(Exception):
    """A value of a row that cannot be used; its text is the reason that is counted."""


class Clock:
    """Reads the stamps of one file, which must all be of one kind.

    `unit` is that of numeric stamps; without one, only text such as 2023-11-16 18:17:03.9799600 will do.
    """

    def __init__(self, source: str, unit: str | None) -> None:
        self.source = source
        self.unit = unit
        self._kind = ""

    def read(self, value: object, line: int) -> int:
        """Return the stamp in ns; raises Unreadable for a value that is no time at all."""
        if value is None or value == "":
            raise Unreadable("arrival is missing")
        text = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        kind = "a number" if text is None else "text with an offset" if text[4] or text[5] else "text"
        ns = self._number(value, line) if text is None else _from_text(text)
        if kind != self._kind:
            if self._kind:
                raise InputError(
                    f"{self.source}, line {line}: two clocks in one file: arrival {value} is {kind}, "
                    f"the rows before are {self._kind}"
                )
            self._kind = kind
        return ns

    def _number(self, value: object, line: int) -> int:
        try:
            number = value if isinstance(value, int | Decimal) else Decimal(str(value).strip())
        except InvalidOperation:
            raise Unreadable("arrival is no time") from None
        if isinstance(number, Decimal) and not number.is_finite():
            raise Unreadable("arrival is not finite")
        if self.unit is None:
            raise InputError(
                f"{self.source}, line {line}: arrival {value} is a number without a unit; "
                "give --time-unit s|ms|us|ns"
            )
        factor = UNITS[self.unit]
        digits = len(str(abs(number))) - 1 if isinstance(number, int) else number.adjusted()
        excess = digits + len(str(factor)) - 1 - MAX_EXPONENT
        if excess > UNIT_SLIP:
            raise Unreadable("arrival is out of range")
        if excess > 0:
            raise InputError(
                f"{self.source}, line {line}: arrival {value} {self.unit} is no date: "
                "two clocks in one file, or a wrong time unit"
            )
        return number * factor if isinstance(number, int) else round(number * factor)


def _from_text(text: re.Match[str]) -> int:
    try:
        since = datetime.fromisoformat(f"{text[1]} {text[2]}") - _EPOCH
    except ValueError:
        raise Unreadable("arrival is no time") from None
    if text[5]:
        offset = timedelta(hours=int(text[6]), minutes=int(text[7]))
        since += -offset if text[5] == "+" else offset
    fraction = int((text[3] or "0")[:9].ljust(9, "0"))
    return (since.days * 86_400 + since.seconds) * UNITS["s"] + fraction
