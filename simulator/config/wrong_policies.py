"""Tell what is wrong with a user's policy in one line: which axis, which policy, which line, which step.

The traceback says where an error arose: in a policy's own code, known by its file or by its code objects, or
in ours, which then was given something it cannot use. The error itself stays the cause of the one told.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from simulator.config.axes import AXES, names_in
from simulator.config.policy_code import codes_of
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, Interrupted, SimulatorError, StallError, moment_of

_KEEPERS = ("scheduler.batching", "kv.eviction")  # axes whose policies hold blocks
_OURS = Path(__file__).parents[1]
MAX_TEXT = 300
"""Characters of a user's own error message that are shown."""


class Suspect(NamedTuple):
    """A policy of the user's that is in force: code in a file, or a Python object."""

    axis: str
    name: str
    file: str  # of its code; "" where there is none
    codes: frozenset[CodeType] = frozenset()  # of an object

    def __str__(self) -> str:
        return f"{self.axis}: {self.name}" + (f" ({self.file})" if self.file else "")

    def owns(self, code: CodeType) -> bool:
        """Say whether running this code is a call of the policy."""
        if self.codes:
            return code in self.codes
        return code.co_filename == self.file and code.co_qualname.partition(".")[0] == self.name


def object_suspect(axis: str, name: str, policy: object) -> Suspect:
    """Return a Python object as a suspect."""
    codes = frozenset(codes_of(policy))
    files = sorted({code.co_filename for code in codes if Path(code.co_filename).is_file()})
    return Suspect(axis, name, files[0] if files else "", codes)


@contextmanager
def blaming(suspects: Sequence[Suspect], scenario: Scenario | None = None) -> Iterator[None]:
    """Turn an error in a run with policies of the user's into a ConfigError that names policy, line and step.

    Where all policies together get nowhere, it names those of the scenario. What a policy file prints
    meanwhile goes to stderr.
    """
    has_files = any(not each.codes for each in suspects)
    try:
        with redirect_stdout(sys.stderr) if has_files else nullcontext():
            yield
    except SimulatorError as error:
        when = moment_of(error)
        if not when:
            raise
        who = f" ({policies_in_force(scenario)})" if scenario and isinstance(error, StallError) else ""
        raise type(error)(f"{error}{who} {when}") from error
    except (Exception, SystemExit) as error:  # a user's policy may fail in any way
        if not suspects or isinstance(error, Interrupted):
            raise
        raise ConfigError(f"{blamed(error, suspects)} {moment_of(error)}".rstrip()) from error


@contextmanager
def searching(suspects: Sequence[Suspect], checked: Callable[[], None]) -> Iterator[None]:
    """Name the step after which blocks and sequences no longer add up, if a batching class is wrong there.

    Such an error may show long after it was made. Runs are deterministic: `checked` makes the run again and
    looks after every step.
    """
    keepers = [each for each in suspects if each.axis in _KEEPERS]
    try:
        yield
    except SimulatorError:
        raise
    except Exception as error:
        if not keepers or not _is_ours(error):
            raise
        try:
            checked()
        except AssertionError as first:
            who = ", ".join(map(str, keepers))
            what = f"{who}: blocks and sequences do not add up ({first}) {moment_of(first)}".rstrip()
            raise ConfigError(what) from error
        except Exception:  # the same error: the books were in order until then
            raise error from error.__cause__
        raise ConfigError(
            f"{', '.join(map(str, keepers))}: {what_of(error)} {moment_of(error)}".rstrip()
            + "; taken step by step the run is in order, so steady_steps promises too much"
        ) from error


def _is_ours(error: BaseException) -> bool:
    """Say whether an error arose in our own code, which trusts what policies tell it."""
    code = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return Path(code.co_filename).is_relative_to(_OURS)


def blamed(error: BaseException, suspects: Sequence[Suspect]) -> str:
    """Say which policy an error arose in and at which line, or which ones cannot be used."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = {each.file for each in suspects} | {c.co_filename for each in suspects for c in each.codes}
    where = place_of(error, files)
    for code in reversed(codes):
        for each in suspects:
            if each.owns(code):
                return f"{each.axis}: {each.name} ({where}): {what_of(error)}"
    if where and len(suspects) == 1:
        return f"{suspects[0].axis}: {suspects[0].name} ({where}): {what_of(error)}"
    if where:
        return f"{where}: {what_of(error)}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{', '.join(map(str, suspects))} cannot be used: {what_of(error)} "
        f"(at {Path(last.filename).name}:{last.lineno})"
    )


def policies_in_force(scenario: Scenario) -> str:
    """Name the policies of a scenario by axis.

    >>> policies_in_force(Scenario())
    'batching chunked, order fcfs, eviction lru'
    """
    named = {axis.name: ", ".join(names_in(axis.value(scenario))) for axis in AXES.values()}
    return ", ".join(f"{axis} {names}" for axis, names in named.items() if names)


def place_of(error: BaseException, files: set[str]) -> str:
    """Return file:line of the innermost call in these files; of a notebook's cell, only the line."""
    if isinstance(error, SyntaxError) and error.lineno is not None and error.filename in files:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return ""
    file, line = frames[-1].filename, frames[-1].lineno
    return f"{file}:{line}" if Path(file).is_file() else f"line {line}"


def what_of(error: BaseException) -> str:
    """Return an error's type and text in one line of bearable length."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{kind}: {error.msg}"
    try:
        text = " ".join(str(error).split())
    except Exception:  # a user's error may not even be printable
        text = "(its text cannot be shown)"
    return f"{kind}: {text[: MAX_TEXT - 3]}..." if len(text) > MAX_TEXT else f"{kind}: {text}"
