"""What the host does in a step, measured in the engine's own loop: deciding, building, launching, fetching.

Decodes of dummy requests run through the real scheduler, executor and runner, with a stopwatch on the calls
between them; only steps in which all requests decode count, and the median of each term is kept. The loop is
what is left: events, records, clocks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any  # a stopwatch goes on any method

import numpy as np

from gpu_backend.block_tables import BlockTables
from gpu_backend.executor import TorchExecutor
from gpu_backend.measure.bench import Bench
from gpu_backend.runner import Runner
from gpu_backend.token_book import TokenBook
from simulator.batch import Batch
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.engine.oracle import SimulatedExecutor
from simulator.schedulers.base import Scheduler

PROMPT = 16  # tokens of each dummy request
STEPS = 24  # decode steps that are timed
WARM_STEPS = 4


@dataclass
class HostTerms:
    """Seconds a step, medians. `forward` is launching alone on CUDA, the computation itself on the CPU."""

    schedule: float  # schedule() and update()
    build: float  # rows, block tables, flat tensors
    forward: float
    sync: float  # sampling, fetching the tokens, noting them; on CUDA also waiting for the device
    loop: float  # the rest
    step: float  # all of it

    @property
    def share(self) -> float:
        """What is not the forward pass or sampling, as a share of the step."""
        return (self.schedule + self.build + self.loop) / self.step


@dataclass
class Stopwatch:
    """Adds up the seconds of watched calls, step by step."""

    steps: list[dict[str, float]] = field(default_factory=list)
    current: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def watch(self, owner: Any, name: str) -> None:
        """Put a stopwatch on a method of one object."""
        method = getattr(owner, name)

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            result = method(*args)
            self.current[name] += time.perf_counter() - began
            return result

        setattr(owner, name, timed)

    def step_over(self, **facts: float) -> None:
        """End a step; the next calls belong to the next one."""
        self.steps.append({**self.current, **facts})
        self.current.clear()


def host_terms(bench: Bench, running: int, layers: int) -> HostTerms:
    """Decode with so many requests at once through the bench's first layers; ConfigError if none fit."""
    watch = Stopwatch()

    def make(scheduler: Scheduler, simulated: SimulatedExecutor) -> TorchExecutor:
        size = bench.block_size
        num_blocks = scheduler.kv.pool.num_blocks
        tables = BlockTables(num_blocks, size, -(-scheduler.max_model_len // size) + 1, running)
        runner = Runner(bench.first(layers), bench.kv, tables, TokenBook(), bench.attention)
        runner.warm_up((running,))
        executor = TorchExecutor(scheduler, simulated, runner, _prompt, clock="wall")
        _watch(watch, scheduler, runner, executor, running)
        return executor

    scenario = load_scenario(_scenario(bench, running))
    run_scenario(scenario, make_executor=make)
    every = watch.steps[WARM_STEPS:] if len(watch.steps) > WARM_STEPS else watch.steps
    steps = [step for step in every if step["counts"]]
    return _terms(steps)


def _watch(
    watch: Stopwatch, scheduler: Scheduler, runner: Runner, executor: TorchExecutor, running: int
) -> None:
    for owner, name in (
        (scheduler, "schedule"),
        (scheduler, "update"),
        (runner, "_flatten"),
        (runner, "run"),
        (executor, "_compute"),
    ):
        watch.watch(owner, name)
    execute: Callable[..., Any] = executor.execute
    last = [time.perf_counter()]

    def stepped(batch: Batch, start: float) -> Any:
        began = time.perf_counter()
        result = execute(batch, start)
        now = time.perf_counter()
        counts = batch.num_decodes == running and not batch.chunks
        watch.step_over(execute=now - began, period=now - last[0], counts=counts)
        last[0] = now
        return result

    executor.execute = stepped  # type: ignore[method-assign]  # the stopwatch


def _terms(steps: list[dict[str, float]]) -> HostTerms:
    def of(*plus: str, minus: tuple[str, ...] = ()) -> float:
        sums = [sum(s.get(k, 0.0) for k in plus) - sum(s.get(k, 0.0) for k in minus) for s in steps]
        return max(median(sums), 1e-9)

    return HostTerms(
        schedule=of("schedule", "update"),
        build=of("execute", "_flatten", minus=("_compute",)),
        forward=of("run", minus=("_flatten",)),
        sync=of("_compute", minus=("run",)),
        loop=of("period", minus=("execute", "schedule", "update")),
        step=of("period"),
    )


def _prompt(request: object, index: int) -> np.ndarray:
    return np.zeros(PROMPT, dtype=np.int64)


def _scenario(bench: Bench, running: int) -> dict[str, Any]:
    """Describe requests that arrive at once and decode together; model and GPU size what is unused."""
    per_request = -(-(PROMPT + WARM_STEPS + STEPS) // bench.block_size) + 1
    return {
        "schema": 1,
        "name": "host",
        "model": {"name": "tiny-llama-28m", "max_model_len": 512},
        "hardware": {"gpu": "cpu-1core"},
        "kv": {
            "block_size": bench.block_size,
            "num_gpu_blocks_override": min(running * per_request + 2, bench.kv.dummy_block),
        },
        "scheduler": {"max_num_seqs": running, "max_num_batched_tokens": max(512, running * PROMPT)},
        "latency": {"kind": "linear", "coefficients": {"constant": 0.01}},
        "workload": {
            "arrivals": {"kind": "all_at_once"},
            "lengths": {"kind": "constant", "prompt": PROMPT, "output": WARM_STEPS + STEPS},
            "max_tokens": WARM_STEPS + STEPS,
            "num_requests": running,
        },
    }
