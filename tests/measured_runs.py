"""Stand-ins for runs of a real engine: simulations whose step times jitter, labelled as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.experiments.run_folder import SavedRun
from simulator.latency.base import Features, Floats, LatencyModel

KERNELS = "sdpa/cpu/float32"
TINY = load_scenario("tiny-cpu")


@dataclass(frozen=True)
class Machine:
    """A latency model whose steps take `level` times as long, each times a random factor of its own."""

    model: LatencyModel
    level: float = 1.1
    sigma: float = 0.15
    seed: int = 0
    rng: np.random.Generator = field(init=False)
    name: str = "machine"
    provenance: str = "a stand-in"
    error: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rng", np.random.default_rng(self.seed))

    def step_time(self, step: Features) -> float:
        factor = self.level * float(np.exp(self.sigma * self.rng.standard_normal()))
        return factor * self.model.step_time(step)

    def decode_times(self, step: Features, k: int) -> Floats:
        raise AssertionError("a machine skips no step")

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        return self.model.extrapolated(steps)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> Machine:
        raise AssertionError("a machine is what it is")

    def overlapped(self) -> Machine:
        raise AssertionError("a machine is what it is")


def saved(run: Run) -> SavedRun:
    """Return a run as its folder holds it."""
    return SavedRun(
        run.scenario, run.summary, run.requests, run.steps, None if run.log is None else run.log.lines
    )


def simulated(scenario: Scenario = TINY) -> Run:
    """Return the model's run of a scenario, its decisions logged."""
    return run_scenario(scenario, decisions=True)


def measured(scenario: Scenario = TINY, label: Mapping[str, object] | None = None, **clock: float) -> Run:
    """Return a machine's run of a scenario; `clock` are arguments of `Machine`."""
    machine = build_machine(scenario)
    stand_in = Machine(machine.latency, **clock)  # type: ignore[arg-type]  # level, sigma and seed alone
    run = run_scenario(scenario, machine=machine, latency=stand_in, decisions=True)
    run.own.update(
        {"backend": "gpu_backend", "clock": "wall", "kernels": KERNELS, "device": "cpu", **(label or {})}
    )
    return run
