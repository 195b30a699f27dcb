"""Turn a measured result into a run folder: vLLM's keys, requests where the file has them, no decisions.

What a file states is taken as it is. What it lacks but its requests give is computed by vLLM's definitions
and named in servetwin.imported.derived; all else is null. Our own summary.json comes back as it was, with the
mark that it was imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib.metadata import version
from pathlib import Path

import numpy as np

from simulator.config.loading import load_scenario
from simulator.errors import ConfigError, InputError
from simulator.experiments.run_folder import (
    clear_folder,
    read_requests,
    read_summary,
    summary_text,
    write_table,
)
from simulator.experiments.scenario_folder import write_scenario
from simulator.experiments.server.measured_rows import MeasuredRows, Told
from simulator.experiments.server.recognise import OWN, open_result, read_objects
from simulator.latency.checked_json import Section
from simulator.metrics.summary import counts, summarize
from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable, StepTable

HEADER = (
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
)
RANKS = [50.0, 90.0, 95.0, 99.0]
NEVER_DERIVED = (
    "max_output_tokens_per_s",
    "rtfx",
    "request_goodput",
)  # need each token's time, audio, an SLO
OF_TOKENS = ("_ttft_ms", "_tpot_ms")


class Imported:
    """A summary as a run has it, its requests if there are any, and our scenario if it was ours."""

    def __init__(
        self,
        summary: dict[str, object],
        requests: RequestTable | None = None,
        scenario: dict[str, object] | None = None,
    ) -> None:
        self.summary = summary
        self.requests = requests
        self.scenario = scenario

    @property
    def own(self) -> dict[str, object]:
        """Our part of the summary."""
        own = self.summary["servetwin"]
        assert isinstance(own, dict), "looked at when it was read"
        return own


def read_imported(path: Path, source: str = "auto") -> Iterator[Imported]:
    """Yield every result of a file; InputError names what cannot be read, ConfigError an unknown source."""
    name, objects = open_result(path, source)
    if name == OWN:
        yield _own_summary(next(objects), path)
        return
    for told in read_objects(path, name, objects):
        found = imported(told)
        if all(found.summary[key] is None for key in _template()):
            raise InputError(f"{path}: holds no number of a {name} result; see --source")
        yield found


def imported(told: Told) -> Imported:
    """Return a result with what its requests give beside what it states."""
    rows = told.rows
    stated = {key: value for key, value in told.stated.items() if value is not None}
    is_complete = rows is not None and told.is_complete
    if is_complete and rows is not None and "completed" in stated:
        is_complete = stated["completed"] == int((rows.status == COMPLETED).sum())
    derived = _derived(rows, stated) if rows is not None and is_complete else {}
    summary: dict[str, object] = dict.fromkeys((*HEADER, *_template()))
    summary |= derived | stated
    names = sorted(key for key, value in derived.items() if value is not None and key not in stated)
    summary["servetwin"] = _own_part(told, rows, summary, names)
    return Imported(summary, rows.table() if rows is not None and rows.has_times else None)


def _template() -> dict[str, object]:
    """Return the keys of a summary, in their order."""
    nothing = MeasuredRows([], *(np.zeros(0),) * 5, np.zeros(0, np.int64), [])  # type: ignore[arg-type]
    return summarize(nothing.table(), _no_steps(), _no_gaps(), ranks=RANKS)


def _derived(rows: MeasuredRows, stated: dict[str, object]) -> dict[str, object]:
    """Compute what the requests give, by vLLM's definitions; throughputs over the stated duration."""
    table, done = rows.table(), rows.status == COMPLETED
    gaps = _no_gaps() if rows.gaps is None else (rows.gaps, np.ones(len(rows.gaps), np.int64))
    found = summarize(table, _no_steps(), gaps, ranks=RANKS)
    found |= dict.fromkeys(NEVER_DERIVED)
    if np.isnan(rows.ttft[done]).any():
        found |= {key: None for key in found if key.endswith(OF_TOKENS)}
    if np.isnan(rows.e2e[done]).any():
        found |= {key: None for key in found if key.endswith(("_tpot_ms", "_e2el_ms"))}
    if not rows.has_times:
        found |= dict.fromkeys(("duration", "max_concurrent_requests"))
    duration = stated.get("duration", found["duration"])
    amounts = {
        "request_throughput": int(done.sum()),
        "output_throughput": int(rows.num_output[done].sum()),
        "total_token_throughput": int((rows.num_prompt + rows.num_output)[done].sum()),
    }
    for name, amount in amounts.items():
        found[name] = amount / duration if isinstance(duration, float) and duration > 0 else None
    return found | {"num_prompts": len(rows)}


def _own_part(
    told: Told, rows: MeasuredRows | None, summary: dict[str, object], derived: list[str]
) -> dict[str, object]:
    """Return what a run says of itself, as far as it is known of a measured one."""
    file = Path(told.file).name
    tally: dict[str, object] = dict.fromkeys(("injected", "completed", "rejected", "aborted", "unfinished"))
    if rows is not None and told.is_complete:
        tally |= counts(rows.table())
    notes = [*told.notes, "measured elsewhere: no decisions, steps or scenario of it are known"]
    return {
        "version": None,
        "seed": None,
        "source": f"imported: {told.tool}, {file}",
        "provenance": f"measured by {told.tool}",
        "profile_error": None,
        "extrapolated_share": None,
        "clock": "wall",
        "backend": told.backend,
        "imported": {
            "tool": told.tool,
            "file": file,
            "by": f"servetwin {version('servetwin')}",
            "derived": derived,
            "missing": sorted(key for key, value in summary.items() if value is None and key.endswith("_ms")),
        },
        "slo": {},
        "attainment": None,
        **tally,
        "num_preemptions": None,
        "prefix_hit_rate": None,
        "kv_usage_mean": None,
        "verdict": None,
        "notes": notes,
        "scenario": None,
    }


def _own_summary(result: Section, path: Path) -> Imported:
    """Take a summary of ours as it is: every number, the scenario, and the requests if they lie beside it."""
    summary = read_summary(path)
    own = summary["servetwin"]
    assert isinstance(own, dict), "recognised by it"
    mark = {"tool": "servetwin", "file": path.name, "by": f"servetwin {version('servetwin')}"}
    if not isinstance(own.get("imported"), dict):
        summary["servetwin"] = own | {"imported": mark}
    try:
        json.dumps(summary, allow_nan=False)
    except ValueError:
        raise InputError(f"{path}: holds NaN or an infinity, which no summary of ours does") from None
    requests, scenario = path.with_name("requests.csv"), own.get("scenario")
    if scenario is not None and not isinstance(scenario, dict):
        raise InputError(f"{path}: servetwin.scenario must be an object, got {type(scenario).__name__}")
    return Imported(summary, read_requests(requests) if requests.is_file() else None, scenario)


def save_imported(found: Imported, folder: Path) -> list[Path]:
    """Write an imported result as a run folder; files of an earlier run there are replaced or removed.

    InputError if the folder cannot be written or holds a scenario that is no run's.
    """
    scenario = None if found.scenario is None else load_scenario(found.scenario)
    try:
        clear_folder(folder)
        for name in ("scenario.yaml", "requests.csv"):
            (folder / name).unlink(missing_ok=True)
        written = [] if found.requests is None else [write_table(folder / "requests.csv", found.requests)]
        if scenario is not None:
            try:
                written.append(write_scenario(scenario, folder))
            except ConfigError as error:  # a policy file that is not here: the numbers still are
                found.own["imported"] = {**_mark(found), "scenario": f"not kept: {error}"}
        path = folder / "summary.json"
        path.write_text(summary_text(found.summary), encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return [path, *written]


def _mark(found: Imported) -> dict[str, object]:
    mark = found.own["imported"]
    return dict(mark) if isinstance(mark, dict) else {}


def _no_gaps() -> tuple[Floats, Ints]:
    return np.zeros(0), np.zeros(0, np.int64)


def _no_steps() -> StepTable:
    needed = [each.name for each in fields(StepTable) if each.default_factory is MISSING]
    return StepTable(**{name: np.zeros(0, np.int64) for name in needed})  # type: ignore[arg-type]
