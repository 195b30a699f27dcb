"""The works that the benchmarks time, and how one run of them is measured."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import simpy

from simulator.config.build import NO_POLICIES, build_machine
from simulator.config.build_scheduler import build_scheduler
from simulator.config.build_workload import build_workload
from simulator.config.loading import load_scenario
from simulator.config.scenario import Scenario
from simulator.engine.serve import serve
from simulator.metrics.summary import summarize
from simulator.request import Request

MOONCAKE = (
    Path(__file__).resolve().parents[1].parent
    / "shared"
    / "data"
    / "traces"
    / "mooncake_conversation_trace.jsonl.gz"
)
CHAT = load_scenario(
    {
        "name": "azure-conv lengths",
        "model": {"name": "llama-3-8b", "max_model_len": 8192},
        "scheduler": {"max_num_batched_tokens": 512},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 6.45},
            "lengths": {"kind": "table", "name": "azure-conv"},
            "num_requests": 19_366,
        },
    }
)
WORKS: dict[str, dict[str, object]] = {
    "a": {},
    "b": {"workload.arrivals.rate": 12, "kv.num_gpu_blocks_override": 4001},
    "c": {
        "workload.trace": str(MOONCAKE),
        "workload.rate_scale": 0.3,
        "workload.spread_ms": 3000,
        "model.name": "llama-3.1-8b",
        "model.max_model_len": 131_072,
        "scheduler.max_num_batched_tokens": 2048,
    },
    "d": {"workload.num_requests": 1_000_000},
    "e static": {"scheduler.batching": "static"},
    "e continuous": {"scheduler.batching": "continuous"},
    "e prefill_first": {"scheduler.batching": "prefill_first"},
}


class Measured(NamedTuple):
    """CPU seconds and counts of one run."""

    build: float  # making the requests
    serve: float  # simulating them
    summary: float
    num_requests: int
    num_tokens: int
    num_steps: int
    num_skipped: int
    skipped_share: float  # of the steps that only decode
    peak_mib: float
    timeout: float  # one bare SimPy timeout, s

    @property
    def total(self) -> float:
        return self.serve + self.summary

    def row(self) -> dict[str, float]:
        """Return the figures that the table shows."""
        return {
            "cpu_s": self.total,
            "build_s": self.build,
            "us_per_request": 1e6 * self.total / self.num_requests,
            "timeouts_per_request": self.total / self.num_requests / self.timeout,
            "requests_per_s": self.num_requests / self.total,
            "tokens_per_s": self.num_tokens / self.total,
            "decisions_per_s": (self.num_steps - self.num_skipped) / self.total,
            "skipped_share": self.skipped_share,
            "peak_mib": self.peak_mib,
        }


def scenario_of(work: str) -> Scenario:
    """Return the scenario of a work."""
    return CHAT.with_(**WORKS[work])


def measure(work: str, *, skip: bool = True) -> Measured:
    """Run a work once, ticked or skipping."""
    scenario = scenario_of(work)
    machine = build_machine(scenario)
    workload = build_workload(scenario, machine.max_model_len).with_blocks(scenario.kv.block_size)
    start = time.process_time()
    lazy = len(workload) > 100_000  # a million objects made beforehand would be most of the memory
    requests: Sequence[Request] = workload.requests if lazy else list(workload.requests)
    built = time.process_time()
    timeout = bare_timeout()
    begun = time.process_time()
    scheduler = build_scheduler(scenario, machine, NO_POLICIES)
    recorder = serve(requests, scheduler, machine.latency, skip=skip).recorder
    served = time.process_time()
    table, gaps = recorder.request_table(requests), recorder.gaps()
    steps = recorder.step_table()
    summarize(table, steps, gaps, slo={"ttft": 0.5, "tpot": 0.05}, ranks=[50, 90, 95, 99])
    done = time.process_time()
    return Measured(
        build=built - start,
        serve=served - begun,
        summary=done - served,
        num_requests=len(requests),
        num_tokens=int(table.num_prompt.sum() + table.num_output.sum()),
        num_steps=len(steps),
        num_skipped=recorder.num_skipped,
        skipped_share=recorder.skipped_decode_share or 0.0,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        timeout=(timeout + bare_timeout()) / 2,
    )


def bare_timeout(n: int = 100_000) -> float:
    """Return the CPU seconds of one SimPy timeout in a process that does nothing else."""
    env = simpy.Environment()

    def wait() -> simpy.events.ProcessGenerator:
        for _ in range(n):
            yield env.timeout(1.0)

    env.process(wait())
    start = time.process_time()
    env.run()
    return (time.process_time() - start) / n
