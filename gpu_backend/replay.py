"""A replay on disk: the files of `servetwin run --log all`, so that `diff` can hold the two together.

With speculation there is also acceptance.csv, which `speculative.acceptance` of a scenario takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from gpu_backend.engine import Engine
from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.experiments.run_folder import ACCEPTANCE, default_folder, save_run
from simulator.speculative import write_log

LOGS = ("steps", "decisions", "timeline")
SKIPPED_STEPS = 5  # before a PyTorch trace begins: the first ones allocate


def at_most(scenario: Scenario, max_requests: int | None) -> Scenario:
    """Return the scenario with so many requests at most; the first of a trace, or as many drawn."""
    if max_requests is None:
        return scenario
    key = "limit" if scenario.workload.trace else "num_requests"
    now = getattr(scenario.workload, key)
    return scenario.with_(**{f"workload.{key}": min(max_requests, now or max_requests)})


def replay_folder(engine: Engine) -> Path:
    """Return runs/<name>-<digest>-<device>-<clock>: beside the simulation's folder, never in it."""
    plain = default_folder(engine.scenario)
    return plain.with_name(f"{plain.name}-{engine.device.type}-{engine.clock}")


def run_and_save(
    engine: Engine,
    folder: Path,
    *,
    report: bool = True,
    profile_steps: int | None = None,
    progress: bool = True,
) -> tuple[Run, list[Path]]:
    """Serve the engine's scenario and write the run folder; `profile_steps` go into a PyTorch trace."""
    with _traced(engine, profile_steps, folder):
        made = engine.run(progress=None if progress else False)
    written = save_run(made, folder, logs=LOGS, report=report)
    if engine.executor is not None and engine.executor.verifications:
        write_log(folder / ACCEPTANCE, engine.executor.verifications)
        written.append(folder / ACCEPTANCE)
    if profile_steps is not None:
        written.append(folder / "torch_trace.json.gz")
    return made, written


@contextmanager
def _traced(engine: Engine, steps: int | None, folder: Path) -> Iterator[None]:
    """Record steps with PyTorch's profiler, for chrome://tracing or Perfetto; it slows these steps down."""
    if steps is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    path = str(folder / "torch_trace.json.gz")
    with profile(
        activities=kinds,
        schedule=schedule(wait=SKIPPED_STEPS, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda trace: trace.export_chrome_trace(path),
    ) as running:
        engine.on_step = running.step
        try:
            yield
        finally:
            engine.on_step = None
