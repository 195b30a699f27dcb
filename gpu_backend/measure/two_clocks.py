"""The later parts of a check: does the engine decide as the simulator does, and how well is it timed?

Needs what the simulator needs, unlike the parts before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_backend.engine import Engine
from gpu_backend.measure.facts import hardware_of
from gpu_backend.measure.parts import FAILED, PASSED, Result
from gpu_backend.replay import at_most, run_and_save
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.experiments.diff import diff
from simulator.experiments.divergence import first_divergence
from simulator.experiments.run_folder import load_run, save_run

TEACHING = "tiny-cpu"
STAND_IN = "a100-80gb-sxm"  # prices the steps of a GPU that the simulator has no figures of
TOLD = ("median_ttft_ms", "median_tpot_ms", "median_e2el_ms", "p99_e2el_ms", "output_throughput")
BUSY: Mapping[str, Any] = {
    "schema": 1,
    "name": "evidence",
    "kv": {"num_gpu_blocks_override": 4097},
    "scheduler": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 4.0},
        "lengths": {"kind": "uniform", "prompt": [128, 1024], "output": [32, 192]},
        "max_tokens": 256,
    },
}
"""What is replayed on a GPU: 64 sequences of 1,280 tokens fit an 8B model's pool of 8 GiB."""


def check_clocks(device: torch.device, num_requests: int, attention: str = "auto") -> Result:
    """Replay the teaching scenario on the predicted clock; decisions and times must be the simulation's."""
    scenario = at_most(load_scenario(TEACHING), num_requests)
    engine = Engine(scenario, device=str(device), clock="predicted", attention=attention)
    machine = engine.run(progress=False)
    model = run_scenario(engine.scenario, decisions=True)
    assert machine.log is not None, "both keep logs"
    assert model.log is not None, "both keep logs"
    parting = first_divergence(machine.log.lines, model.log.lines)
    same_times = np.array_equal(machine.requests.finish, model.requests.finish, equal_nan=True)
    told = f"{len(machine.log.lines)} steps of {num_requests} requests"
    if parting is not None:
        return {"status": FAILED, "told": f"{told}: decided otherwise in step {parting.step}"}
    if not same_times:
        return {"status": FAILED, "told": f"{told}: decided alike, finished at other times"}
    return {"status": PASSED, "told": f"{told}: every decision and time is the simulation's"}


def replay_scenario(device: torch.device, model: str, num_requests: int) -> Scenario:
    """Return what is served on the wall clock: the teaching scenario on a CPU, a busier one on a GPU."""
    if device.type == "cpu":
        scenario = load_scenario(TEACHING).with_(**{"model.name": model, "hardware.gpu": "cpu-1core"})
    else:
        scenario = load_scenario(
            {
                **BUSY,
                "model": {"name": model, "max_model_len": 1280},
                "hardware": {"gpu": hardware_of(device) or STAND_IN},
            }
        )
    return scenario.with_(**{"workload.num_requests": num_requests})


def replay_and_compare(
    device: torch.device,
    model: str,
    num_requests: int,
    out: Path,
    *,
    attention: str = "auto",
    threads: int = 1,
    repeat: bool = False,
) -> Result:
    """Serve on the wall clock, simulate the same, and write both and their difference under `out`.

    The measured run is simulated again at its own times, so the error splits into timing and decisions;
    with `repeat` it is also measured again, for the noise floor.
    """
    scenario = replay_scenario(device, model, num_requests)
    engine = Engine(scenario, device=str(device), clock="wall", attention=attention, threads=threads)
    run_and_save(engine, out / "replay", report=False, progress=False)
    if repeat:
        run_and_save(engine, out / "replay-again", report=False, progress=False)
    save_run(
        run_scenario(engine.scenario, decisions=True),
        out / "model",
        logs=("steps", "decisions"),
        report=False,
    )
    again = [load_run(out / "replay-again")] if repeat else []
    found = diff(load_run(out / "replay"), load_run(out / "model"), repeats=again)
    found.save(out / "diff")
    metrics = {each.name: each.to_dict() for each in found.metrics if each.name in TOLD}
    errors = [
        f"{name} {each['percent']:+.1f} %" for name, each in metrics.items() if each["percent"] is not None
    ]
    parting = "nowhere" if found.divergence is None else f"in step {found.divergence.step}"
    told = f"{num_requests} requests; model against machine: {', '.join(errors)}; decisions part {parting}"
    return {"told": told, "kernels": engine.kernels, "requests": num_requests, "diff": found.to_dict()}
