"""A long job in parts, on disk as it goes: one file that grows, whatever a part does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_backend.measure.timings_file import write_whole
from simulator.errors import InputError

PASSED, FAILED, MEASURED, SKIPPED = "passed", "failed", "measured", "skipped"
DONE = (PASSED, MEASURED)
SCHEMA = 1

Result = dict[str, object]


class Skip(Exception):
    """Raised by a part that does not apply, or has no time; its text says why."""


@dataclass
class Parts:
    """Results by the name of the part, after `head`. With `resumes`, parts that are done are not run again.

    A result is {"status", "seconds", "told", ...}: `told` is a line for a person. A part that raises is
    failed, with the reason, and the next one runs. `cut` in a result says what time did not allow.
    """

    path: Path
    head: Mapping[str, object]
    resumes: bool = False
    tell: Callable[[str, Result], object] | None = None
    results: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.resumes and self.path.exists():
            self.results = self._kept()
        self.save()

    def run(self, name: str, part: Callable[[], Result]) -> Result:
        """Run a part, write its result, and return it."""
        old = self.results.get(name)
        if old is not None and old["status"] in DONE and not old.get("cut"):
            return old
        began = time.monotonic()
        try:
            result: Result = {"status": MEASURED, **part()}
        except Skip as reason:
            result = {"status": SKIPPED, "told": str(reason)}
        except Exception as error:  # a part may fail in any way, and the others must still run
            result = {"status": FAILED, "told": one_line(error)}
        result["seconds"] = round(time.monotonic() - began, 2)
        self.results[name] = result
        self.save()
        if self.tell is not None:
            self.tell(name, result)
        return result

    @property
    def failed(self) -> list[str]:
        """Names of the parts that failed."""
        return [name for name, result in self.results.items() if result["status"] == FAILED]

    def to_dict(self) -> dict[str, object]:
        return {"schema": SCHEMA, **self.head, "parts": self.results}

    def save(self) -> None:
        write_whole(self.path, json.dumps(self.to_dict(), indent=1, allow_nan=False, default=str) + "\n")

    def _kept(self) -> dict[str, Result]:
        """Read the results of an earlier call; InputError if it was about something else."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            results: dict[str, Result] = found["parts"]
            for name in ("machine", "model", "kernels"):
                if found.get(name) != json.loads(json.dumps(self.head.get(name))):
                    raise InputError(f"{self.path}: is of another {name}; name another folder with -o")
            assert all(result["status"] for result in results.values())
        except (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError):
            raise InputError(f"{self.path}: is not what this command writes; name another folder") from None
        return results


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text, cut to a readable length."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
