"""Hold a profile against a real run: simulate exactly what was run, and compare request by request.

Requests come with their prefix blocks, at their real arrival times, on the server's own arguments and number
of KV blocks. Nothing is fitted on the run, unless asked: then one constant a step, on the mean TPOT alone.
Left out: the client's time, (de)tokenisation and network, which client-side measurements include.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.measured import MeasuredRun
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError, InputError
from simulator.latency.base import Floats
from simulator.latency.profile import Profile
from simulator.latency.profile_file import profile_of, read_profile, shipped_profiles
from simulator.metrics.tables import COMPLETED
from simulator.specs.shipped_models import get_model

ASYNC_SINCE = (0, 14)  # vLLM release from which async scheduling is on unless turned off
VLLM_SEATS, VLLM_BUDGET = 256, 2048  # vLLM's defaults, for a run that does not say
RANKS = {"median": 50, "p90": 90, "p95": 95, "p99": 99}
LATENCIES = ("ttft", "tpot", "e2el")
LARGEST_CONSTANT = 0.1  # seconds a step, more of which is no host's share
TOLERANCE = 1e-4  # relative, of the fitted mean TPOT
HALVINGS = 40


@dataclass(frozen=True)
class Figure:
    """One number of a run, measured and simulated; None where that side has none."""

    measured: float | None
    simulated: float | None

    @property
    def error(self) -> float | None:
        """Relative error of the simulation, as a fraction."""
        if self.measured is None or self.simulated is None or not self.measured:
            return None
        return self.simulated / self.measured - 1


@dataclass(frozen=True)
class Validation:
    """A measured run, its simulation, and the figures of both, by name as vLLM's benchmark has them."""

    measured: MeasuredRun
    run: Run
    profile: Profile
    metrics: dict[str, Figure]
    constant: float  # seconds added to every step, fitted on the run's mean TPOT; 0 if none was
    warmup: int  # first requests left out of the figures
    notes: tuple[str, ...]

    @property
    def worst(self) -> float:
        """The largest error of TTFT, TPOT and E2E at mean, p50, p90, p95, p99, as a fraction."""
        return max(abs(self.metrics[name].error or 0.0) for name in latency_names())


def latency_names() -> list[str]:
    """Return the names of the fifteen figures that a validation is judged by."""
    return [f"{rank}_{name}_ms" for name in LATENCIES for rank in ("mean", *RANKS)]


def profile_for(source: str, run: MeasuredRun) -> tuple[Profile, str]:
    """Load the profile of the run's model, and say which GPU it is of."""
    path = shipped_profiles().get(source, Path(source))
    if path.suffix != ".json":
        raise InputError(
            f"profile {source[:80]!r}: not a .json file; shipped: {', '.join(shipped_profiles())}"
        )
    file = read_profile(path)
    return profile_of(file, get_model(_model_name(run))), file.text("hardware")


def _model_name(run: MeasuredRun) -> str:
    name = run.engine.get("model")
    if not isinstance(name, str):
        raise InputError(f"{run.source}: does not say which model ran")
    return name


def scenario_of(run: MeasuredRun, gpu: str, blocks: int | None = None) -> tuple[Scenario, list[str]]:
    """Return the scenario of a run, and notes on what the run does not say. `blocks`: KV blocks, if known."""
    known, notes = run.engine, list(run.notes)
    blocks = blocks or _count(run, "num_gpu_blocks")
    if blocks is None:
        notes.append("the server's number of KV blocks is unknown: derived from the GPU's memory")
    if run.workload is None:
        notes.append(
            "which blocks prompts share is unknown: simulated without prefix hits (--trace has them)"
        )
    is_async = known.get("async_scheduling")
    if not isinstance(is_async, bool):
        is_async = _version(known.get("vllm_version")) >= ASYNC_SINCE
        notes.append(f"async scheduling assumed {'on' if is_async else 'off'}, by the engine's version")
    caching = known.get("enable_prefix_caching")
    scenario = {
        "schema": 1,
        "name": run.name,
        "model": {"name": _model_name(run), "max_model_len": _count(run, "max_model_len")},
        "hardware": {"gpu": gpu},
        "kv": {
            "num_gpu_blocks_override": blocks,
            "block_size": _count(run, "block_size") or 16,
            "enable_prefix_caching": caching if isinstance(caching, bool) else True,
        },
        "scheduler": {
            "max_num_seqs": _count(run, "max_num_seqs") or VLLM_SEATS,
            "max_num_batched_tokens": _count(run, "max_num_batched_tokens") or VLLM_BUDGET,
            "async_scheduling": is_async,
        },
    }
    share = known.get("gpu_memory_utilization")
    if isinstance(share, float):
        scenario["kv"]["gpu_memory_utilization"] = share  # type: ignore[index]  # a dict of dicts
    return Scenario.model_validate(scenario), notes


def _count(run: MeasuredRun, key: str) -> int | None:
    value = run.engine.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{run.source}: engine: {key} must be a whole number >= 1, got {str(value)[:40]}")
    return value


def _version(text: object) -> tuple[int, ...]:
    parts = str(text).split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (0,)


def with_constant(profile: Profile, seconds: float) -> Profile:
    """Add a constant to every step, which no overlap hides."""
    return replace(profile, dense=profile.dense + seconds) if seconds else profile


def validate(
    run: MeasuredRun,
    profile: Profile,
    gpu: str,
    *,
    blocks: int | None = None,
    warmup: int = 0,
    fit_constant: bool = False,
) -> Validation:
    """Simulate a run and compare. `fit_constant` first fits one constant a step to the mean TPOT."""
    if not 0 <= warmup < len(run):
        raise ConfigError(f"warmup must be below the {len(run)} requests of the run, got {warmup}")
    scenario, notes = scenario_of(run, gpu, blocks)

    def compared(constant: float) -> Validation:
        latency = with_constant(profile, constant)
        is_async = scenario.scheduler.async_scheduling
        simulated = run_scenario(
            scenario, workload=run.requests(), latency=latency.overlapped() if is_async else latency
        )
        metrics = figures(run, simulated, warmup)
        return Validation(run, simulated, profile, metrics, constant, warmup, tuple(notes))

    found = compared(0.0)
    low, high = 0.0, LARGEST_CONSTANT
    for _ in range(HALVINGS if fit_constant else 0):
        error = found.metrics["mean_tpot_ms"].error or 0.0
        if abs(error) <= TOLERANCE or (error > 0 and not found.constant):
            break
        low, high = (low, found.constant) if error > 0 else (found.constant, high)
        found = compared((low + high) / 2)
    return found


def figures(run: MeasuredRun, simulated: Run, warmup: int = 0) -> dict[str, Figure]:
    """Return every figure of both runs by name; ConfigError if a request did not complete."""
    table = simulated.requests
    if len(table) != len(run):
        raise ConfigError(
            f"{run.source}: {len(table)} of its {len(run)} requests reached the simulated server"
        )
    done = (table.status == COMPLETED) & (table.num_output == run.num_output)
    if not done.all():
        row = int(np.argmin(done))
        raise ConfigError(
            f"{run.source}: request {row} did not complete in the simulation "
            f"({table.reason[row] or 'unfinished'}): are max_model_len and KV blocks those of the server?"
        )
    gaps = np.where(table.num_output > 1, table.num_output - 1, np.nan)
    ours = {
        "ttft": table.first_token - table.arrival,
        "tpot": (table.finish - table.first_token) / gaps,
        "e2el": table.finish - table.arrival,
        "queue": table.scheduled - table.arrival,
    }
    theirs = {"ttft": run.ttft, "tpot": run.tpot, "e2el": run.e2e, "queue": run.queue}
    found = {}
    for name in (*LATENCIES, "queue"):
        both = _statistics(theirs[name][warmup:]), _statistics(ours[name][warmup:])
        for rank in ("mean", *RANKS):
            found[f"{rank}_{name}_ms"] = Figure(both[0][rank], both[1][rank])
    return found | _counts(run, simulated)


def _statistics(seconds: Floats) -> dict[str, float | None]:
    """Return mean and percentiles in ms; None where nobody measured any."""
    values = 1e3 * seconds[np.isfinite(seconds)]
    if not len(values):
        return dict.fromkeys(("mean", *RANKS))
    ranks = {name: float(np.percentile(values, rank)) for name, rank in RANKS.items()}
    return {"mean": float(values.mean()), **ranks}


def _counts(run: MeasuredRun, simulated: Run) -> dict[str, Figure]:
    own, steps = simulated.own, simulated.steps
    series = run.series

    def peak(name: str) -> float | None:
        return float(series[name].max()) if name in series and series[name].any() else None

    def counted(name: str) -> float | None:
        value = own[name]
        return float(value) if isinstance(value, int | float) else None

    use = counted("kv_usage_peak")
    return {
        "duration_s": Figure(float((run.arrival + run.e2e).max()), float(simulated.requests.finish.max())),
        "peak_running": Figure(peak("running"), float(steps.num_running.max())),
        "peak_waiting": Figure(peak("waiting"), float(steps.num_waiting.max())),
        "peak_kv_use_percent": Figure(peak("kv_cache_pct"), None if use is None else 100 * use),
        "prefix_hit_rate": Figure(None, counted("prefix_hit_rate")),
        "num_preemptions": Figure(None, counted("num_preemptions")),
    }
