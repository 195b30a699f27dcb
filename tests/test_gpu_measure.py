"""Measuring: which points, extrapolated layers, the file and its resumption, what calibration reads of it."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import csv
import json
import math
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor
from typer.testing import CliRunner

from calibration.timings import COUNTS, HOST, MEASURED, Timing, read_timings_csv
from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.cli import app
from gpu_backend.engine import Engine
from gpu_backend.measure import clocks
from gpu_backend.measure.bench import Bench, InForward, Uncaptured, Watch
from gpu_backend.measure.host import HostTerms, _terms, host_terms
from gpu_backend.measure.measure import Measured, make_bench, measure
from gpu_backend.measure.points import CPU, CUDA, EDGES, Grid, Group, Point, groups
from gpu_backend.measure.session import LAYERED, Session, affordable, extrapolate
from gpu_backend.measure.timers import CpuTimer, CudaTimer, Timed, Timer
from gpu_backend.measure.timings_file import TimingsFile
from simulator.errors import ConfigError, InputError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}
SMALL = Grid(
    dense=(1, 4, 8),
    batches=(1, 2, 4),
    lengths=(16, 32),
    chunks=(8, 16),
    prefixes=(0, 8),
    mixed=((8,), (2, 3), (16, 32)),
    rows=(1, 4),
    running=(2,),
    copies=(1, 4),
    num_skewed=2,
)
IGNORED_ON_THE_CPU = {"graph_step", "host_launch"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture(scope="module")
def bench(model: str) -> Bench:
    return make_bench(model, "cpu", "auto", 1)


def run(model: str, out: Path, **changes: Any) -> Measured:
    settings: dict[str, Any] = {"device": "cpu", "grid": SMALL, "timer": CpuTimer(rounds=2)}
    return measure(model, out, **settings | changes)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def keys(path: Path) -> list[tuple[object, ...]]:
    return sorted((t.op, *(getattr(t, name) for name in COUNTS)) for t in read_timings_csv(path))


class Interrupting:
    """Stops like Ctrl-C in the midst of a group."""

    rounds = 2

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def time(self, unit: Callable[[], object]) -> Timed:
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return Timed([1e-3], "wall")


# ---- which points ----


def test_the_grid_of_a_gpu_has_its_edges_and_fits_its_minutes() -> None:
    every = groups(CUDA, most_kv=1 << 19, longest=131_072, edges=True)
    points = [point for group in every for point in group.points]
    assert 200 <= len(points) <= 330
    assert len(points) == len(set(points))
    assert {Point("dense", m=edge + 1) for edge in EDGES} <= set(points)
    assert every[0].name == "mixed batches"
    assert max(point.kv for point in points) <= 1 << 19
    assert any(len(point.chunks) == 2 for point in points if point.op == "mixed_attention")


def test_no_point_is_longer_than_the_model_allows() -> None:
    for grid, longest in ((CUDA, 4096), (CPU, 512), (SMALL, 32), (CPU, 100)):
        for group in groups(grid, most_kv=1 << 13, longest=longest, edges=True, graphs=[4]):
            for point in group.points:
                contexts = [*point.decodes, *(context for _, context in point.chunks)]
                assert max(contexts, default=0) <= longest, point
                assert all(tokens <= context for tokens, context in point.chunks)


def test_blocks_are_drawn_without_replacement_and_slots_are_in_the_tables(bench: Bench) -> None:
    point = Point("mixed_attention", (17, 40, 16), ((9, 30), (16, 16)))
    positions, inputs = bench.inputs(point)
    used = [inputs.decode_tables[i, : -(-n // 16)] for i, n in enumerate(point.decodes)]
    used += [inputs.chunk_tables[i, : -(-n // 16)] for i, (_, n) in enumerate(point.chunks)]
    blocks = torch.cat(used).tolist()
    assert len(blocks) == len(set(blocks)) == 2 + 3 + 1 + 2 + 1
    assert positions.tolist() == [16, 39, 15, *range(21, 30), *range(16)]
    assert inputs.slots[1] == inputs.decode_tables[1, 39 // 16] * 16 + 39 % 16
    assert inputs.slots[3] == inputs.chunk_tables[0, 21 // 16] * 16 + 21 % 16
    assert [tuple(chunk) for chunk in inputs.chunks] == [(3, 9, 30), (12, 16, 16)]
    assert inputs.chunk_starts.tolist() == [0, 9, 25]


def test_attention_alone_counts_of_a_forward_pass(bench: Bench) -> None:
    unit = bench.unit(Point("decode_attention", (32,) * 4), 2)
    assert isinstance(unit, InForward)
    unit()
    first = unit.watch.seconds
    assert first > 0
    unit()
    assert unit.watch.seconds < 2 * first + 1  # of the last call, not of all


# ---- extrapolation ----


class Counting(SdpaGather):
    """Knows how many layers ran: each writes once."""

    layers = 0

    def write(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        self.layers += 1
        super().write(k, v, keys, values, slots)


class Fake:
    """A device on which a pass takes 3 ms and each layer 0.7 ms."""

    rounds = 1

    def __init__(self, attention: Counting) -> None:
        self.attention = attention

    def time(self, unit: Callable[[], object]) -> Timed:
        self.attention.layers = 0
        unit()
        return Timed([3e-3 + 0.7e-3 * self.attention.layers], "wall")


def test_extrapolated_layers_are_what_a_direct_measurement_gives(model: str, tmp_path: Path) -> None:
    attention = Counting()
    known = make_bench(model, "cpu", "auto", 1)
    bench = Bench(known.config, known.device, known.dtype, attention)
    timer: Timer = Fake(attention)
    file = TimingsFile(tmp_path / "t.csv", {"device": "d", "source": "s", "model": "m"})
    session = Session(bench, timer, file, math.inf)
    step, dense = Point("step", (16,) * 4), Point("dense", m=8)
    session.run([Group("both", (step, dense))])
    found = {row["op"]: row for row in file.rows}
    whole = timer.time(bench.unit(step, bench.config.num_layers)).seconds[0]  # 3 of the 4 layers there are
    assert float(found["step"]["latency"]) == pytest.approx(1e6 * whole)
    assert float(found["dense"]["latency"]) == pytest.approx(700)
    assert float(found["dense"]["fixed"]) == pytest.approx(3000)


@pytest.mark.parametrize(("few", "many"), [(2.0, 1.9), (2.0, 4.4)])
def test_noise_makes_no_layer_free_and_nothing_negative(few: float, many: float) -> None:
    assert extrapolate(few, many) == (0.0, many / 4)


def test_what_time_does_not_allow_is_dropped_from_the_end() -> None:
    points = [Point("dense", m=m) for m in (1, 2, 3)]
    costs = dict(zip(points, (1.0, 2.0, 3.0), strict=True))
    assert affordable(points, costs, 17.9, 3) == points[:2]
    assert affordable(points, costs, 18.0, 3) == points
    assert affordable(points, costs, -1.0, 0) == points


# ---- the file ----


def test_every_row_is_read_by_calibration(model: str, tmp_path: Path) -> None:
    done = run(model, tmp_path / "t.csv")
    rows = rows_of(tmp_path / "t.csv")
    timings: list[Timing] = list(read_timings_csv(tmp_path / "t.csv"))
    attention = {"decode_attention", "prefill_attention"}
    assert {t.op for t in timings} == (set(MEASURED) | attention) - IGNORED_ON_THE_CPU
    assert done.num_points == len(rows) - (len(HOST) - 2)  # one host point gives four rows
    assert {t.source for t in timings} == {"servetwin sdpa/cpu/float32"}
    for row, timing in zip(rows, timings, strict=True):
        assert timing.seconds == pytest.approx(float(row["latency"]) / 1e6)
        assert row["op"].startswith("host") or float(row["p10"]) <= float(row["p90"])
    mixed = next(t for t in timings if t.op == "mixed_attention" and t.batch == 2 and t.kv == 16)
    assert (mixed.tokens, mixed.heads, mixed.kv_heads) == (8, 4, 2)
    assert {t.n for t in timings if t.op == "copy_out"} == {2 * 3 * 2 * 8 * 4 * 16}


def test_kernels_are_named_as_the_engine_names_them(bench: Bench, model: str) -> None:
    scenario = {"model.name": model, "model.max_model_len": 120}
    assert bench.kernels == Engine("tiny-cpu", device="cpu", set=scenario).kernels


def test_an_interrupted_run_goes_on_to_the_same_points(model: str, tmp_path: Path) -> None:
    run(model, tmp_path / "whole.csv")
    part = tmp_path / "part.csv"
    with pytest.raises(KeyboardInterrupt):
        run(model, part, timer=Interrupting(20))
    before = rows_of(part)
    assert 0 < len(before) < len(rows_of(tmp_path / "whole.csv"))
    done = run(model, part)
    assert (done.num_known, done.num_dropped) == (len(before), 0)
    assert rows_of(part)[: len(before)] == before
    assert keys(part) == keys(tmp_path / "whole.csv")
    assert run(model, part).num_points == 0
    sessions = json.loads((tmp_path / "part.settings.json").read_text())["sessions"]
    assert [session["ended"] is None for session in sessions] == [True, False, False]


def test_too_few_minutes_drop_points_and_say_how_many(model: str, tmp_path: Path) -> None:
    done = run(model, tmp_path / "t.csv", minutes=1e-4)
    assert done.num_dropped > 0
    assert f"{done.num_dropped} points, the least valuable, were dropped: the time was over" in done.notes
    whole = run(model, tmp_path / "t.csv")
    assert whole.num_known == done.num_points
    assert whole.num_points == done.num_dropped


def test_rows_measured_otherwise_are_not_mixed(model: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    run(model, path, minutes=1e-5)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**CONFIG, "num_hidden_layers": 5}))
    with pytest.raises(InputError, match=r"t\.csv: was measured with model .*config\.json, not .*other"):
        run(str(other), path)
    with pytest.raises(InputError, match="was measured with rounds 2, not 3"):
        run(model, path, timer=CpuTimer(rounds=3))
    settings = tmp_path / "t.settings.json"
    settings.write_text("{}")
    with pytest.raises(InputError, match="holds no settings"):
        run(model, path)
    settings.unlink()
    with pytest.raises(InputError, match=r"lies there without t\.settings\.json"):
        run(model, path)


def test_graphs_are_measured_where_an_engine_has_them(model: str, tmp_path: Path) -> None:
    class Captured:
        sizes = (2, 4)

        def unit(self, point: Point, layers: int) -> Callable[[], object]:
            return lambda: None

    done = run(model, tmp_path / "t.csv", graphs=lambda bench: Captured())
    found = [t for t in read_timings_csv(tmp_path / "t.csv") if t.op == "graph_step"]
    assert sorted((t.m, t.batch, t.kv) for t in found) == [(2, 2, 128), (4, 4, 128)]
    assert not any("graph" in note for note in done.notes)


# ---- the host ----


def test_the_terms_of_the_host_are_the_gaps_between_watched_calls() -> None:
    step = {"schedule": 2.0, "update": 1.0, "_flatten": 4.0, "run": 20.0, "_compute": 25.0, "execute": 32.0}
    terms = _terms([step | {"period": 40.0}] * 3)
    assert terms == HostTerms(schedule=3, build=11, forward=16, sync=5, loop=5, step=40)
    assert terms.share == 19 / 40


def test_only_steps_in_which_all_decode_count(bench: Bench) -> None:
    terms = host_terms(bench, 3, 2)
    parts = (terms.schedule, terms.build, terms.forward, terms.sync, terms.loop)
    assert all(part > 1e-9 for part in parts)


# ---- the command ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "model.name: 'nosuch' is neither"),
        (["tiny-llama-28m", "--minutes", "0"], "--minutes 0: must be a number above 0"),
        (["tiny-llama-28m", "--minutes", "-2"], "--minutes -2: must be"),
        (["tiny-llama-28m", "--minutes", "nan"], "--minutes nan: must be"),
        (["tiny-llama-28m", "--threads", "0"], "--threads 0: must be"),
        (["tiny-llama-28m", "-o", "/dev/null/t.csv"], "cannot be written"),
        (["tiny-llama-28m", "-o", "t.txt"], r"t\.txt: timings are a \.csv file"),
        (["tiny-llama-28m", "--attention", "tritn"], "did you mean triton"),
        (["deepseek-v3"], "mixture-of-experts"),
    ],
)
def test_what_cannot_be_measured_says_why(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, InputError), match=words) as caught:
        CliRunner().invoke(app, ["measure", *arguments, "--device", "cpu"], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_samples_of_a_clock_are_taken_as_they_are() -> None:
    ticks = iter(np.arange(0, 100, 0.25))
    timed = CpuTimer(clock=lambda: float(next(ticks)), threads=2).time(lambda: None)
    assert timed == Timed([0.25], "wall")


def test_all_layered_operations_are_read_by_calibration() -> None:
    assert set(LAYERED) <= set(MEASURED) | {"decode_attention", "prefill_attention"}


# ---- the paths of a GPU, with stand-ins ----


class Device:
    """CUDA's clock and graphs as far as a timer uses them; a unit advances the clock."""

    def __init__(self, *, captures: bool) -> None:
        self.now, self.captures, self.nodes = 0.0, captures, 0
        self.recording = False

    def unit(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            if self.recording and not self.captures:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.nodes += self.recording
            self.now += 0 if self.recording else seconds

        return run

    def install(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = device.now

            def elapsed_time(self, end: Event) -> float:
                return 1e3 * (end.at - self.at)

        class Graph:
            def replay(self) -> None:
                device.now += device.nodes * seconds

        @contextmanager
        def capture(graph: Graph) -> Iterator[None]:
            device.recording, device.nodes = True, 0
            try:
                yield
            finally:
                device.recording = False

        for name, value in (("Event", Event), ("CUDAGraph", Graph), ("graph", capture)):
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.cuda, "synchronize", lambda: None)
        patch.setattr("gpu_backend.measure.timers.WARM_SECONDS", 0.0)


@pytest.mark.parametrize(("captures", "mode"), [(True, "graph"), (False, "eager")])
def test_a_sample_on_cuda_is_long_enough_and_captured_where_it_can_be(
    captures: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(captures=captures)
    device.install(monkeypatch, 1e-4)
    timed = CudaTimer().time(device.unit(1e-4))
    assert timed.mode == mode
    assert timed.seconds == pytest.approx([1e-4] * 10)
    assert device.nodes == (20 if captures else 0)  # 2 ms
    assert CudaTimer().time(Uncaptured(device.unit(1e-4))).mode == "eager"


def test_attention_on_cuda_is_what_a_pass_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(captures=False)
    device.install(monkeypatch, 0.0)
    timed = CudaTimer().time(InForward(device.unit(5e-3), device.unit(3e-3), Watch()))
    assert timed.seconds == pytest.approx([2e-3] * 10)


def test_anchors_and_launches_are_measured_on_a_gpu(bench: Bench, tmp_path: Path) -> None:
    file = TimingsFile(tmp_path / "t.csv", {"device": "d", "source": "s", "model": "m"})
    session = Session(bench, CpuTimer(rounds=1), file, math.inf)
    session._is_cuda = True
    session.run([Group("a", (Point("dense", m=1),)), Group("b", (Point("host", m=2),))])
    assert {name: len(times) for name, times in session.anchors.items()} == {
        f"anchor {i}": 3 for i in range(5)
    }
    assert session.drift is not None
    assert session.drift >= 0
    assert {row["op"] for row in file.rows} == {"dense", *HOST}


def test_the_clocks_of_a_gpu_are_read_from_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        assert command[:3] == ["nvidia-smi", "-i", "GPU-1"]
        return subprocess.CompletedProcess(command, 0, "1410, 312.50, 54, 0x0000000000000004\n")

    monkeypatch.setattr(subprocess, "run", answers)
    reading = {"sm_mhz": 1410.0, "power_w": 312.5, "temperature_c": 54.0, "throttle": "0x0000000000000004"}
    assert clocks._smi("GPU-1") == reading
    monkeypatch.setattr(
        subprocess, "run", lambda command, **settings: subprocess.CompletedProcess(command, 0, "[N/A], 3\n")
    )
    assert clocks._smi("GPU-1") == {"power_w": 3.0}
    assert clocks.Clocks(torch.device("cpu")).read() == {}
