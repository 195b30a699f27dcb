"""Generate a workload from an arrival process and a length distribution.

Arrivals and lengths draw from streams of their own, so that a change of one leaves the other's draws as
they were, and the same seed gives the same workload under every policy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from simulator.errors import ConfigError, suggest
from simulator.workload.arrivals import ARRIVALS
from simulator.workload.lengths import LENGTHS
from simulator.workload.sessions import SESSIONS
from simulator.workload.workload import Floats, Workload

T = TypeVar("T")


def generate(
    arrivals: Mapping[str, object],
    lengths: Mapping[str, object],
    num_requests: int,
    seed: int | np.random.SeedSequence = 0,
) -> Workload:
    """Draw `num_requests` requests; both mappings hold `kind` and that function's arguments.

    With lengths of `kind: sessions` the requests are turns, and the arrivals are when sessions start.

    >>> w = generate({"kind": "deterministic", "rate": 2}, {"kind": "constant", "prompt": 8, "output": 3}, 2)
    >>> w.arrival.tolist(), w.num_prompt.tolist()
    ([0.5, 1.0], [8, 8])
    """
    if num_requests < 1:
        raise ConfigError(f"workload.num_requests: must be >= 1, got {num_requests}")
    root = np.random.SeedSequence(seed) if isinstance(seed, int) else seed
    times, tokens = (
        np.random.default_rng(np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, i)))
        for i in range(2)
    )
    source = f"generated: arrivals {arrivals.get('kind')}, lengths {lengths.get('kind')}"
    if lengths.get("kind") in SESSIONS:
        if arrivals.get("kind") == "closed_loop":
            raise ConfigError("workload.arrivals: sessions need arrivals that start them, not a closed_loop")
        drawn = _draw(SESSIONS, lengths, "workload.lengths", tokens, num_requests)
        return drawn.workload(
            _draw(ARRIVALS, arrivals, "workload.arrivals", times, drawn.num_sessions), source
        )
    arrival = _draw(ARRIVALS, arrivals, "workload.arrivals", times, num_requests)
    num_prompt, num_output = _draw(LENGTHS, lengths, "workload.lengths", tokens, arrival)
    return Workload(arrival, num_prompt, num_output, source=source, closed_loop=_closed_loop(arrivals))


def draw_arrivals(arrivals: Mapping[str, object], n: int, seed: int) -> Floats:
    """Draw n times from an arrival process, from the stream that `generate` uses for arrivals."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    return _draw(ARRIVALS, arrivals, "workload.arrivals", rng, n)


def _closed_loop(arrivals: Mapping[str, object]) -> tuple[int, float] | None:
    """Return (clients, think_s) of arrivals that `closed_loop` has checked."""
    if arrivals.get("kind") != "closed_loop":
        return None
    return int(str(arrivals["clients"])), float(str(arrivals.get("think_s", 0.0)))


def _draw(table: Mapping[str, Callable[..., T]], spec: Mapping[str, object], where: str, *args: object) -> T:
    """Call the table's entry for `kind` with the other keys as arguments, which it must know."""
    kind, params = spec.get("kind"), {str(k): v for k, v in spec.items() if k != "kind"}
    if not isinstance(kind, str) or kind not in table:
        raise ConfigError(f"{where}.kind: unknown kind {kind!r}{suggest(kind, _kinds(table))}")
    known = list(inspect.signature(table[kind]).parameters.values())[len(args) :]
    for key in params:
        if key not in {p.name for p in known}:
            raise ConfigError(f"{where}.{key}: {kind} has no such key{suggest(key, [p.name for p in known])}")
    missing = [p.name for p in known if p.default is p.empty and p.name not in params]
    if missing:
        raise ConfigError(f"{where}: {kind} needs {', '.join(missing)}")
    try:
        return table[kind](*args, **params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {kind} cannot use {params}: {error}") from error


def _kinds(table: Mapping[str, object]) -> list[str]:
    return [*table, *(SESSIONS if table is LENGTHS else ())]
