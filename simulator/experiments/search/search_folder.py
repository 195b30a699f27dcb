"""A search on disk.

search.yaml    the search, every default filled in      search.json   the outcome
trials.jsonl   a line per finished trial, at once       results.csv   the same as a table, at the end
report.html    to look at                               winner/       the best point, a scenario of its own
"""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from pathlib import Path

from simulator.config.build import build_machine, profile_path
from simulator.errors import ConfigError, InputError
from simulator.experiments.report_page import (
    Number,
    Section,
    escape,
    figure_html,
    page_html,
    pre_html,
    table_html,
)
from simulator.experiments.run_folder import default_folder
from simulator.experiments.scenario_folder import write_scenario
from simulator.experiments.search.result import Found, shown, words
from simulator.experiments.search.search_file import Search, load_search
from simulator.experiments.search.search_plots import figures
from simulator.experiments.search.trials import Trial, TrialFile

OURS = ("search.json", "trials.jsonl", "results.csv", "report.html")
SHOWN_FAILURES = 20
SHOWN_FRONT = 50

_HOW = {
    "history": "Each mark is a trial; the line is the best so far among those that meet the limits.",
    "volume": "How much of what the final front dominates was dominated after each trial. Flat at the end: "
    "more trials would change little.",
    "pareto": "No point of the front can be improved in one objective without loss in another.",
    "parallel": "A line per complete trial, coloured by its first objective; click the legend to hide some.",
}
_TITLES = {"history": "How it came on", "pareto": "Pareto front", "parallel": "Which values lead where"}


def search_folder(search: Search) -> Path:
    """Return runs/search-<name>-<digest>; more trials of the same search go to the same folder."""
    first = default_folder(search.base)
    return first.with_name(f"search-{first.name.rpartition('-')[0]}-{search.digest()}")


def open_folder(search: Search, folder: Path, *, fresh: bool = False) -> TrialFile:
    """Make a search's folder ready and return its file of trials; InputError if it holds something else."""
    if (folder / "summary.json").exists() or (folder / "compare.json").exists():
        raise InputError(f"{folder}: holds something else; name another folder with -o")
    path = folder / "search.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for name in OURS:
                (folder / name).unlink(missing_ok=True)
        elif path.exists() and (folder / "trials.jsonl").exists() and not _is_same(search, path):
            raise InputError(f"{folder}: holds another search; --fresh begins anew, -o names another folder")
        path.write_text(search.to_yaml(), encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return TrialFile(folder / "trials.jsonl")


def _is_same(search: Search, path: Path) -> bool:
    with suppress(ConfigError):
        return load_search(path).identity() == load_search(search.to_dict()).identity()
    return False


def save_search(found: Found, folder: Path, *, report: bool = True) -> list[Path]:
    """Write the outcome and return the paths; InputError if it cannot be written."""
    scenario = found.scenario
    files = found.policies.files
    for file in files:
        file.must_be_writable()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / "search.json", folder / "results.csv"]
        text = json.dumps(found.to_dict(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        written[0].write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        _write_rows(written[1], found)
        if report:
            written.append(folder / "report.html")
            written[-1].write_text(search_html(found), encoding="utf-8", newline="\n")
        (folder / "winner").mkdir(exist_ok=True)
        profile = profile_path(scenario, build_machine(scenario))
        written.append(write_scenario(scenario, folder / "winner", files=files, profile=profile))
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return written


def _write_rows(path: Path, found: Found) -> None:
    rows = found.rows()
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.DictWriter(
            file, list(dict.fromkeys(k for row in rows for k in row)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows({k: _csv(value) for k, value in row.items()} for row in rows)


def _csv(value: object) -> object:
    if isinstance(value, dict | list | bool):
        return json.dumps(value)
    return value


def search_html(found: Found) -> str:
    """Return the page: the outcome, the pictures, the front, what failed. Same search, same text."""
    search = found.search
    outcome, *rest = found.outcome()
    title = f"{search.base.name}: search for {', '.join(map(str, search.objectives))}"
    lead = f'<h1>{escape(title)}</h1><p class="verdict">{escape(outcome)}</p>'
    lead += "".join(f'<p class="reason">{escape(line)}</p>' for line in [*rest, _chance(search)])
    sections = []
    for name, draw in figures(found).items():
        how = _HOW["volume" if name == "history" and len(search.objectives) > 1 else name]
        sections.append(Section(name, _TITLES[name], figure_html(draw(found), f"search-{name}", how)))
    heading = "Front" if len(search.objectives) > 1 else "Best points"
    sections.append(Section("table", heading, _table(found)))
    failed = [trial for trial in found.trials if not trial.is_complete]
    if failed:
        rows = [[str(t.number), words(t.point), t.error] for t in failed[:SHOWN_FAILURES]]
        sections.append(
            Section("failed", "Failed", table_html(["trial", "point", "error"], rows, _more(failed)))
        )
    sections.append(Section("file", "The search", pre_html(search.to_yaml())))
    return page_html(
        title, lead, sections, f"servetwin, seed {search.base.seed}, sampler's seed {search.seed}"
    )


def _chance(search: Search) -> str:
    n = search.replications
    each = f"the mean of {n} replications, ± its standard error" if n > 1 else "one run of the same requests"
    return (
        f"Every value is {each}. The best of many is lucky as well as good: compare the winner with the base "
        "on other requests before you trust the difference."
    )


def _more(failed: list[Trial]) -> str:
    return f"The first {SHOWN_FAILURES} of {len(failed)}." if len(failed) > SHOWN_FAILURES else ""


def _table(found: Found) -> str:
    """Draw the front, knee marked, or the best points of one objective."""
    search = found.search
    names = search.goals
    if len(search.objectives) > 1 and found.front:
        trials = found.front[:SHOWN_FRONT]
    else:
        costs = found.costs(found.complete)[:, 0]
        meets = {trial.number for trial in found.feasible}
        ranked = sorted(
            zip(costs.tolist(), found.complete, strict=True),
            key=lambda each: (each[1].number not in meets, each[0], each[1].number),
        )
        trials = list({words(trial.point): trial for _, trial in reversed(ranked)}.values())[::-1][
            :SHOWN_FRONT
        ]
    keys = list(search.space)
    rows = [
        [
            f"{trial.number}{' (winner)' if trial is found.winner else ''}",
            *(words({key: trial.point[key]}).partition("=")[2] for key in keys),
            *(Number(shown(trial, name)) for name in names),
            "yes" if trial.is_feasible(search.constraints) else "no",
        ]
        for trial in trials
    ]
    return table_html(["trial", *keys, *names, "within limits"], rows)
