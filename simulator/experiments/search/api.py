"""`simulator.search`, and the search in a folder that it and the command are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulator.config.build import Policies
from simulator.errors import InputError
from simulator.experiments.progress import ProgressBar
from simulator.experiments.search.result import Found
from simulator.experiments.search.search import Report, run_search
from simulator.experiments.search.search_file import Search, load_search
from simulator.experiments.search.search_folder import open_folder, save_search
from simulator.experiments.search.search_result import SearchResult
from simulator.experiments.search.study import need_optuna
from simulator.experiments.sweep.backends import open_pool


def search(
    search: str | Path | Mapping[str, Any],
    *,
    trials: int | None = None,
    objectives: Iterable[str] | None = None,
    constraints: Iterable[str] | None = None,
    backend: str = "loky",
    address: str | None = None,
    workers: int | None = 1,
    out: str | Path | None = None,
    fresh: bool = False,
    trust: bool = False,
    progress: bool | None = None,
) -> SearchResult:
    """Search a scenario's settings for one aim, or for the Pareto front between several.

    `search` is a search file or a mapping with its keys: base, vary, objectives and so on. `objectives`
    (metric:min or metric:max) and `constraints` (metric<=number or metric>=number) take the place of the
    file's. With `out` the folder is the command's: trials are kept as they end, and a search goes on from
    there. Neither `workers` (None: one a core) nor `backend` changes the result. ConfigError says what
    cannot be used.
    """
    wanted = load_search(
        search,
        trials=trials,
        objectives=None if objectives is None else list(objectives),
        constraints=None if constraints is None else list(constraints),
    )
    policies = Policies(trust=trust)
    with ProgressBar(f"{wanted.base.name}, search", unit="trials") as bar:
        found, _ = search_in_folder(
            wanted,
            None if out is None else Path(out),
            policies,
            backend=backend,
            address=address,
            workers=workers,
            fresh=fresh,
            progress=None if progress is False else bar.noted,
        )
    return SearchResult(found)


def search_in_folder(
    wanted: Search,
    folder: Path | None,
    policies: Policies,
    *,
    backend: str = "loky",
    address: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
    progress: Report | None = None,
) -> tuple[Found, list[Path]]:
    """Search, keeping trials in the folder if there is one; return the outcome and the files written."""
    need_optuna()
    with open_pool(backend, address=address, workers=workers) as pool:
        if folder is None:
            return run_search(wanted, policies=policies, pool=pool, progress=progress), []
        file = open_folder(wanted, folder, fresh=fresh)
        try:
            found = run_search(wanted, policies=policies, pool=pool, file=file, progress=progress)
        except OSError as error:
            raise InputError(f"cannot write {error.filename or file.path}: {error.strerror}") from None
    return found, [file.path, *save_search(found, folder)]
