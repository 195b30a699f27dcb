"""Write a profile that the reader has already accepted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import InputError
from simulator.latency.checked_json import Section
from simulator.latency.profile_file import profile_of
from simulator.specs.models import Model


def write_profile(text: str, out: Path, models: Sequence[Model]) -> None:
    """Write a profile, held to the reader's own rules before it replaces anything."""
    for model in models:
        profile_of(Section(json.loads(text), str(out)), model)
    write_text(text, out)


def write_text(text: str, out: Path) -> None:
    """Write a file, and its folder if there is none; InputError if that cannot be."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from None
