"""Show how far long work has come: a bar in a terminal or notebook, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from tqdm.auto import tqdm

QUIET_SECONDS = 10.0


class ProgressBar:
    """Call it with (done, total); it appears only if the work takes longer than a second."""

    def __init__(self, label: str, unit: str = "req", stream: TextIO | None = None) -> None:
        self.label = label
        self.unit = unit
        self.stream = stream or sys.stderr
        self.note = ""  # what to say besides, such as the best so far
        self._bar: tqdm[NoReturn] | None = None
        self._start = time.monotonic()
        self._next_line = self._start + QUIET_SECONDS

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def noted(self, done: int, total: int, note: str) -> None:
        """Show how far the work is and a word about it."""
        self.note = note
        self(done, total)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._start < 1.0:
            return
        if self.stream.isatty() or "ipykernel" in sys.modules:
            if self._bar is None:
                from tqdm.auto import tqdm

                self._bar = tqdm(total=total, desc=self.label, unit=self.unit, leave=False, file=self.stream)
            if self.note:
                self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(done - self._bar.n)
        elif now >= self._next_line and done:
            left = (now - self._start) / done * (total - done)
            note = f", {self.note}" if self.note else ""
            print(
                f"{self.label}: {done:,} of {total:,} {self.unit}{note}, about {left:.0f} s left",
                file=self.stream,
            )
            self._next_line = now + QUIET_SECONDS
