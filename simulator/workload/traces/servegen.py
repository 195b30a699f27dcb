"""ServeGen: parameters of a production model's clients, from which requests are drawn.

Each client has, per 600 s window, a rate and a law of gaps (gamma or Weibull, by shape), and per 6 h window
laws of its token counts (Xiang et al., ServeGen, NSDI 2026). Together they are bursty and drift as production
does, and lengths go with the client that bursts. As ServeGen does, a window has rate * 600 s requests and its
gaps are stretched to fill it. A prompt is its text and, per image, audio or video, that many tokens more.
Left out: what share of an output was reasoning.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError, InputError
from simulator.workload.lengths import MAX_TOKENS
from simulator.workload.traces.servegen_files import (
    TEXT,
    WINDOW,
    Law,
    find_datasets,
    length_window,
    read_clients,
    read_laws,
)
from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HOUR = 3600.0  # s; drawn unless told otherwise
USUAL_MAX, HARD_MAX = 1_000_000, 20_000_000  # requests drawn without and with a given duration
PARTS = ("image", "audio", "video")


def read_servegen(
    path: Path, start_s: float = 0.0, duration_s: float | None = None, seed: int = 0
) -> Workload:
    """Draw what the clients send in [start_s, start_s + duration_s); times are those of the file.

    Without a duration: an hour, or less where that is over a million requests. Token counts come from the
    datasets file beside the clients file; InputError if it is missing.
    """
    datasets, clients = find_datasets(path), read_clients(path)
    end = _end(path, clients.total_rate(), start_s, duration_s)
    part = np.flatnonzero((clients.rate > 0) & (clients.start + WINDOW > start_s) & (clients.start < end))
    keys = [(int(clients.client[i]), length_window(clients.start[i])) for i in part]
    known = read_laws(datasets, set(keys))
    rng = np.random.default_rng(seed)
    drawn: list[tuple[Floats, Ints, Ints, Ints]] = []
    for i, key in zip(part.tolist(), keys, strict=True):
        if (laws := known.get(key)) is not None:
            at = clients.start[i] + _times(rng, clients.rate[i], clients.is_weibull[i], clients.shape[i])
            at = at[(at >= start_s) & (at < end)]
            drawn.append((at, *_lengths(rng, laws, len(at)), np.full(len(at), clients.client[i])))
    if not sum(len(at) for at, *_ in drawn):
        raise InputError(f"{path}: no client with token counts sends between {start_s:g} s and {end:g} s")
    arrival, prompt, output, client = (np.concatenate(column) for column in zip(*drawn, strict=True))
    order = np.argsort(arrival, kind="stable")
    names = {c: f"client-{c}" for c in np.unique(client).tolist()}
    return Workload(
        arrival[order],
        np.clip(prompt[order], 1, MAX_TOKENS),
        np.clip(output[order], 1, MAX_TOKENS),
        tenants=[names[c] for c in client[order].tolist()],
        source=path.name,
        notes=(
            *clients.notes,
            clients.describe(),
            f"drawn from these parameters: {start_s:g} s to {end:g} s, seed {seed}",
            *_left_out(clients.rate[part], np.array([key not in known for key in keys]), datasets),
            *_raised(prompt, output),
        ),
    )


def _end(path: Path, total_rate: Floats, start_s: float, duration_s: float | None) -> float:
    """Return where drawing ends, in s."""
    span = len(total_rate) * WINDOW
    if not 0 <= start_s < span:
        raise ConfigError(f"workload.start_s: {path.name} spans 0 to {span:g} s, got {start_s:g}")
    first = int(start_s // WINDOW)
    expected = np.cumsum(total_rate[first:]) * WINDOW
    if duration_s is None:
        windows = np.searchsorted(expected, USUAL_MAX, side="right")
        return min((first + max(1, int(windows))) * WINDOW, start_s + HOUR, span)
    end = min(start_s + duration_s, span)
    requests = expected[min(int((end - first * WINDOW) // WINDOW), len(expected) - 1)]
    if requests > HARD_MAX:
        raise ConfigError(
            f"workload.duration_s: {duration_s:g} s of {path.name} are {requests:,.0f} requests; "
            f"{HARD_MAX:,} at most"
        )
    return end


def _times(rng: np.random.Generator, rate: float, is_weibull: bool, shape: float) -> Floats:
    """Draw the arrivals of one window, from its start: exactly rate * 600 s of them."""
    n = round(rate * WINDOW)
    gaps = rng.weibull(shape, n + 1) if is_weibull else rng.gamma(shape, size=n + 1)
    reached = np.cumsum(gaps)
    if not 0 < reached[-1] < np.inf:  # a shape so small that no gap can be represented
        reached = np.arange(1.0, n + 2)
    times: Floats = reached[:n] / reached[-1] * WINDOW
    return times


def _lengths(rng: np.random.Generator, laws: dict[str, Law], n: int) -> tuple[Ints, Ints]:
    """Draw prompt and output tokens of n requests."""
    text = next(name for name in TEXT if name in laws)
    prompt = _draw(rng, laws[text], n)
    for part in PARTS:
        if (count := laws.get(f"{part}_count")) and (tokens := laws.get(f"{part}_tokens")):
            parts = _draw(rng, count, n)
            owner = np.repeat(np.arange(n), parts)
            each = _draw(rng, tokens, len(owner))
            prompt = prompt + np.bincount(owner, each, minlength=n).astype(np.int64)
    return prompt, _draw(rng, laws["output_tokens"], n)


def _draw(rng: np.random.Generator, law: Law, n: int) -> Ints:
    values, cumulative = law
    drawn: Ints = values[np.searchsorted(cumulative, rng.random(n), side="right").clip(max=len(values) - 1)]
    return drawn


def _left_out(rate: Floats, silent: NDArray[np.bool_], datasets: Path) -> list[str]:
    if not silent.any():
        return []
    share = rate[silent].sum() / rate.sum()
    return [f"clients without token counts in {datasets.name} are left out: {share:.1%} of the requests"]


def _raised(prompt: Ints, output: Ints) -> list[str]:
    raised = ((prompt < 1) | (output < 1)).sum()
    return [f"{raised:,} requests with zero prompt or output tokens have one"] if raised else []
