"""`servetwin gpu check`: one command for any machine; each part is on disk when it ends.

The first parts (device, kernels, graphs, speed) need PyTorch, NumPy, Triton and safetensors alone, so that
they run where nothing else is installed: `python -m gpu_backend.measure`. The later ones (host, clocks,
replay) run the simulator too. Correctness can fail; speed is compared with goals and reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from gpu_backend.attention.choose import choose_attention
from gpu_backend.device import choose_device, free_bytes
from gpu_backend.measure.bench import Bench
from gpu_backend.measure.clocks import Clocks
from gpu_backend.measure.engine_graphs import EngineGraphs
from gpu_backend.measure.facts import facts, release
from gpu_backend.measure.measure import MakeGraphs, check_minutes, make_bench, read_config
from gpu_backend.measure.parts import Parts, Result, Skip
from gpu_backend.measure.timers import Timer, timer_of

LARGE, SMALL = "llama-3.1-8b", "tiny-llama-28m"
LARGE_BYTES = 40e9  # weights, KV and what measuring takes of the large model
SPEED_SHARE = 0.4  # of the time, until which decodes of further batch sizes are measured
REPLAY_SECONDS = {"cuda": 0.35, "cpu": 1.0}  # that a request of the replay takes, arrivals included
MOST_REQUESTS, FEWEST_REQUESTS = 40, 4
CLOCK_REQUESTS = 12


@dataclass
class Context:
    """What the parts share. `deadline` is on `time.monotonic`'s clock."""

    device: torch.device
    model: str
    attention: str
    threads: int
    out: Path
    began: float
    deadline: float
    graphs: MakeGraphs = EngineGraphs.of

    @cached_property
    def bench(self) -> Bench:
        return make_bench(self.model, str(self.device), self.attention, self.threads)

    @cached_property
    def timer(self) -> Timer:
        return timer_of(self.device, self.threads)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def drop_bench(self) -> None:
        """Leave its memory to an engine; a part that needs it makes it again."""
        self.__dict__.pop("bench", None)
        release(self.device)

    def need(self, seconds: float) -> None:
        """Skip the part unless so much time is left."""
        if self.left < seconds:
            raise Skip(f"{max(self.left, 0):.0f} s are left of the minutes given, it needs {seconds:.0f}")


def num_requests(device: torch.device, seconds: float, runs: int = 1) -> int:
    """Return how many requests can be replayed so many times in the time left."""
    return max(FEWEST_REQUESTS, min(MOST_REQUESTS, int(seconds / REPLAY_SECONDS[device.type] / runs)))


def device_part(context: Context) -> Result:
    found = facts(context.device)
    clocks = Clocks(context.device).read()
    free = free_bytes(context.device)
    told = f"{found['name']}, {free / 2**30:.1f} GiB free, torch {found['torch']}, driver {found['driver']}"
    return {"told": told, **found, "free_bytes": free, "clocks": clocks}


def kernels_part(context: Context) -> Result:
    from gpu_backend.measure.correctness import check_kernels

    return check_kernels(context.device)


def graphs_part(context: Context) -> Result:
    from gpu_backend.measure.correctness import check_graphs

    if context.device.type != "cuda":
        raise Skip("CUDA graphs need CUDA")
    return check_graphs(context.bench)


def speed_part(context: Context) -> Result:
    from gpu_backend.measure.speed import check_speed

    context.need(5)
    share = context.began + SPEED_SHARE * (context.deadline - context.began)
    return check_speed(context.bench, context.timer, share)


def host_part(context: Context) -> Result:
    from gpu_backend.measure.speed import check_host

    context.need(2)
    return check_host(context.bench, context.timer, context.graphs(context.bench))


def clocks_part(context: Context) -> Result:
    from gpu_backend.measure.two_clocks import check_clocks

    context.need(3)
    context.drop_bench()
    return check_clocks(context.device, CLOCK_REQUESTS, context.attention)


def replay_part(context: Context) -> Result:
    from gpu_backend.measure.two_clocks import replay_and_compare

    context.need(FEWEST_REQUESTS * REPLAY_SECONDS[context.device.type])
    number = num_requests(context.device, context.left)
    context.drop_bench()
    return replay_and_compare(
        context.device,
        context.model,
        number,
        context.out,
        attention=context.attention,
        threads=context.threads,
    )


Part = Callable[[Context], Result]
PARTS: Mapping[str, Part] = {
    "device": device_part,
    "kernels": kernels_part,
    "graphs": graphs_part,
    "speed": speed_part,
    "host": host_part,
    "clocks": clocks_part,
    "replay": replay_part,
}
FIRST_PARTS = ("device", "kernels", "graphs", "speed")  # that need PyTorch and Triton alone


def check(
    out: str | Path,
    *,
    device: str = "auto",
    minutes: float = 5.0,
    model: str | None = None,
    attention: str = "auto",
    threads: int = 1,
    parts: Mapping[str, Part] = PARTS,
    resumes: bool = False,
    graphs: MakeGraphs = EngineGraphs.of,
    tell: Callable[[str, Result], object] | None = None,
) -> Parts:
    """Run the parts in turn and write `out`/check.json after each; `.failed` of what is returned names some.

    The model whose speed is measured is Llama 3.1 8B where it fits, else the teaching one; weights are
    random. `tell` hears of every part that ends. ConfigError or InputError says what cannot be done.
    """
    check_minutes(minutes)
    chosen = choose_device(device)
    if chosen.type == "cpu":
        torch.set_num_threads(threads)
    choose_attention(attention, chosen)
    model = model or default_model(chosen)
    read_config(model)
    began = time.monotonic()
    deadline = began + 60 * minutes
    context = Context(chosen, model, attention, threads, Path(out), began, deadline, graphs)
    head = {"machine": facts(chosen), "model": model, "minutes": minutes, "date": today()}
    book = Parts(Path(out) / "check.json", head, resumes, tell)
    for name, part in parts.items():
        book.run(name, lambda part=part: part(context))  # type: ignore[misc]  # mypy: a default in a lambda
    return book


def default_model(device: torch.device) -> str:
    """Return the model that is measured unless one is named."""
    return LARGE if device.type == "cuda" and free_bytes(device) >= LARGE_BYTES else SMALL


def today() -> str:
    """Return the date, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())
