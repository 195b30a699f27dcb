"""A run on disk: a folder that every command takes in place of a scenario.

summary.json   vLLM's keys, ours under "servetwin"     scenario.yaml   resolved: runs again as it is
requests.csv   a row per request                       report.html     the same, to look at
by --log: steps.csv, decisions.jsonl, timeline.json.gz (open in Perfetto) with metrics.prom (for Prometheus)
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import cast

import numpy as np

from simulator.config.loading import load_scenario
from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.engine.decisions import Decision, is_decision
from simulator.errors import InputError
from simulator.experiments.metrics_text import write_metrics
from simulator.experiments.report import write_report
from simulator.experiments.scenario_folder import write_scenario
from simulator.experiments.timeline import write_timeline
from simulator.metrics.block import result_block
from simulator.metrics.tables import STATUS, RequestTable, StepTable, columns_of

ACCEPTANCE = "acceptance.csv"
OPTIONAL_FILES = ("report.html", "steps.csv", "decisions.jsonl", "timeline.json.gz", "metrics.prom")


@dataclass
class SavedRun:
    """A run as far as its folder holds it. An imported result has no scenario and may lack its requests."""

    known_scenario: Scenario | None
    summary: dict[str, object]
    requests: RequestTable
    steps: StepTable | None
    decisions: list[Decision] | None
    acceptance: Path | None = None  # log of what a real engine's speculation accepted

    @property
    def scenario(self) -> Scenario:
        """What defines the run; InputError for a result that was measured elsewhere and imported."""
        if self.known_scenario is None:
            source = self.summary["servetwin"]["source"]  # type: ignore[index]  # looked at when it was read
            raise InputError(f"{source}: has no scenario or decisions; only its numbers can be compared")
        return self.known_scenario

    @property
    def is_measured(self) -> bool:
        """Whether a real engine served it in its own time."""
        own = self.summary["servetwin"]
        return isinstance(own, dict) and own.get("clock") == "wall"


def default_folder(scenario: Scenario) -> Path:
    """Return runs/<name>-<digest>, with only plain characters of the name."""
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in scenario.name)[:60].strip(".") or "run"
    return Path("runs") / f"{plain}-{scenario.digest()}"


def save_run(run: Run, folder: Path, *, logs: Iterable[str] = (), report: bool = True) -> list[Path]:
    """Write a run's files and return their paths; the summary comes last and marks the folder as whole.

    Files of an earlier run in the folder are replaced or removed. InputError if it cannot be written, or
    holds a scenario that is no run's.
    """
    summary, policies = folder / "summary.json", run.policies.files
    for policy in policies:
        policy.must_be_writable()
    try:
        clear_folder(folder)
        written = [write_table(folder / "requests.csv", run.requests)]
        written.append(write_scenario(run.scenario, folder, files=policies))
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
            write_timeline(path, run.requests, run.steps, num_blocks=num_blocks(run))
            written.append(path)
            path = folder / "metrics.prom"
            write_metrics(path, run.requests, run.steps, num_blocks=num_blocks(run))
            written.append(path)
        summary.write_text(summary_text(run.summary), encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return [summary, *written]


def refuse_run(folder: Path) -> None:
    """Raise InputError for a folder that holds a run: nothing else is written there."""
    if (folder / "summary.json").exists():
        raise InputError(f"{folder}: holds a run; name another folder with -o")


def writable_folder(folder: Path) -> None:
    """Refuse a folder before minutes of work: InputError if it holds a run or could not be written to.

    Nothing is made: what is tried is the folder, or the nearest one above it that is there.
    """
    refuse_run(folder)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from None


def clear_folder(folder: Path) -> None:
    """Make a run's folder, without files of an earlier run that a new one may not replace.

    InputError if it holds a scenario that is no run's.
    """
    if (folder / "scenario.yaml").exists() and not (folder / "summary.json").exists():
        raise InputError(f"{folder}: holds a scenario.yaml that is no run's; name another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("summary.json", *OPTIONAL_FILES):
        (folder / name).unlink(missing_ok=True)


def num_blocks(run: Run) -> int:
    """Return the KV blocks of a run that can be used, of all its replicas together."""
    found = run.own["usable_blocks"]
    assert isinstance(found, int)
    return found


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
        num_blocks=num_blocks(run),
        slo=slo,
        gaps=run.gaps,
    )
    return path


def summary_text(summary: dict[str, object]) -> str:
    """Return a summary as strict JSON, the same bytes for the same run."""
    text = json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace").decode()  # half a character may come from a file's name


def write_table(path: Path, table: RequestTable | StepTable) -> Path:
    """Write a table as csv: floats with all their digits, an empty field where there is no value.

    What cannot be printed, which a trace's ids may hold, is written as Python's escape of it.
    """
    names = columns_of(table)
    columns = [_texts(name, getattr(table, name)) for name in names]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(zip(*columns, strict=True))
    return path


def printable(text: str) -> str:
    """Return a text as the files of a run have it: what cannot be printed as Python's escape of it."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _texts(name: str, column: object) -> list[object]:
    if isinstance(column, list):
        return list(map(printable, column))
    assert isinstance(column, np.ndarray)
    if name == "status":
        return [STATUS[code] for code in column]
    return ["" if value != value else value for value in column.tolist()]


def load_run(folder: str | Path) -> SavedRun:
    """Read a run folder; InputError names the file that is missing or unusable."""
    folder = Path(folder)
    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder}: not a run folder (it has no summary.json)")
    steps, summary = folder / "steps.csv", read_summary(folder / "summary.json")
    is_imported = isinstance(summary["servetwin"].get("imported"), dict)  # type: ignore[attr-defined]
    has = {name: not is_imported or (folder / name).is_file() for name in ("scenario.yaml", "requests.csv")}
    return SavedRun(
        load_scenario(folder) if has["scenario.yaml"] else None,
        summary,
        read_requests(folder / "requests.csv") if has["requests.csv"] else no_requests(),
        StepTable(**_read_table(steps, StepTable)) if steps.is_file() else None,  # type: ignore[arg-type]
        _read_decisions(folder / "decisions.jsonl"),
        acceptance if (acceptance := folder / ACCEPTANCE).is_file() else None,
    )


def read_requests(path: Path) -> RequestTable:
    """Read requests.csv; a count that nobody noted is NaN."""
    return RequestTable(**_read_table(path, RequestTable))  # type: ignore[arg-type]


def no_requests() -> RequestTable:
    """Return the table of a result that lists none."""
    none = np.zeros(0, np.int64)
    times = (np.zeros(0),) * 3
    return RequestTable([], np.zeros(0), none, none, none, [], *times, none, none, none, [])


def read_summary(path: Path) -> dict[str, object]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(summary, dict) or not isinstance(summary.get("servetwin"), dict):
        raise InputError(f"{path}: not the summary of a run (it has no object 'servetwin')")
    return summary


def _read_decisions(path: Path) -> list[Decision] | None:
    if not path.is_file():
        return None
    decisions = []
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            decision = json.loads(line)
            if not is_decision(decision):
                raise InputError(f"{path}, line {number}: not a decision")
            for key in ("chunks", "moves"):
                if key in decision:
                    decision[key] = [tuple(each) for each in decision[key]]
            decisions.append(cast("Decision", decision))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    return decisions


def _read_table(path: Path, kind: type[RequestTable | StepTable]) -> dict[str, object]:
    types = {field.name: str(field.type) for field in fields(kind)}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        if header not in (list(types), [name for name in types if name != "replica"]):
            raise InputError(f"{path}: its columns are not {', '.join(types)}")
        columns = list(zip(*rows, strict=True)) or [()] * len(header)
        return {name: _parse(name, types[name], column) for name, column in zip(header, columns, strict=True)}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, csv.Error) as error:
        raise InputError(f"{path}: {error}") from None


def _parse(name: str, kind: str, column: tuple[str, ...]) -> object:
    if name == "status":
        codes = {text: code for code, text in enumerate(STATUS)}
        return np.array([codes[text] for text in column], dtype=np.int64)
    if kind == "list[str]":
        return list(column)
    if kind == "Ints" and "" not in column:
        return np.array([int(text) for text in column], dtype=np.int64)
    return np.array([float(text or "nan") for text in column])
