"""The folder that a search for capacity leaves: capacity.json, report.html, winner/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simulator.config.build import Machine, Policies, profile_path
from simulator.config.scenario import Scenario
from simulator.errors import InputError
from simulator.experiments.run_folder import refuse_run
from simulator.experiments.scenario_folder import write_scenario


class Won(NamedTuple):
    """The scenario that winner/ holds, and what it ran with."""

    scenario: Scenario
    policies: Policies
    machine: Machine


def write_capacity(
    folder: Path, json_text: str, page: Callable[[], str] | None, won: Won | None = None
) -> list[Path]:
    """Write the files and return their paths; InputError if it cannot be, or if the folder holds a run."""
    refuse_run(folder)
    files = [] if won is None else list(won.policies.files)
    for file in files:
        file.must_be_writable()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        contents = {"capacity.json": json_text}
        if page is not None:
            contents["report.html"] = page()
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")
        written = [folder / name for name in contents]
        (folder / "winner" / "scenario.yaml").unlink(missing_ok=True)
        if won is not None:
            (folder / "winner").mkdir(exist_ok=True)
            profile = profile_path(won.scenario, won.machine)
            written.append(write_scenario(won.scenario, folder / "winner", files=files, profile=profile))
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return written
