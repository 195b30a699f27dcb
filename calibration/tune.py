"""Correct a profile by a real run: the host's two terms and one scale of all GPU times.

With the schedule of a simulation frozen, every wait and every decode of a request is a sum over steps of
scale * GPU + per_step + per_seq * sequences: linear in the three numbers, which a robust fit to the measured
TTFT and TPOT of the run's first half gives at once. The run is simulated again with them, until they stay.
(Moving the numbers by finite differences fails: an arrival that crosses a step boundary moves a TTFT by a
whole step.) Weak priors, centred on the profile, hold what the run cannot tell.

The requests of the second half are simulated too, for they load the server, but their measured times are
touched only at the end, to say how wrong the result is. One scale cannot mend a profile whose prefill and
decode are wrong by different factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.measured import MeasuredRun
from calibration.rerun import Rerun, Times, measured_times, open_over_time, scenario_of, simulated
from simulator.config.scenario import Scenario
from simulator.errors import InputError
from simulator.latency.base import Floats, LatencyModel
from simulator.latency.profile import Host, Profile

FEWEST = 20  # requests of the first half with two tokens or more
SPREAD = 1.5  # 95th over 5th percentile of their batch over time: less cannot tell host from GPU
NOISE = {"tpot": 0.02, "ttft": 0.1}  # relative, of one request; a TTFT depends on luck within a step
PRIOR_SCALE = 0.2  # of log GPU scale: twice what public sources disagree by
PRIOR_STEP = 2e-3  # s; the host of a serving step is of the order of milliseconds
PRIOR_SEQ = 20e-6  # s; quoted per-sequence costs are 4-100 us
SIMULATIONS = 12  # at most
STAYS = 0.001  # relative change of the median TPOT at which the search ends
LARGEST_SCALE = 2.0  # GPU times off by more than this: the profile is of another GPU or model
Bools = NDArray[np.bool_]
METRICS = ("ttft", "tpot", "e2e")
STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda x: float(np.mean(x)),
    "p50": lambda x: float(np.percentile(x, 50)),
    "p90": lambda x: float(np.percentile(x, 90)),
    "p99": lambda x: float(np.percentile(x, 99)),
}


class Terms(NamedTuple):
    """What is tuned: host seconds a step and a sequence, and the factor on every GPU time."""

    per_step: float
    per_seq: float
    gpu_scale: float


class Figure(NamedTuple):
    """One statistic of one metric over the held-out requests, in seconds."""

    name: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative, positive where the simulation is slower."""
        return self.simulated / self.measured - 1


class Tuned(NamedTuple):
    """The result: the terms, and the held-out half before and after."""

    terms: Terms
    before: list[Figure]
    after: list[Figure]
    num_fitted: int
    num_held_out: int
    num_simulations: int
    scenario: Scenario


def with_terms(profile: Profile, terms: Terms) -> Profile:
    """Return the profile with these host terms, and its GPU times multiplied."""
    return replace(profile.with_gpu_scale(terms.gpu_scale), host=Host(terms.per_step, terms.per_seq))


def tune(run: MeasuredRun, profile: Profile, changes: dict[str, object], skip: int = 1) -> Tuned:
    """Tune a profile on a run's first half; the first `skip` requests are cold and count for nothing.

    InputError says why a run cannot identify the terms.
    """
    scenario = scenario_of(run, changes)
    measured = measured_times(run)
    half = (len(run) + skip) // 2
    rows = np.arange(len(run))
    fitted = (rows >= skip) & (rows < half) & np.isfinite(measured.tpot)
    held_out = rows >= half
    check_identifiable(run, fitted)
    terms = [Terms(*profile.host, 1.0)]
    runs = [_simulate(run, profile, scenario, terms[0])]
    while len(runs) < SIMULATIONS:
        new = _fit(
            _sums(runs[-1], terms[-1], scenario.scheduler.async_scheduling), measured, fitted, terms[0]
        )
        terms.append(new)
        runs.append(_simulate(run, profile, scenario, new))
        before, after = (np.nanmedian(each.times.tpot[fitted]) for each in runs[-2:])
        if abs(after / before - 1) < STAYS:
            break
    best = min(range(len(runs)), key=lambda i: _loss(runs[i].times, measured, fitted))
    found = [figures(measured, runs[i].times, held_out) for i in (0, best)]
    return Tuned(terms[best], found[0], found[1], int(fitted.sum()), int(held_out.sum()), len(runs), scenario)


def _simulate(run: MeasuredRun, profile: Profile, scenario: Scenario, terms: Terms) -> Rerun:
    latency: LatencyModel = with_terms(profile, terms)
    return simulated(run, scenario, latency.overlapped() if scenario.scheduler.async_scheduling else latency)


def check_identifiable(run: MeasuredRun, fitted: Bools) -> None:
    """Refuse a run whose first half says too little; InputError with the reason."""
    count = int(fitted.sum())
    if count < FEWEST:
        raise InputError(
            f"{run.source}: {count} requests of two tokens or more in the first half; {FEWEST} are needed"
        )
    first, last = (run.arrival + run.ttft)[fitted], (run.arrival + run.e2e)[fitted]
    low, high = open_over_time(first, last, [5, 95]).tolist()
    if high < SPREAD * low:
        raise InputError(
            f"{run.source}: its requests always decoded in batches of {low:.0f} to {high:.0f}: "
            "one batch size cannot tell host from GPU time; measure under a changing load"
        )


class Sums(NamedTuple):
    """By request, what a wait or a decode adds up: GPU seconds at scale 1, steps, sequences over steps."""

    ttft: Floats  # shape (requests, 3)
    tpot: Floats  # the same, over output tokens but the first


def _sums(rerun: Rerun, terms: Terms, is_async: bool) -> Sums:
    """Add up the simulated steps over each request's wait and decode, parts of a step in proportion."""
    steps, requests = rerun.steps, rerun.requests
    seqs = steps.num_seqs.astype(np.float64)
    host = terms.per_step + terms.per_seq * seqs
    seconds = steps.end - steps.start
    gpu = seconds - (0.0 if is_async else host)
    on_host = seconds <= host * (1 + 1e-9) if is_async else np.ones(len(seqs), dtype=np.bool_)
    on_gpu = ~on_host if is_async else on_host
    each = np.stack([gpu * on_gpu / terms.gpu_scale, 1.0 * on_host, seqs * on_host])
    clock = np.stack([steps.start, steps.end], axis=1).ravel()
    totals = [np.stack([np.cumsum(t) - t, np.cumsum(t)], axis=1).ravel() for t in each]

    def between(begin: Floats, end: Floats) -> Floats:
        return np.stack([np.interp(end, clock, t) - np.interp(begin, clock, t) for t in totals], axis=1)

    gaps = np.maximum(requests.num_output - 1, 1)[:, None]
    decode = between(requests.first_token, requests.finish) / gaps
    return Sums(between(requests.arrival, requests.first_token), decode)


def _fit(sums: Sums, measured: Times, rows: Bools, first: Terms) -> Terms:
    """Fit the terms to the first half's latencies under a frozen schedule, by robust log ratios."""
    from scipy.optimize import least_squares

    units = np.array([PRIOR_STEP, PRIOR_SEQ])
    centre = np.array([0.0, first.per_step / PRIOR_STEP, first.per_seq / PRIOR_SEQ])

    def residuals(x: Floats) -> Floats:
        terms = np.array([np.exp(x[0] * PRIOR_SCALE), *(x[1:] * units)])
        parts = [
            np.log(np.maximum(getattr(sums, name)[rows] @ terms, 1e-9) / getattr(measured, name)[rows])
            / noise
            for name, noise in NOISE.items()
        ]
        data = np.concatenate(parts)
        soft = np.sign(data) * np.sqrt(2 * (np.sqrt(1 + data**2) - 1))  # soft_l1; the priors stay quadratic
        return np.concatenate([soft, x - centre])

    widest = np.log(LARGEST_SCALE) / PRIOR_SCALE
    bounds = ([-widest, 0.0, 0.0], [widest, 50.0, 50.0])
    start = np.clip(centre, np.add(bounds[0], 1e-3), np.subtract(bounds[1], 1e-3))
    scale, step, seq = least_squares(residuals, start, bounds=bounds, x_scale=0.1).x.tolist()
    return Terms(step * PRIOR_STEP, seq * PRIOR_SEQ, float(np.exp(scale * PRIOR_SCALE)))


def _loss(found: Times, measured: Times, rows: Bools) -> float:
    errors = (
        np.abs(np.log(getattr(found, n)[rows] / getattr(measured, n)[rows])) / s for n, s in NOISE.items()
    )
    return float(sum(np.minimum(error, 5).mean() for error in errors))


def figures(measured: Times, found: Times, rows: Bools) -> list[Figure]:
    """Return every statistic of every metric over these requests."""
    result = []
    for metric in METRICS:
        true, mine = getattr(measured, metric)[rows], getattr(found, metric)[rows]
        both = np.isfinite(true) & np.isfinite(mine)
        result += [Figure(f"{metric}_{s}", f(true[both]), f(mine[both])) for s, f in STATISTICS.items()]
    return result
