"""Run the command line: in this process where its words matter, in one of its own where the process does."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from simulator.cli import app, main

MAIN = "from simulator.cli import main; main()"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of an error that a user caused, without the program's name."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("servetwin: "), self.err
        return self.err.removeprefix("servetwin: ").rstrip("\n")


def servetwin(*args: object, commands: Sequence[EntryPoint] = ()) -> Outcome:
    """Run a command in this process, with the sub-commands of other packages that are given."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGINT)
    argv = ["servetwin", *map(str, args)]
    code: object = 0
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", argv),
        patch("simulator.cli.entry_points", return_value=list(commands)),
        patch.object(
            app, "registered_groups", [*app.registered_groups]
        ),  # which main would grow, call by call
    ):
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code or 0
        finally:
            signal.signal(signal.SIGINT, handler)
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def spawn(
    *args: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, code: str = MAIN
) -> Outcome:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
