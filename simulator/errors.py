"""Errors that a caller may want to catch.

SimulatorError
+-- ConfigError      a scenario, flag or policy that cannot be used; the command line exits with 2
+-- StallError       policies that make no progress; exits with 2
+-- InputError       a file from outside that cannot be read; names file, line and field; exits with 2
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress


class SimulatorError(Exception):
    """Base of all errors raised on purpose. Its text is one line a user can act on."""


class ConfigError(SimulatorError):
    """A scenario, flag or policy that cannot be used."""


class StallError(SimulatorError):
    """Policies that compute for ever without a token to show for it."""


class InputError(SimulatorError):
    """A file from outside that cannot be read."""


class Interrupted(SystemExit):
    """The user stopped the command; a SystemExit of any other kind may be a policy's doing."""


def suggest(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean x?" for a near name, else the known names.

    >>> suggest("fcsf", ["fcfs", "priority"])
    '; did you mean fcfs?'
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def note_moment(error: BaseException, step: int, now: float) -> None:
    """Note on an error in which step of a run, and when (s), it arose."""
    with suppress(Exception):  # a user's error may allow no notes
        error.add_note(f"in step {step} at {now:.3f} s")


def moment_of(error: BaseException) -> str:
    """Return what `note_moment` noted, empty if nothing.

    >>> error = ValueError(); note_moment(error, 17, 0.5321); moment_of(error)
    'in step 17 at 0.532 s'
    """
    notes = getattr(error, "__notes__", [])
    return next((note for note in notes if str(note).startswith("in step ")), "")
