"""A run on disk: a folder that every command takes in place of a scenario.

summary.json   vLLM's keys, ours under "servetwin"     scenario.yaml   resolved: runs again as it is
requests.csv   a row per request                       report.html     the same, to look at
by --log: steps.csv, decisions.jsonl, timeline.json.gz (open in Perfetto)
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from simulator.config.loading import load_scenario
from simulator.config.policies import PolicyFile, is_file_policy, policy_file
from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.engine.decisions import Decision
from simulator.errors import InputError
from simulator.experiments.report import write_report
from simulator.experiments.timeline import write_timeline
from simulator.metrics.block import result_block
from simulator.metrics.tables import STATUS, RequestTable, StepTable

LOGS = ("steps", "decisions", "timeline")
POLICY_AXES = ("batching", "order", "victim")


@dataclass
class SavedRun:
    """A run as far as its folder holds it."""

    scenario: Scenario
    summary: dict[str, object]
    requests: RequestTable
    steps: StepTable | None
    decisions: list[Decision] | None


def default_folder(scenario: Scenario) -> Path:
    """Return runs/<name>-<digest>, with only plain characters of the name."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in scenario.name)[:60].strip(".") or "run"
    return Path("runs") / f"{plain}-{scenario.digest()}"


def save_run(run: Run, folder: Path, *, logs: Iterable[str] = (), report: bool = True) -> list[Path]:
    """Write a run's files and return their paths; InputError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [_write_summary(run, folder), write_table(folder / "requests.csv", run.requests)]
        written.append(_write_scenario(run.scenario, folder))
        if report:
            written.append(write_run_report(run, folder / "report.html"))
        if "steps" in logs:
            written.append(write_table(folder / "steps.csv", run.steps))
        if "decisions" in logs and run.log is not None:
            with (folder / "decisions.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                run.log.write(file)
            written.append(folder / "decisions.jsonl")
        if "timeline" in logs:
            path = folder / "timeline.json.gz"
            write_timeline(path, run.requests, run.steps, num_blocks=run.machine.kv.usable_blocks)
            written.append(path)
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return written


def write_run_report(run: Run, path: Path) -> Path:
    """Write the report of a run."""
    slo = run.own["slo"]
    assert isinstance(slo, dict)
    write_report(
        path,
        title=run.scenario.name,
        summary=run.summary,
        block=result_block(run.summary),
        requests=run.requests,
        steps=run.steps,
        num_blocks=run.machine.kv.usable_blocks,
        slo=slo,
    )
    return path


def summary_text(summary: dict[str, object]) -> str:
    """Return a summary as strict JSON, the same bytes for the same run."""
    return json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _write_summary(run: Run, folder: Path) -> Path:
    path = folder / "summary.json"
    path.write_text(summary_text(run.summary), encoding="utf-8", newline="\n")
    return path


def _write_scenario(scenario: Scenario, folder: Path) -> Path:
    """Write the resolved scenario; policy files are copied beside it, their sha256 in a comment."""
    files: list[PolicyFile] = []
    for axis in POLICY_AXES:
        value = getattr(scenario.scheduler, axis)
        if is_file_policy(value):
            files.append(policy_file(value, f"scheduler.{axis}"))
    for file in files:
        if not (folder / file.path.name).exists() or not file.path.samefile(folder / file.path.name):
            shutil.copyfile(file.path, folder / file.path.name)
        scenario = scenario.with_(**{file.axis: f"{file.path.name}:{file.name}"})
    comments = "".join(f"# {file.path.name} sha256 {file.sha256}\n" for file in files)
    path = folder / "scenario.yaml"
    path.write_text(comments + scenario.to_yaml(), encoding="utf-8", newline="\n")
    return path


def write_table(path: Path, table: RequestTable | StepTable) -> Path:
    """Write a table as csv: floats with all their digits, an empty field where there is no value."""
    names = [field.name for field in fields(table)]
    columns = [_texts(name, getattr(table, name)) for name in names]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(zip(*columns, strict=True))
    return path


def _texts(name: str, column: object) -> list[object]:
    if isinstance(column, list):
        return column
    assert isinstance(column, np.ndarray)
    if name == "status":
        return [STATUS[code] for code in column]
    return ["" if value != value else value for value in column.tolist()]


def load_run(folder: str | Path) -> SavedRun:
    """Read a run folder; InputError names the file that is missing or unusable."""
    folder = Path(folder)
    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder}: not a run folder (it has no summary.json)")
    summary = _read_json(folder / "summary.json")
    if not isinstance(summary, dict):
        raise InputError(f"{folder / 'summary.json'}: not a JSON object")
    decisions = None
    if (folder / "decisions.jsonl").is_file():
        text = (folder / "decisions.jsonl").read_text(encoding="utf-8")
        decisions = [json.loads(line) for line in text.splitlines()]
    steps = folder / "steps.csv"
    return SavedRun(
        load_scenario(folder),
        summary,
        RequestTable(**_read_table(folder / "requests.csv", RequestTable)),  # type: ignore[arg-type]
        StepTable(**_read_table(steps, StepTable)) if steps.is_file() else None,  # type: ignore[arg-type]
        decisions,
    )


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


def _read_table(path: Path, kind: type[RequestTable | StepTable]) -> dict[str, object]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    names = [field.name for field in fields(kind)]
    if not rows or rows[0] != names:
        raise InputError(f"{path}: its columns are not {', '.join(names)}")
    columns = list(zip(*rows[1:], strict=True)) or [()] * len(names)
    types = {field.name: str(field.type) for field in fields(kind)}
    try:
        return {name: _parse(name, types[name], column) for name, column in zip(names, columns, strict=True)}
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _parse(name: str, kind: str, column: tuple[str, ...]) -> object:
    if name == "status":
        return np.array([STATUS.index(text) for text in column], dtype=np.int64)
    if kind == "list[str]":
        return list(column)
    if kind == "Ints":
        return np.array([int(text) for text in column], dtype=np.int64)
    return np.array([float(text or "nan") for text in column])
