"""`servetwin gpu measure`: a model's timings on this device, in a file that `calibrate fit` reads.

The file grows group by group, the most valuable first; a second call goes on where the first one stopped,
with the same settings or not at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from gpu_backend.attention.choose import choose_attention
from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.device import check_room, choose_device, device_name
from gpu_backend.measure.bench import Bench
from gpu_backend.measure.engine_graphs import EngineGraphs
from gpu_backend.measure.facts import device_label, release
from gpu_backend.measure.layer_counts import LAYERS, layer_bytes, timed_layers
from gpu_backend.measure.points import CPU, CUDA, Grid, Group, groups
from gpu_backend.measure.session import Graphs, Progress, Session
from gpu_backend.measure.timers import Timer, timer_of
from gpu_backend.measure.timings_file import TimingsFile
from gpu_backend.runner import LADDER, STRIDE
from simulator.errors import ConfigError
from simulator.specs import get_model

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
DRIFTED = 0.03  # change of an anchor above which clocks have moved
UNEASY = 0.05  # the same of the CPU's canary, above which the machine was not quiet
MakeGraphs = Callable[[Bench], Graphs | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a session did. Seconds are of the wall and of this process; `drift` is None where not known."""

    path: str
    kernels: str
    device: str
    num_points: int
    num_known: int  # that the file had before
    num_dropped: int
    seconds: float
    cpu_seconds: float
    drift: float | None
    notes: tuple[str, ...]


def measure(
    model: str,
    out: str | Path,
    *,
    device: str = "auto",
    minutes: float = 10.0,
    attention: str = "auto",
    threads: int = 1,
    timer: Timer | None = None,
    grid: Grid | None = None,
    graphs: MakeGraphs = EngineGraphs.of,
    progress: Progress | None = None,
) -> Measured:
    """Time a model's kernels and steps and write `out`, a .csv file, and its settings beside it.

    `model` is a shipped name or the path of a config.json; weights are random. What does not fit into
    `minutes` is dropped, the least valuable first. `graphs` makes those that the engine replays here, None
    where it replays none; `timer` and `grid` are exchanged by tests. ConfigError or InputError says what
    cannot be done.
    """
    began, busy = time.monotonic(), time.process_time()
    check_minutes(minutes)
    bench = make_bench(model, device, attention, threads)
    timer = timer or timer_of(bench.device, threads)
    file = TimingsFile(Path(out), _settings(model, bench, timer, threads))
    captured = graphs(bench)
    session = Session(bench, timer, file, began + 60 * minutes, captured, progress)
    file.sessions.append({"began": _now(), "ended": None})
    session.run(_groups(bench, grid, captured))
    measured = Measured(
        str(file.path),
        bench.kernels,
        device_name(bench.device),
        session.num_points,
        session.num_known,
        session.num_dropped,
        round(time.monotonic() - began, 2),
        round(time.process_time() - busy, 2),
        session.drift,
        tuple(_notes(session, captured)),
    )
    told = {name: value for name, value in asdict(measured).items() if name != "path"}
    told |= {"ended": _now(), "anchors": session.anchors, "canary": session.canary}
    file.sessions[-1] |= told
    file.save()
    return measured


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_minutes(minutes: float) -> None:
    """Raise ConfigError unless some time is given."""
    if not (math.isfinite(minutes) and minutes > 0):
        raise ConfigError(f"--minutes {minutes:g}: must be a number above 0")


def make_bench(model: str, device: str, attention: str, threads: int) -> Bench:
    """Look up model and device and build the layers that are timed; ConfigError if that cannot be."""
    if threads < 1:
        raise ConfigError(f"--threads {threads}: must be 1 or more")
    chosen, config = choose_device(device), read_config(model)
    release(chosen)
    if chosen.type == "cpu":
        torch.set_num_threads(threads)
    dtype = torch.float32 if chosen.type == "cpu" else DTYPES.get(config.dtype, torch.bfloat16)
    tables = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    most = max(*timed_layers(config, chosen, dtype), *LAYERS)
    num_bytes = most * layer_bytes(config, dtype) + tables * dtype.itemsize
    check_room(num_bytes, chosen, f"{most} layers of {model}", "name a smaller model")
    return Bench(config, chosen, dtype, choose_attention(attention, chosen, dtype=dtype))


def read_config(model: str) -> DecoderConfig:
    """Return the decoder of a shipped name, or of a config.json, or of a folder with one."""
    path = Path(model)
    return DecoderConfig.read(path) if path.exists() else DecoderConfig.of(get_model(model))


def _groups(bench: Bench, grid: Grid | None, captured: Graphs | None) -> list[Group]:
    is_cuda = bench.device.type == "cuda"
    return groups(
        grid or (CUDA if is_cuda else CPU),
        most_kv=bench.most_kv,
        longest=min(bench.config.max_model_len, bench.most_kv),
        edges=is_cuda,
        graphs=() if captured is None else captured.sizes,
    )


def _settings(model: str, bench: Bench, timer: Timer, threads: int) -> dict[str, object]:
    """Return what rows of one file must have in common."""
    config = bench.config
    sizes = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
    is_cpu = bench.device.type == "cpu"
    return {
        "device": device_label(bench.device, threads),
        "source": bench.kernels,
        "model": model,
        **{name: getattr(config, name) for name in (*sizes, "vocab_size")},
        "block_size": bench.block_size,
        "layers": list(bench.layers),
        "padded_to": list(LADDER),
        "padded_beyond": STRIDE,
        "threads": threads if is_cpu else None,
        "rounds": timer.rounds,
        "latency": "lower quartile" if is_cpu else "median",
        "torch": torch.__version__,
    }


def _notes(session: Session, captured: Graphs | None) -> list[str]:
    """Say what a reader of the file must know."""
    config, is_cuda = session.bench.config, session.bench.device.type == "cuda"
    found = []
    if session.num_dropped:
        found.append(f"{session.num_dropped} points, the least valuable, were dropped: the time was over")
    limit = DRIFTED if is_cuda else UNEASY
    if session.drift is not None and abs(session.drift) > limit:
        what = "the clocks moved" if is_cuda else "the machine was not quiet"
        found.append(f"{what}: the same work changed by {session.drift:+.1%}, limit {limit:.0%}")
    if captured is None:
        found.append("graph sizes were not measured: this engine replays no CUDA graphs")
    if len(set(config.sliding_layers)) > 1:
        found.append("only some layers have a window; all are taken to be like the first ones")
    return found
