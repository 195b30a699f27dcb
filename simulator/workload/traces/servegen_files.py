"""The two files of ServeGen's parameters: clients.csv (rates, gaps) and datasets.jsonl (token counts).

Columns, fields and windows are those of `alibaba/ServeGen`'s `chunk-N-trace.csv` and `chunk-N-dataset.json`,
joined over the clients. Laws are Python dict literals in text; their numbers are read, nothing is evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.workload.lengths import MAX_TOKENS
from simulator.workload.traces.clock import Clock, Unreadable
from simulator.workload.traces.csv_rows import Columns, iter_csv
from simulator.workload.traces.fields import read_seconds, read_whole
from simulator.workload.traces.json_rows import iter_objects
from simulator.workload.traces.rows import Rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Law = tuple[Ints, Floats]
"""Token counts and their cumulative probabilities."""
LawKey = tuple[int, int]
"""A client and the number of a 6 h window."""

CLIENTS: Columns = {
    name: name for name in ("client", "window_start_s", "rate_rps", "cv", "pattern", "param1")
}
WINDOW = 600.0  # s, of rates and gaps
LENGTH_WINDOW = 21_600  # s, of token counts
MAX_RATE = 1e6  # requests/s of one client
MAX_SHAPE = 1e6  # gaps are even long before
TEXT = ("input_tokens", "text_tokens")  # language models, multimodal models
_NUMBER = re.compile(r"[-+.\deE]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Clients:
    """One entry per client and window, in the file's order. Rates in requests/s."""

    client: Ints
    start: Floats
    rate: Floats
    cv: Floats
    is_weibull: NDArray[np.bool_]
    shape: Floats
    notes: tuple[str, ...]

    def total_rate(self) -> Floats:
        """Rate of all clients together, by window from time 0."""
        return np.bincount((self.start // WINDOW).astype(np.int64), self.rate).astype(np.float64)

    def describe(self) -> str:
        busy, total = self.rate > 0, self.total_rate()
        p50, p90, p99 = np.percentile(self.cv[busy], [50, 90, 99])
        weighted = float(np.average(self.cv[busy], weights=self.rate[busy]))
        return (
            f"{len(np.unique(self.client))} clients over {len(total) * WINDOW / 86_400:.3g} d: "
            f"{total.mean():.4g} requests/s ({total.min():.4g}..{total.max():.4g} in 10 min), "
            f"{1 - busy.mean():.0%} of client windows silent, gap CV p50 {p50:.3g} / p90 {p90:.3g} / "
            f"p99 {p99:.3g}, weighted by rate {weighted:.3g}"
        )


def read_clients(path: Path) -> Clients:
    """Read rates and laws of gaps; rows that cannot be used are skipped and counted in `notes`."""
    rows = Rows(Clock(str(path), "s"))
    columns: tuple[list[float], ...] = ([], [], [], [], [], [])
    for line, values in iter_csv(path, CLIENTS, rows):
        try:
            entry = _entry(values)
        except Unreadable as reason:
            rows.skip(line, str(reason))
            continue
        for column, value in zip(columns, entry, strict=True):
            column.append(value)
    client, start, rate, cv, is_weibull, shape = (np.array(column, np.float64) for column in columns)
    notes = rows.reasons(len(client) + rows.num_skipped)
    if not rate.any():
        raise InputError(f"{path}: no client ever sends: {'; '.join(notes) or 'all rates are 0'}")
    return Clients(client.astype(np.int64), start, rate, cv, is_weibull > 0, shape, tuple(notes))


def find_datasets(path: Path) -> Path:
    """Return the datasets file beside a clients file."""
    name = path.name.partition(".")[0].removesuffix("_clients") + "_datasets.jsonl"
    for ending in (".gz", "", ".xz"):
        if (found := path.with_name(name + ending)).is_file():
            return found
    raise InputError(
        f"{path}: has rates but no token counts; they are in {name} (or .gz, .xz), which is not beside it"
    )


def read_laws(path: Path, wanted: set[LawKey]) -> dict[LawKey, dict[str, Law]]:
    """Read the laws of token counts, by client and 6 h window; those that are empty are left out."""
    laws: dict[LawKey, dict[str, Law]] = {}
    for line, value in iter_objects(path):
        client, dataset = value.get("client"), value.get("dataset")
        if not isinstance(client, int) or not isinstance(dataset, dict):
            raise InputError(f"{path}, line {line}: must be an object with client and dataset")
        for start, fields in dataset.items():
            if not start.isdecimal() or not isinstance(fields, dict):
                raise InputError(f"{path}, line {line}: dataset must map seconds to laws, got {start[:40]!r}")
            key = client, length_window(int(start))
            if key in wanted:
                named = {f: _law(text, f"{path}, line {line}: {f}") for f, text in fields.items()}
                found = {f: law for f, law in named.items() if law is not None}
                if "output_tokens" in found and any(text in found for text in TEXT):
                    laws[key] = found
    return laws


def length_window(start: float) -> int:
    """Number the window of token counts that holds a time in s."""
    return int(start // LENGTH_WINDOW)


def _entry(values: dict[str, str]) -> tuple[float, ...]:
    client = read_whole("client", values["client"])
    names = ("window_start_s", "rate_rps", "cv", "param1")
    start, rate, cv, shape = (read_seconds(name, values[name] or "0") for name in names)
    if rate and values["pattern"] not in ("Gamma", "Weibull"):
        raise Unreadable("pattern is neither Gamma nor Weibull")
    if rate and not 0 < shape <= MAX_SHAPE:
        raise Unreadable(f"param1 (shape) is not in 0..{MAX_SHAPE:g}")
    if rate > MAX_RATE or start > MAX_TOKENS:
        raise Unreadable("rate or window_start_s is out of range")
    return client, start, rate, cv, values["pattern"] == "Weibull", shape


def _law(text: object, where: str) -> Law | None:
    """Read a law written as {tokens: probability, ...}; None if it is empty."""
    if not isinstance(text, str):
        raise InputError(f"{where} must be text such as {{39: 0.5, 40: 0.5}}, got {str(text)[:40]!r}")
    try:
        numbers = np.array([float(number) for number in _NUMBER.findall(text)]).reshape(-1, 2)
    except ValueError:
        raise InputError(f"{where} must be pairs of numbers, got {text[:40]!r}") from None
    values, weights = numbers.T
    if not len(values):
        return None
    if not ((values >= 0) & (values <= MAX_TOKENS) & (weights >= 0)).all() or not 0 < weights.sum() < np.inf:
        raise InputError(f"{where} must map counts up to {MAX_TOKENS:,} to probabilities, got {text[:40]!r}")
    return values.astype(np.int64), np.cumsum(weights) / weights.sum()
