"""One session of measuring: points in groups, shuffled, against a deadline, with an eye on drift.

A group's points are timed in rounds, each in a new order. After the first round what the time left does not
allow is dropped, the least valuable first. Drift: on CUDA five anchor points are timed at the start, in the
middle and at the end, since clocks cannot be locked; on the CPU a canary step after every eighth point, since
a shared core is slow in spells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import numpy as np
import torch

from gpu_backend.measure.bench import Bench, Uncaptured, Unit
from gpu_backend.measure.clocks import Clocks
from gpu_backend.measure.layer_counts import LAYERS
from gpu_backend.measure.points import Group, Point
from gpu_backend.measure.timers import Timer
from gpu_backend.measure.timings_file import UNIT, Row, TimingsFile, counts_of

LAYERED = ("dense", "decode_attention", "prefill_attention", "mixed_attention", "skewed_attention")
WHOLE = ("step", "graph_step")  # extrapolated to all layers
FEWEST_ROUNDS = 3  # of a point that is kept though time ran out
CANARY_EVERY = 8  # points
SECOND = 1e6  # in the file's unit
Progress = Callable[[int, int], object]


class Graphs(Protocol):
    """Captured decode steps, for engines that have them: which sizes, and a callable that replays one."""

    @property
    def sizes(self) -> Sequence[int]: ...

    def unit(self, point: Point, layers: int) -> Unit: ...


def extrapolate(few: float, many: float, layers: tuple[int, int] = LAYERS) -> tuple[float, float]:
    """Split times of so many layers into (once a step, a layer); what comes once is never negative.

    >>> extrapolate(0.25, 0.45)
    (0.05, 0.1)
    """
    low, high = layers
    layer = (many - few) / (high - low)
    fixed = few - low * layer
    if layer <= 0 or fixed < 0:  # noise: the layers take it all
        return 0.0, many / high
    return round(fixed, 12), round(layer, 12)


@dataclass
class Session:
    """Times groups of points and adds the rows to a file. `deadline` is on `time.monotonic`'s clock."""

    bench: Bench
    timer: Timer
    file: TimingsFile
    deadline: float
    graphs: Graphs | None = None
    progress: Progress | None = None
    num_points: int = 0  # that were measured now
    num_known: int = 0  # that the file had already
    num_dropped: int = 0
    anchors: dict[str, list[float]] = field(default_factory=dict)  # seconds at start, middle, end
    canary: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._clocks = Clocks(self.bench.device)
        self._is_cuda = self.bench.device.type == "cuda"
        self._watched = {f"anchor {i}": each for i, each in enumerate(_anchors(self.bench))}
        self._canary = self.bench.unit(_canary(self.bench), max(LAYERS))
        self._num_timed = 0
        self._done = self._total = 0

    @torch.inference_mode()
    def run(self, every: Sequence[Group]) -> None:
        """Measure what the file lacks, group by group, and write after each."""
        todo = [(group, [p for p in group.points if not self._has(p)]) for group in every]
        self.num_known = sum(len(group.points) - len(points) for group, points in todo)
        todo = [(group, points) for group, points in todo if points]
        self._total = sum(len(points) for _, points in todo)
        for i, (_, points) in enumerate(todo):
            if self._is_cuda and i in (0, len(todo) // 2):
                self._time_anchors()
            self.file.add(self._host(points) if points[0].op == "host" else self._group(points))
        if self._is_cuda and todo:
            self._time_anchors()

    @property
    def drift(self) -> float | None:
        """By how much the same thing took longer at the end than at the start; None if not known.

        The largest change of an anchor; of the canary, its last third against its first.
        """
        if self._is_cuda:
            changes = [max(times) / min(times) - 1 for times in self.anchors.values() if len(times) > 1]
            return max(changes, default=None)
        third = len(self.canary) // 3
        return median(self.canary[-third:]) / median(self.canary[:third]) - 1 if third else None

    # Inside.

    def _has(self, point: Point) -> bool:
        op = "host_schedule" if point.op == "host" else point.op
        return self.file.has(self._counts(point), op)

    def _counts(self, point: Point) -> dict[str, int]:
        bench = self.bench
        per_token = 2 * bench.config.num_layers * bench.config.num_kv_heads * bench.config.head_dim
        return counts_of(point, bench.config, per_token * bench.dtype.itemsize * bench.block_size)

    def _group(self, points: Sequence[Point]) -> list[Row]:
        samples: dict[Point, dict[int, list[float]]] = {point: {} for point in points}
        units: dict[tuple[Point, int], Unit] = {}
        facts: dict[Point, Row] = {}
        kept = list(points)
        for number in range(self.timer.rounds):
            if self._is_late and number >= FEWEST_ROUNDS:
                break
            costs: dict[Point, float] = {}
            for i in self._rng.permutation(len(kept)).tolist():
                point = kept[i]
                if self._is_late and number == 0:
                    continue
                costs[point], facts[point] = self._time(point, samples[point], units)
            if number == 0:
                rounds = min(self.timer.rounds, FEWEST_ROUNDS if self._is_late else self.timer.rounds) - 1
                kept = affordable([p for p in kept if p in costs], costs, self._left, rounds)
        self.num_points += len(kept)
        self.num_dropped += len(points) - len(kept)
        self._show(len(points))
        return [self._row(point, samples[point]) | facts[point] for point in kept]

    def _time(
        self, point: Point, samples: dict[int, list[float]], units: dict[tuple[Point, int], Unit]
    ) -> tuple[float, Row]:
        """Time a point once; return what that cost (s) and how it was done. Units are kept between rounds."""
        cost, mode = 0.0, ""
        for layers in self._layers(point):
            unit = units.get((point, layers))
            if unit is None:
                unit = self._unit(point, layers)
                if self.timer.rounds > 1:
                    units[point, layers] = unit
                unit()
            began = time.monotonic()
            timed = self.timer.time(unit)
            cost += time.monotonic() - began
            samples.setdefault(layers, []).extend(timed.seconds)
            mode = timed.mode
        self._num_timed += 1
        if not self._is_cuda and self._num_timed % CANARY_EVERY == 0:
            self.canary += self.timer.time(self._canary).seconds
        return cost, {"mode": mode, **self._clocks.read()}

    def _layers(self, point: Point) -> tuple[int, ...]:
        """Return the layer counts to time: one for what has no layers, or is timed with all of them."""
        counts = self.bench.layers
        is_whole = point.op in WHOLE and counts[-1] == self.bench.config.num_layers
        return counts if point.op in (*LAYERED, *WHOLE) and not is_whole else counts[-1:]

    def _unit(self, point: Point, layers: int) -> Unit:
        if point.op != "graph_step":
            return self.bench.unit(point, layers)
        assert self.graphs is not None, "graph sizes come from graphs"
        return Uncaptured(self.graphs.unit(point, layers))

    def _row(self, point: Point, samples: dict[int, list[float]]) -> Row:
        """Sum up a point's samples: their median; on a CPU the mean: a run pays for slow spells too."""
        typical = {
            layers: float((np.median if self._is_cuda else np.mean)(t)) for layers, t in samples.items()
        }
        few, many = self.bench.layers
        most = samples[many]
        fixed, seconds = 0.0, typical[many]
        if len(samples) > 1:
            fixed, seconds = extrapolate(typical[few], typical[many], self.bench.layers)
            if point.op in WHOLE:
                fixed, seconds = 0.0, fixed + self.bench.config.num_layers * seconds
        scale = seconds / typical[many]
        low, high = (scale * float(np.quantile(most, q)) for q in (0.1, 0.9))
        row = self._written(point.op, self._counts(point), seconds, len(most))
        return row | {"p10": _number(low), "p90": _number(high), "fixed": _number(fixed)}

    def _host(self, points: Sequence[Point]) -> list[Row]:
        """Measure the host's terms; a launch of all layers is extrapolated."""
        from gpu_backend.measure.host import STEPS, host_terms

        rows = []
        for point in points:
            if self._is_late:
                self.num_dropped += 1
                continue
            few, many = (host_terms(self.bench, point.m, layers) for layers in self.bench.layers)
            terms = {name: getattr(few, name) for name in ("schedule", "build", "sync", "loop")}
            if self._is_cuda:
                fixed, layer = extrapolate(few.forward, many.forward, self.bench.layers)
                terms["launch"] = fixed + self.bench.config.num_layers * layer
            counts = self._counts(point)
            rows += [self._written(f"host_{name}", counts, value, STEPS) for name, value in terms.items()]
            self.num_points += 1
        self._show(len(points))
        return [row | {"mode": "wall"} for row in rows]

    def _written(self, op: str, counts: dict[str, int], seconds: float, samples: int) -> Row:
        told = self.file.settings
        facts = {name: told[name] for name in ("device", "source", "model")}
        return {"op": op, **counts, "latency": _number(seconds), "unit": UNIT, "samples": samples, **facts}

    def _time_anchors(self) -> None:
        for name, point in self._watched.items():
            timed = self.timer.time(self.bench.unit(point, max(LAYERS)))
            self.anchors.setdefault(name, []).append(median(timed.seconds))

    @property
    def _left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def _is_late(self) -> bool:
        return self._left <= 0

    def _show(self, more: int) -> None:
        self._done += more
        if self.progress is not None:
            self.progress(self._done, self._total)


def affordable(points: Sequence[Point], costs: dict[Point, float], left: float, rounds: int) -> list[Point]:
    """Return the first points, the most valuable, whose further rounds fit into the time left (s)."""
    if not rounds:
        return list(points)
    kept, spent = [], 0.0
    for point in points:
        spent += rounds * costs[point]
        if spent > left:
            break
        kept.append(point)
    return kept


def _canary(bench: Bench) -> Point:
    return Point("step", (min(128, bench.config.max_model_len),) * 8)


def _anchors(bench: Bench) -> list[Point]:
    context = min(1024, bench.config.max_model_len, bench.most_kv // 16)
    decodes = (context,) * 8
    return [
        Point("dense", m=1),
        Point("dense", m=256),
        Point("decode_attention", decodes),
        Point("mixed_attention", decodes, ((context // 2, context),)),
        Point("head", m=8),
    ]


def _number(seconds: float) -> str:
    return f"{seconds * SECOND:.6g}"
