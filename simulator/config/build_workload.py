"""From a scenario to its workload and to how its clients behave."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np

from simulator.config.scenario import Scenario
from simulator.config.tenants import tenants_of
from simulator.config.workload_section import SessionsSection, WorkloadSection
from simulator.engine.clients import ClientPlan
from simulator.errors import ConfigError
from simulator.workload.arrivals import ARRIVALS
from simulator.workload.generate import draw_arrivals, generate
from simulator.workload.traces import read_trace
from simulator.workload.traces.rows import MAX_SPAN
from simulator.workload.workload import Workload

_STREAMS = {
    "spread": 2,
    "pre_delay": 3,
    "cancel": 4,
    "tenants": 5,
    "predicted_len": 6,
}  # of the seed; generate() uses 0 and 1


def build_workload(scenario: Scenario, max_model_len: int) -> Workload:
    """Read the trace or draw the requests, with everything the scenario changes about them."""
    section = scenario.workload
    if section.trace is not None:
        workload = read_trace(
            section.trace,
            format=section.format,
            columns=section.columns,
            time_unit=section.time_unit,
            start_s=section.start_s,
            duration_s=section.duration_s,
            seed=scenario.seed,
        )
    else:
        workload = generate(section.arrivals, section.lengths, section.num_requests, seed=scenario.seed)
    if section.tenants is not None:
        workload = workload.with_tenants(tenants_of(scenario), _stream(scenario.seed, "tenants"))
    workload = _with_sessions(workload, section, scenario.seed)
    if section.start_s or section.duration_s or section.limit:
        workload = workload.window(section.start_s, section.duration_s, section.limit)
    if section.rate_scale != 1.0:
        workload = workload.scaled(section.rate_scale)
    if section.spread_ms:
        workload = workload.spread(section.spread_ms, _stream(scenario.seed, "spread"))
    if len(workload) and workload.arrival[-1] > MAX_SPAN:
        raise ConfigError(
            f"workload: the last request arrives after {workload.arrival[-1]:.3g} s; ten years is the limit"
        )
    if section.timeout_s is not None:
        workload = replace(workload, timeout=np.full(len(workload), section.timeout_s))
    if section.pre_delay_s is not None:
        workload = workload.with_pre_delay(section.pre_delay_s, _stream(scenario.seed, "pre_delay"))
    if section.cancel is not None:
        cancel = section.cancel
        workload = workload.with_cancel(cancel.fraction, cancel.after_s, _stream(scenario.seed, "cancel"))
    workload = workload.with_max_tokens(section.max_tokens, max_model_len)
    if section.predicted_len is not None:
        rng = _stream(scenario.seed, "predicted_len")
        workload = workload.with_predicted_len(section.predicted_len.sigma, rng)
    return workload


def _with_sessions(workload: Workload, section: WorkloadSection, seed: int) -> Workload:
    """Replay sessions as the scenario says; a trace's begin by the arrival process, if one is given."""
    if workload.follows is None:
        return workload
    if section.trace is not None and section.arrivals != WorkloadSection().arrivals:
        starts = draw_arrivals(section.arrivals, workload.num_sessions, seed)
        workload = workload.with_session_starts(starts)
    sessions = section.sessions or SessionsSection()
    return workload.replayed(sessions.replay, sessions.think_cap_s, sessions.time_scale)


def _stream(seed: int, component: str) -> np.random.Generator:
    """Return a component's own random stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAMS[component],)))


def client_plan(scenario: Scenario, workload: Workload) -> ClientPlan:
    """Return how the workload's clients behave."""
    limit, pause = workload.closed_loop or (scenario.workload.max_concurrency, None)
    return ClientPlan(
        follows=workload.follows,
        think=workload.think,
        pre_delay=workload.pre_delay,
        cancel_after=workload.cancel_after,
        max_concurrency=limit,
        pause=pause,
    )


def with_rate(scenario: Scenario, rate: float) -> Scenario:
    """Return the scenario at this many requests/s: its process takes the rate, other times are rescaled."""
    if not 0 < rate < float("inf"):
        raise ConfigError(f"rate: must be > 0 and finite, got {rate}")
    arrivals = scenario.workload.arrivals
    process = ARRIVALS.get(arrivals.get("kind", ""))
    if scenario.workload.trace is None and process and "rate" in inspect.signature(process).parameters:
        return scenario.with_(**{"workload.arrivals.rate": rate})
    plain = build_workload(scenario.with_(**{"workload.rate_scale": 1.0}), max_model_len=2)
    span = float(plain.arrival[-1]) if len(plain) else 0.0
    if span <= 0:
        raise ConfigError("rate: the requests all arrive at once, so their times cannot be rescaled")
    return scenario.with_(**{"workload.rate_scale": rate * span / len(plain)})
