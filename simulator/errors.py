"""Errors that a caller may want to catch.

SimulatorError
+-- ConfigError      a scenario, flag or policy that cannot be used; the command line exits with 2
+-- InputError       a file from outside that cannot be read; names file, line and field; exits with 2
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SimulatorError(Exception):
    """Base of all errors raised on purpose. Its text is one line a user can act on."""


class ConfigError(SimulatorError):
    """A scenario, flag or policy that cannot be used."""


class InputError(SimulatorError):
    """A file from outside that cannot be read."""


def suggest(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean x?" for a near name, else the known names.

    >>> suggest("fcsf", ["fcfs", "priority"])
    '; did you mean fcfs?'
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"
