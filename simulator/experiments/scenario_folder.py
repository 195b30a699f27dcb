"""A scenario as a folder that holds all it needs: scenario.yaml, the user's policies, perhaps a profile.

A policy file is kept as it was when the run began, a policy given as a Python object as the file that its
source makes. What another user may run is code: every command asks for --trust before it loads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simulator.config.axes import AXES, renamed
from simulator.config.loading import absolute_paths
from simulator.config.policies import PolicyFile, policy_files
from simulator.config.policy_writer import HEADER
from simulator.config.scenario import Scenario


def write_scenario(
    scenario: Scenario,
    folder: Path,
    *,
    files: Iterable[PolicyFile] | None = None,
    profile: Path | None = None,
) -> Path:
    """Write a scenario that runs again from its folder; other paths in it become absolute.

    Policies of the user's, as they are now unless given, are put beside it as files, their sha256 in a
    comment; so is a profile, if given, and the scenario then names it. ConfigError for a policy that cannot
    be written down; nothing is written then.
    """
    files = policy_files(scenario) if files is None else list(files)
    for file in files:
        file.must_be_writable()
    comments = ""
    kept: dict[str, bytes] = {}
    names: dict[str, dict[str, str]] = {}  # by axis and value, what the scenario says in the folder
    for file in files:
        name = _keep(file, folder, kept)
        comments += f"# {name} sha256 {file.sha256}\n"
        names.setdefault(file.axis, {})[file.value] = f"{name}:{file.name}"
    changes = {axis: renamed(AXES[axis].value(scenario), new) for axis, new in names.items()}
    if profile is not None:
        _copy(profile, profile.read_bytes(), folder / profile.name)
        changes["latency.profile"] = profile.name
    path = folder / "scenario.yaml"
    text = absolute_paths(scenario).with_(**changes).to_yaml()
    path.write_text(comments + text, encoding="utf-8", newline="\n")
    return path


def _keep(file: PolicyFile, folder: Path, kept: dict[str, bytes]) -> str:
    """Put a policy into the folder and return its file's name there; another file of that name stays."""
    name = file.path.name
    there = folder / name
    is_others = file.is_object and there.exists() and not there.read_bytes().startswith(HEADER.encode())
    if is_others or kept.get(name, file.content) != file.content:
        name = f"{file.path.stem}-{file.sha256[:8]}.py"
    kept[name] = file.content
    if file.is_object:
        (folder / name).write_bytes(file.content)
    else:
        _copy(file.path, file.content, folder / name)
    return name


def _copy(source: Path, content: bytes, copy: Path) -> None:
    """Write a file's content elsewhere, but never over the file itself."""
    if not (copy.exists() and source.exists() and copy.samefile(source)):
        copy.write_bytes(content)
