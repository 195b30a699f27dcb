"""Physics before statistics: no kernel beats its GPU's peaks, and one configuration has one time.

A time below flops / peak or bytes / bandwidth is a clipped length, a cache hit or a wrong unit, and would
teach the model something impossible. Elementwise kernels are let through: their tensors stay in L2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from calibration.timings import Timing
from simulator.errors import InputError
from simulator.specs.hardware import Hardware

BYTES = 2  # of a bf16 number; the adapters pass no other type
BEATS = "above the peak"
HEAD_DIM = 128  # of every attention row that the adapters pass
# What a file calls each GPU. "a100" is Vidur's word for either of its A100 hosts.
DEVICES = {
    "a100-80gb-sxm": ("A100-SXM4-80GB", "a100"),
    "h100-80gb-sxm": ("H100 80GB HBM3",),
    "h200": ("NVIDIA H200",),
    "rtx-4090": ("RTX4090", "GeForce RTX 4090"),
    "rtx-pro-6000": ("RTXPRO6000", "RTX PRO 6000"),
}


class Rejected(NamedTuple):
    """Rows left out for one reason, with an example."""

    reason: str
    rows: int
    example: str


class Checked(NamedTuple):
    """What passed, one row per configuration and source, and what did not."""

    timings: list[Timing]
    rejected: list[Rejected]
    read: int


def check(timings: Iterable[Timing], hardware: Hardware) -> Checked:
    """Drop rows of other devices and impossible rows, and take the median of duplicates."""
    devices = (hardware.name, *DEVICES.get(hardware.name, ()))
    groups: dict[Timing, list[float]] = {}
    reasons: Counter[str] = Counter()
    impossible: Counter[str] = Counter()  # by operation
    examples: dict[str, str] = {}
    read = 0
    for timing in timings:
        read += 1
        reason = _fault(timing, hardware, devices)
        if reason:
            reasons[reason] += 1
            impossible[timing.op] += reason.startswith(BEATS)
            examples.setdefault(reason, describe(timing))
        else:
            groups.setdefault(timing._replace(seconds=0.0), []).append(timing.seconds)
    _suspect_the_unit(groups, impossible)
    passed = [key._replace(seconds=median(times)) for key, times in groups.items()]
    if not passed:
        why = "; ".join(f"{count} rows {reason}" for reason, count in reasons.items()) or "no rows"
        raise InputError(f"nothing to fit for {hardware.name}: {why}")
    rejected = [Rejected(reason, count, examples[reason]) for reason, count in sorted(reasons.items())]
    repeats = sum(len(times) - 1 for times in groups.values())
    if repeats:
        rejected.append(Rejected("repeats its configuration (the median is kept)", repeats, ""))
    return Checked(passed, rejected, read)


def _suspect_the_unit(groups: dict[Timing, list[float]], impossible: Counter[str]) -> None:
    """Stop where most rows of an operation beat the peaks: that is no stray row but a mistaken unit."""
    possible = Counter(timing.op for timing in groups)
    for op, rows in impossible.items():
        if rows > possible[op]:
            raise InputError(
                f"{rows} of {rows + possible[op]} {op} rows are {BEATS} of the GPU: is their unit right?"
            )


def _fault(timing: Timing, hardware: Hardware, devices: tuple[str, ...]) -> str:
    if not any(name == timing.device or (name in timing.device and len(name) > 4) for name in devices):
        return f"measured on another device than {hardware.name}"
    flops, moved = work(timing)
    if timing.seconds < flops / hardware.flops:
        return f"{BEATS} of {hardware.flops / 1e12:g} TFLOP/s"
    if timing.seconds < moved / hardware.hbm_bandwidth:
        return f"{BEATS} of {hardware.hbm_bandwidth / 1e12:g} TB/s"
    return ""


def work(t: Timing) -> tuple[float, float]:
    """Return the FLOPs that a kernel must do and the bytes that it must move; 0 where caches may help."""
    if t.op == "gemm":
        return 2.0 * t.m * t.n * t.k, float(BYTES * (t.m * t.k + t.n * t.k + t.m * t.n))
    if t.op == "decode_attention":
        return 0.0, 2.0 * BYTES * t.batch * t.kv * t.kv_heads * HEAD_DIM
    if t.op == "prefill_attention":
        pairs = t.batch * t.tokens * (t.kv + t.tokens / 2)
        return 4.0 * pairs * t.heads * HEAD_DIM, 0.0
    if t.op in ("mixed_attention", "skewed_attention"):
        pairs = t.tokens * (t.prefix + t.tokens / 2) + t.batch * t.kv
        return 4.0 * pairs * t.heads * HEAD_DIM, 2.0 * BYTES * t.batch * t.kv * t.kv_heads * HEAD_DIM
    return 0.0, 0.0


def describe(t: Timing) -> str:
    """Return a row in one line, for the list of rejected ones."""
    sizes = {name: value for name, value in t._asdict().items() if isinstance(value, int) and value}
    words = ", ".join(f"{name} {value}" for name, value in sizes.items())
    return f"{t.op} {t.source}: {words}: {t.seconds * 1e6:.1f} us"
