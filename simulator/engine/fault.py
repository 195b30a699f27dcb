"""The first error of a run, and the step in which it arose."""

from __future__ import annotations

from simulator.errors import note_moment


class FirstFault:
    """Keeps an error as it was raised: what leaves SimPy is a copy, if one can be made."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def note(self, error: BaseException, step: int, now: float) -> None:
        """Keep an error unless there is one, and note its step and time (s) on it."""
        if self.error is None:
            cause = error.__cause__  # no StopIteration leaves a generator as it is
            self.error = cause if isinstance(cause, StopIteration) else error
            note_moment(self.error, step, now)
