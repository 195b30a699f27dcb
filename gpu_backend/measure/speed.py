"""How near the engine comes to what the device can do, measured on the device itself.

A decode step reads all weights and all KV once, so it is held to the bandwidth of a large copy; a prefill
multiplies, so it is held to a large matrix product. Goals are for GPUs; on a CPU nothing is judged.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from gpu_backend.measure.bench import Bench, Unit
from gpu_backend.measure.layer_counts import LAYERS
from gpu_backend.measure.parts import Result
from gpu_backend.measure.points import Point
from gpu_backend.measure.session import Graphs, extrapolate
from gpu_backend.measure.timers import Timer

DECODE_GOAL = 0.70  # of the copy's bandwidth, at batch 1 to 64
PREFILL_GOAL = 0.65  # of the matrix rate, at 2k tokens
HOST_GOAL = 0.05  # of a graph-replayed step
BATCHES = (1, 4, 16, 64, 2, 8, 32)  # in order of worth
DECODE_KV = {"cuda": 1024, "cpu": 128}
PREFILL = {"cuda": 2048, "cpu": 128}
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
MATRIX = {"cuda": 8192, "cpu": 512}
MOST_ROUNDS = 3
LAUNCHES = 30


def seconds_of(timer: Timer, unit: Unit) -> float:
    """Return the median time of a unit over a few rounds."""
    unit()
    times = [each for _ in range(min(timer.rounds, MOST_ROUNDS)) for each in timer.time(unit).seconds]
    return median(times)


def step_seconds(bench: Bench, timer: Timer, point: Point) -> float:
    """Return the time of a whole step, extrapolated to all layers of the model."""
    few, many = (seconds_of(timer, bench.unit(point, layers)) for layers in LAYERS)
    fixed, layer = extrapolate(few, many)
    return fixed + bench.config.num_layers * layer


@torch.inference_mode()
def peaks(device: torch.device, dtype: torch.dtype, timer: Timer) -> dict[str, float]:
    """Return a large copy's bandwidth (bytes/s, read and written) and a large product's rate (FLOP/s)."""
    pair = torch.empty((2, COPY_BYTES[device.type]), dtype=torch.uint8, device=device).random_(0, 255)
    copy = seconds_of(timer, lambda: pair[0].copy_(pair[1]))
    n = MATRIX[device.type]
    a, b = (torch.randn((n, n), dtype=dtype, device=device) for _ in range(2))
    product = seconds_of(timer, lambda: a @ b)
    return {"copy_bandwidth": 2 * COPY_BYTES[device.type] / copy, "matrix_rate": 2 * n**3 / product}


@torch.inference_mode()
def check_speed(bench: Bench, timer: Timer, deadline: float) -> Result:
    """Measure the peaks, then decodes and a prefill against them, until the deadline (`time.monotonic`)."""
    kind = bench.device.type
    found = peaks(bench.device, bench.dtype, timer)
    tokens = min(PREFILL[kind], bench.config.max_model_len, bench.most_kv)
    seconds = step_seconds(bench, timer, Point("step", (), ((tokens, tokens),)))
    rate = step_flops(bench, tokens) / seconds
    prefill = _judged(kind, rate / found["matrix_rate"], PREFILL_GOAL)
    decodes: dict[int, dict[str, object]] = {}
    kv = min(DECODE_KV[kind], bench.config.max_model_len)
    fitting = [batch for batch in BATCHES if batch * kv <= bench.most_kv]
    for batch in fitting:
        if decodes and time.monotonic() > deadline:
            break
        seconds = step_seconds(bench, timer, Point("step", (kv,) * batch))
        share = step_bytes(bench, batch * kv) / seconds / found["copy_bandwidth"]
        decodes[batch] = {"step_ms": round(1e3 * seconds, 4), **_judged(kind, share, DECODE_GOAL)}
    shares = [float(str(each["share"])) for each in decodes.values()]
    told = (
        f"decode at {min(shares):.0%}-{max(shares):.0%} of {found['copy_bandwidth'] / 1e9:,.0f} GB/s copied "
        f"(goal {DECODE_GOAL:.0%}), prefill of {tokens} at {rate / found['matrix_rate']:.0%} of "
        f"{found['matrix_rate'] / 1e12:.3g} TFLOP/s (goal {PREFILL_GOAL:.0%})"
    )
    missed = [name for name in fitting if name not in decodes]
    result: Result = {"told": told + _unjudged(kind), **found, "prefill": prefill, "decode": decodes}
    return result | ({"cut": f"decode at batch {missed}: the time was over"} if missed else {})


def check_host(bench: Bench, timer: Timer, graphs: Graphs | None) -> Result:
    """Measure what the host does in a step of 16 decodes, beside what the device does.

    With `graphs` the host copies the inputs and launches one of them, whatever the number of layers.
    """
    from gpu_backend.measure.host import host_terms

    few, many = (host_terms(bench, 16, layers) for layers in LAYERS)
    fixed, layer = extrapolate(few.forward, many.forward)
    forward = fixed + bench.config.num_layers * layer
    own = few.schedule + few.build + few.loop
    result: Result = {
        "terms_us": {
            name: round(1e6 * getattr(few, name), 1) for name in ("schedule", "build", "sync", "loop")
        }
    }
    if bench.device.type == "cuda":
        with torch.inference_mode():
            device = step_seconds(bench, timer, Point("step", (128,) * 16))
            launching = forward if graphs is None else launch_seconds(graphs, bench.device)
        share = (own + launching) / (own + max(launching, device))
        what = "graph-replayed steps" if graphs else "eager steps (this engine replays no graphs here)"
        judged = _judged("cuda" if graphs else "cpu", share, HOST_GOAL, below=True)
        told = f"launch and scheduling {share:.1%} of {what}, goal {HOST_GOAL:.0%}"
    else:
        share = (own + few.sync) / (own + few.sync + forward)
        judged = _judged("cpu", share, HOST_GOAL, below=True)
        told = f"all but the forward pass {share:.1%} of a step of 16 decodes" + _unjudged("cpu")
    return result | {"told": told, "forward_us": round(1e6 * forward, 1), **judged}


def launch_seconds(graphs: Graphs, device: torch.device) -> float:
    """Return how long the host takes to launch a replay of 16 decodes, the device being idle; the median."""
    unit, taken = graphs.unit(Point("graph_step", (128,) * 16, m=16), max(LAYERS)), []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        unit()
        taken.append(time.perf_counter() - began)
    torch.cuda.synchronize(device)
    return median(taken)


def step_bytes(bench: Bench, kv_tokens: int) -> float:
    """Return the bytes that a decode step must read: every weight but the embedding's, and the KV."""
    config = bench.config
    weights = config.num_layers * _layer_params(bench) + config.vocab_size * config.hidden_size
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * kv_tokens
    return float((weights + kv) * bench.dtype.itemsize)


def step_flops(bench: Bench, tokens: int) -> float:
    """Return the FLOPs of a prefill from the first token on, whose last row samples."""
    config = bench.config
    attention = 2 * tokens * (tokens + 1) * config.num_heads * config.head_dim
    dense = 2 * tokens * _layer_params(bench)
    return float(config.num_layers * (dense + attention) + 2 * config.vocab_size * config.hidden_size)


def _layer_params(bench: Bench) -> int:
    config = bench.config
    queries, keys, values = config.qkv_sizes
    return config.hidden_size * (2 * queries + keys + values + 3 * config.intermediate_size)


def _judged(kind: str, share: float, goal: float, *, below: bool = False) -> dict[str, object]:
    """Say whether a share reaches its goal, or stays below it; None where goals do not apply."""
    met = share <= goal if below else share >= goal
    return {"share": round(share, 4), "goal": goal, "met": met if kind == "cuda" else None}


def _unjudged(kind: str) -> str:
    return "" if kind == "cuda" else "; not judged on a CPU"
