"""The machine that `make validate-cpu` asks: the CPU engine on the teaching scenario, one thread.

python -m gpu_backend.measure.cpu_engine -o runs/validate-cpu
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import torch

from calibration.command import run_fit
from gpu_backend.engine import Engine
from gpu_backend.measure.bench import Bench
from gpu_backend.measure.measure import make_bench, measure
from gpu_backend.measure.points import Point
from gpu_backend.measure.timers import timer_of
from gpu_backend.measure.validate import ATTEMPTS, EXIT, Summary, save, validate
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import SimulatorError

TEACHING = "tiny-cpu"
MODEL = "tiny-llama-28m"
HARDWARE = "cpu-1core"
CANARY = Point("step", (128,) * 8)
CANARY_SAMPLES = 31
MINUTES = 3.0  # for `gpu measure`, which takes about one


class CpuEngine:
    """Replays and simulates the teaching scenario; each attempt's timings and profile go into a folder."""

    def __init__(self, folder: Path, num_requests: int) -> None:
        self._folder = folder
        self._number = 0
        scenario = load_scenario(TEACHING)
        # the engine computes step by step: nothing of the host is hidden
        changed = {"workload.num_requests": num_requests, "scheduler.async_scheduling": False}
        self._scenario = scenario.with_(**changed)
        self._engines: dict[str, Engine] = {}
        self._bench: Bench = make_bench(MODEL, "cpu", "auto", 1)

    @property
    def _profile(self) -> Path:
        return self._folder / f"attempt-{self._number}" / "profile.json"

    @torch.inference_mode()
    def canary(self) -> float:
        unit, timer = self._bench.unit(CANARY, self._bench.layers[-1]), timer_of(self._bench.device, 1)
        return median(s for _ in range(CANARY_SAMPLES) for s in timer.time(unit).seconds)

    def calibrate(self) -> list[str]:
        self._number += 1
        timings = self._profile.with_name("timings.csv")
        measure(MODEL, timings, device="cpu", minutes=MINUTES)
        return list(run_fit([timings], self._profile, HARDWARE, [MODEL], []))

    def replay(self, policy: str) -> Summary:
        if policy not in self._engines:
            self._engines[policy] = Engine(self._with(policy), device="cpu", clock="wall")
        before = time.process_time()
        made = self._engines[policy].run(progress=False)
        busy = time.process_time() - before  # with building the run: a little too much
        return {
            **made.summary,
            "core_share": min(1.0, busy / float((made.steps.end - made.steps.start).sum())),
        }

    def simulate(self, policy: str) -> Summary:
        latency = {"kind": "profile", "profile": str(self._profile)}
        return run_scenario(self._with(policy, latency=latency)).summary

    def _with(self, policy: str, **changes: object) -> Scenario:
        return self._scenario.with_(**{"scheduler.batching": policy}, **changes)


def main(arguments: list[str] | None = None) -> int:
    """Run the validation; the exit status is 0 if it passed, 1 if it missed, 2 if it was inconclusive."""
    parser = argparse.ArgumentParser(prog="validate-cpu", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/validate-cpu"))
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--attempts", type=int, default=ATTEMPTS)
    chosen = parser.parse_args(arguments)
    try:
        made = validate(CpuEngine(chosen.out, chosen.requests), _say, chosen.attempts)
    except SimulatorError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT["missed"]
    save(chosen.out / "validate.json", made)
    _say(f"Wrote {chosen.out / 'validate.json'}")
    return EXIT[made[-1].verdict]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
