"""Arrival processes: when requests come, in seconds, one function each.

Poisson, gamma and deterministic gaps as in vLLM's `bench serve`, where `burstiness` is the SHAPE of the
gamma law: lower is burstier, CV = 1/sqrt(burstiness). As there, the first gap precedes the first request.
Unlike there, times are not rescaled so that the last is exactly n/rate. Processes whose rate changes
(`ramp`, `mmpp`, `profile`) invert the cumulative rate (Cinlar, Introduction to Stochastic Processes, 4.7):
exact, without a time step. In a closed loop arrivals depend on completions; the engine makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError
from simulator.workload.tables import load_table

Floats = NDArray[np.float64]

HERE = "workload.arrivals"


def poisson(rng: np.random.Generator, n: int, rate: float) -> Floats:
    """Draw exponential gaps of mean 1/rate; rate inf sends everything at time 0."""
    return gamma(rng, n, rate, burstiness=1.0)


def gamma(
    rng: np.random.Generator,
    n: int,
    rate: float,
    burstiness: float | None = None,
    cv: float | None = None,
) -> Floats:
    """Draw gamma gaps of mean 1/rate, by vLLM's `burstiness` or by `cv` = 1/sqrt(burstiness)."""
    _positive("rate", rate)
    if (burstiness is None) == (cv is None):
        raise ConfigError(f"{HERE}: give either burstiness or cv, got burstiness {burstiness} and cv {cv}")
    if burstiness is None:
        assert cv is not None
        burstiness = 1 / _positive("cv", cv) ** 2 if cv else math.inf
    if math.isinf(rate):
        return all_at_once(rng, n)
    if math.isinf(_positive("burstiness", burstiness)):
        return deterministic(rng, n, rate)
    return np.cumsum(rng.gamma(burstiness, 1 / (rate * burstiness), n))


def deterministic(rng: np.random.Generator, n: int, rate: float) -> Floats:
    """Space requests by exactly 1/rate, the first at 1/rate."""
    return np.arange(1, n + 1) / _positive("rate", rate)


def all_at_once(rng: np.random.Generator, n: int) -> Floats:
    """Send everything at time 0."""
    return np.zeros(n)


def closed_loop(rng: np.random.Generator, n: int, clients: int, think_s: float = 0.0) -> Floats:
    """Let `clients` send one request each, and the next `think_s` seconds after its answer.

    Arrivals are all 0: a request waits until a client is free (`Workload.closed_loop`).
    """
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise ConfigError(f"{HERE}.clients: must be a whole number >= 1, got {clients!r}")
    if not 0 <= think_s < math.inf:
        raise ConfigError(f"{HERE}.think_s: must be >= 0 and finite, got {think_s}")
    return np.zeros(n)


def ramp(rng: np.random.Generator, n: int, points: Sequence[tuple[float, float]]) -> Floats:
    """Draw a Poisson process whose rate is linear between points (time, rate); the last rate stays.

    Two points at one time make a step.
    """
    shape = np.asarray(points, np.float64).shape
    if len(shape) != 2 or shape[1] != 2:
        raise ConfigError(f"{HERE}.points: must be pairs [time_s, rate], got {points!r}")
    t, rate = np.asarray(points, np.float64).T
    if t[0] != 0 or (np.diff(t) < 0).any() or (rate < 0).any() or not np.isfinite([t, rate]).all():
        raise ConfigError(
            f"{HERE}.points: times must start at 0 and not fall, rates must be >= 0: {points!r}"
        )
    if rate[-1] == 0:
        raise ConfigError(f"{HERE}.points: the last rate must be > 0, or {n} requests may never come")
    events = np.cumsum(rng.exponential(size=n))
    tail = events[-1] / rate[-1] if n else 0.0  # long enough for all of them at the last rate
    return invert_rate(
        events, np.append(t, t[-1] + tail), np.append(rate[:-1], rate[-1]), np.append(rate[1:], rate[-1])
    )


def mmpp(
    rng: np.random.Generator,
    n: int,
    rates: Sequence[float] = (20.0, 0.2),
    dwell_s: Sequence[float] = (10.0, 40.0),
) -> Floats:
    """Draw a Markov-modulated Poisson process: in state i the rate is rates[i], for dwell_s[i] on average.

    Dwells are exponential, the next state is any other with equal chance. Default: bursts and near silence.
    """
    if len(rates) != len(dwell_s) or len(rates) < 2:
        raise ConfigError(
            f"{HERE}: rates and dwell_s must be lists of one length >= 2, got {rates}, {dwell_s}"
        )
    if min(rates) < 0 or max(rates) <= 0 or not np.isfinite(rates).all():
        raise ConfigError(f"{HERE}.rates: must be >= 0, finite, and one > 0, got {rates}")
    events = np.cumsum(rng.exponential(size=n))
    mean_rate = float(np.dot(rates, dwell_s) / sum(_positive("dwell_s", d) for d in dwell_s))
    times, states = np.zeros(1), np.zeros(0, np.int64)
    horizon = (events[-1] if n else 0.0) / mean_rate
    level = np.asarray(rates, np.float64)
    while not len(states) or (np.diff(times) * level[states]).sum() <= (events[-1] if n else 0.0):
        times, states = _extend(rng, times, states, horizon, dwell_s)
    return invert_rate(events, times, level[states], level[states])


def profile(rng: np.random.Generator, n: int, name: str) -> Floats:
    """Follow a bundled table: so many arrivals in every bin, clustered in it by two states of activity.

    The counts of the bins are those of the source; within a bin arrivals are Poisson, given their number,
    with a rate that switches between the table's `levels` (an MMPP). After its end the profile repeats.
    """
    table = load_table(name, f"{HERE}.name", "arrivals")["arrivals"]
    counts, span = np.asarray(table["counts"], np.int64), float(table["span_s"])
    edges = np.minimum(np.arange(len(counts) + 1) * table["bin_s"], span)
    levels = np.asarray(table["levels"], np.float64)
    periods = max(1, -(-n // int(counts.sum())))
    out = []
    for period in range(periods):
        switches, states = _extend(rng, np.zeros(1), np.zeros(0, np.int64), span, table["dwell_s"])
        knots = np.union1d(edges, switches[switches < span])
        middle = (knots[1:] + knots[:-1]) / 2
        mass = levels[states[np.searchsorted(switches, middle) - 1]] * np.diff(knots)
        bins = np.searchsorted(edges, middle) - 1
        rate = mass * (counts / np.bincount(bins, mass))[bins] / np.diff(knots)
        events = np.repeat(np.cumsum(counts) - counts, counts) + rng.random(counts.sum()) * np.repeat(
            counts, counts
        )
        out.append(period * span + invert_rate(np.sort(events), knots, rate, rate))
    return np.concatenate(out)[:n]


def invert_rate(events: Floats, knots: Floats, left: Floats, right: Floats) -> Floats:
    """Return when the cumulative rate reaches each of `events` (sorted).

    Between knots[i] and knots[i+1] the rate goes linearly from left[i] to right[i]. A process with unit
    rate becomes one with that rate.
    """
    width = np.diff(knots)
    reached = np.concatenate([[0.0], np.cumsum(width * (left + right) / 2)])
    i = np.clip(np.searchsorted(reached, events, side="right") - 1, 0, len(width) - 1)
    slope = np.divide(right - left, width, out=np.zeros_like(width), where=width > 0)[i]
    missing = np.maximum(events - reached[i], 0.0)
    root = np.sqrt(np.maximum(left[i] ** 2 + 2 * slope * missing, 0.0))
    step = np.divide(2 * missing, left[i] + root, out=np.zeros_like(missing), where=missing > 0)
    times: Floats = np.minimum(knots[i] + step, knots[i + 1])
    return times


def _extend(
    rng: np.random.Generator,
    times: Floats,
    states: NDArray[np.int64],
    horizon: float,
    dwell_s: Sequence[float],
) -> tuple[Floats, NDArray[np.int64]]:
    """Append states of a Markov chain that last `horizon` seconds and more; times has one entry more."""
    dwell, k = np.asarray(dwell_s, np.float64), len(dwell_s)
    num = int(2 * horizon / dwell.mean()) + 16
    jumps = rng.integers(1, k, num)  # never to itself
    first = rng.choice(k, p=dwell / dwell.sum()) if not len(states) else states[-1] + jumps[0]
    new = (first + np.concatenate([[0], np.cumsum(jumps[1:])])) % k
    ends = times[-1] + np.cumsum(rng.exponential(dwell[new]))
    return np.concatenate([times, ends]), np.concatenate([states, new])


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ConfigError(f"{HERE}.{name}: must be > 0, got {value}")
    return value


ARRIVALS: dict[str, Callable[..., Floats]] = {
    "poisson": poisson,
    "gamma": gamma,
    "deterministic": deterministic,
    "all_at_once": all_at_once,
    "closed_loop": closed_loop,
    "ramp": ramp,
    "mmpp": mmpp,
    "profile": profile,
}
