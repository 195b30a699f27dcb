"""Cells run as a notebook runs them: in `__main__`, their text where `linecache` finds it."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from types import ModuleType

_numbers = itertools.count(1)


def notebook(*cells: str) -> ModuleType:
    """Run cells one after the other in one namespace; return it."""
    made = ModuleType("__main__")
    for cell in cells:
        run_cell(vars(made), cell)
    return made


def run_cell(space: dict[str, object], cell: str) -> None:
    """Run one more cell."""
    text = textwrap.dedent(cell).lstrip("\n")
    name = f"<cell {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec", dont_inherit=True), space)
