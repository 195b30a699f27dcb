"""How long a unit takes. On the CPU the clock on the wall; on CUDA events around a graph's replay.

CUDA (untested on hardware): the unit is captured, as often as makes 2 ms, so that no launch gap is in the
time; warm-up is at least 3 calls and 100 ms, for the clock to rise and kernels to be chosen. What cannot be
captured (it copies from or to the host) is timed eagerly, and the row says so. CPU: one sample a
call, many rounds in shuffled order, since a core shared with others is slow in spells, not at random.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple, Protocol

import torch

from gpu_backend.measure.bench import InForward, Uncaptured, Unit

CUDA_SAMPLES = 10
SAMPLE_SECONDS = 2e-3  # that a sample lasts at least
WARM_SECONDS = 0.1
WARM_CALLS = 3
TICK = 1e-7  # a difference of times that is not positive is told as this
MOST_REPEATS = 256  # of a unit within one sample
CPU_ROUNDS = 8
CPU_SAMPLE_SECONDS = 3e-4
DISTURBED = 1.15  # wall over CPU time at which a sample on one thread is taken again


class Timed(NamedTuple):
    """Samples, seconds each, and how they were taken: wall, graph or eager."""

    seconds: list[float]
    mode: str


class Timer(Protocol):
    """Times a unit; every point is timed in `rounds` rounds, each of which may give several samples."""

    rounds: int

    def time(self, unit: Unit) -> Timed: ...


class CpuTimer:
    """One sample a call. `clock` is injected by tests."""

    def __init__(
        self, rounds: int = CPU_ROUNDS, clock: Callable[[], float] = time.perf_counter, *, threads: int = 1
    ) -> None:
        self.rounds = rounds
        self._clock = clock
        self._threads = threads

    def time(self, unit: Unit) -> Timed:
        seconds, busy = self._sample(unit, 1)
        if isinstance(unit, InForward):
            return Timed([unit.watch.seconds], "wall")
        if seconds < CPU_SAMPLE_SECONDS:
            repeats = min(int(CPU_SAMPLE_SECONDS / max(seconds, 1e-9)) + 1, MOST_REPEATS)
            seconds, busy = self._sample(unit, repeats)
        elif self._threads == 1 and seconds > DISTURBED * busy:
            seconds = min(seconds, self._sample(unit, 1)[0])
        return Timed([seconds], "wall")

    def _sample(self, unit: Unit, repeats: int) -> tuple[float, float]:
        busy, began = time.process_time(), self._clock()
        for _ in range(repeats):
            unit()
        return (self._clock() - began) / repeats, (time.process_time() - busy) / repeats


class CudaTimer:
    """All samples of a point at once, from events on the current stream."""

    rounds = 1

    def time(self, unit: Unit) -> Timed:
        if isinstance(unit, InForward):
            rest = median(self.time(unit.without).seconds)
            whole = self.time(unit.whole)
            return Timed([max(seconds - rest, TICK) for seconds in whole.seconds], whole.mode)
        each = self._warm_up(unit)
        repeats = min(max(1, round(SAMPLE_SECONDS / each)), MOST_REPEATS)
        graph = None if isinstance(unit, Uncaptured) else _captured(unit, repeats)

        def eagerly() -> None:
            for _ in range(repeats):
                unit()

        run = eagerly if graph is None else graph.replay
        run()
        samples = [seconds / repeats for seconds in _between_events(run, CUDA_SAMPLES)]
        return Timed(samples, "eager" if graph is None else "graph")

    def _warm_up(self, unit: Unit) -> float:
        """Run for a while; return about how long a call takes."""
        began, calls = time.perf_counter(), 0
        while calls < WARM_CALLS or time.perf_counter() - began < WARM_SECONDS:
            unit()
            torch.cuda.synchronize()
            calls += 1
        return max(min(_between_events(unit, WARM_CALLS)), 1e-6)


def _captured(unit: Unit, repeats: int) -> torch.cuda.CUDAGraph | None:
    """Capture a unit several times over; None if it cannot be."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                unit()
    except RuntimeError:  # torch's word for whatever a stream under capture does not allow
        torch.cuda.synchronize()
        return None
    return graph


def _between_events(run: Unit, samples: int) -> list[float]:
    """Record all pairs of events, wait once, return the seconds between each pair."""
    pairs = [[_event() for _ in range(2)] for _ in range(samples)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def timer_of(device: torch.device, threads: int = 1) -> Timer:
    """Return the timer of a device."""
    return CudaTimer() if device.type == "cuda" else CpuTimer(threads=threads)
