"""Lines of a trace file, plain or compressed, with bounded memory."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from simulator.errors import InputError

MAX_LINE = 10 * 1024 * 1024  # bytes; the longest line of the public traces has 4 MiB


def read_lines(path: Path, too_long: Callable[[int], None] = lambda line: None) -> Iterator[str]:
    """Yield each line as text; `.gz` and `.xz` are decompressed on the way.

    A line over 10 MiB is yielded empty and told to `too_long` by its number, without being held.
    Bytes that are not UTF-8 become replacement characters.
    """
    try:
        with _open(path) as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    while line and not line.endswith(b"\n"):
                        line = file.readline(MAX_LINE)
                    too_long(number)
                    line = b"\n"
                yield line.decode("utf-8-sig" if number == 1 else "utf-8", "replace")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path}: cannot be read: {reason}") from error


def first_line(path: Path) -> str:
    """Return the first line that is not blank, or ""."""
    return next((line.strip() for line in read_lines(path) if line.strip()), "")


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return BufferedReader(gzip.open(path))
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")
