"""The shipped A100 profile beside figures that others published of whole engines: shapes, not absolutes.

    python benchmarks/published_a100.py KERNELS MEASURED      folders of public timings and of real runs

Argonne's LLM-Inference-Bench (static batches; by its KV capacity the A100 has 40 GB; engines of 2024) is
compared in shape: two host constants and one scale are fitted, in sample. The closed loop of an A100-80GB
PCIe (vLLM 0.19, Qwen2.5-7B) and one stream of Llama-3.1-8B are simulated as they are. docs/calibration.md has
the result.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator import load_profile, simulate
from simulator.latency.base import StepFeatures
from simulator.latency.profile import Host, Profile
from simulator.specs import get_hardware, get_model

SXM = "a100-80gb-sxm"
MODELS = {"meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Meta-Llama-3-8B": "llama-3-8b"}
MEMORY = 40e9 * 0.9  # bytes: what the benchmark's GPU can have had, by where its figures break down


class Fit(NamedTuple):
    """One engine and model: measured step = per_step + per_seq * batch + scale * composed."""

    num_points: int
    ratio: float  # measured over composed, mean
    one_scale: float  # mean absolute relative error with one scale alone
    shape: float  # and with all three
    per_step: float  # s
    per_seq: float  # s
    scale: float


def without_host(profile: Profile) -> Profile:
    return replace(profile, host=Host(0.0, 0.0))


def composed(profile: Profile, batch: int, length: int) -> tuple[float, float]:
    """Return seconds of a static batch's prefill and of its mean decode step, kernels alone."""
    prefill = profile.step_time(StepFeatures.prefill([(length, 0)] * batch))
    steps = [profile.step_time(StepFeatures.decode([length + i] * batch)) for i in range(1, length, 8)]
    return prefill, float(np.mean(steps))


def argonne(path: Path, engine: str, model: str) -> Fit:
    profile, shape = without_host(load_profile(SXM, MODELS[model])), get_model(MODELS[model])
    room = (MEMORY - shape.weight_bytes()) / shape.kv_bytes_per_token()
    measured, kernels, batches = [], [], []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if (row["Hardware"], row["Framework"], row["Model"]) != ("Nvidia A100 GPU", engine, model):
            continue
        batch, length = int(row["Batch Size"]), int(row["Input Output Length"])
        if batch * 2 * length > room:
            continue
        prefill, decode = composed(profile, batch, length)
        measured.append((float(row["Latency"]) - prefill) / length)
        kernels.append(decode)
        batches.append(batch)
    seconds, times = np.array(measured), np.array(kernels)
    scale = float(np.mean(seconds / times))
    columns = np.stack([np.ones(len(times)), np.array(batches, float), times], 1) / seconds[:, None]
    solved = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0]
    return Fit(
        len(times),
        scale,
        float(np.mean(np.abs(scale * times / seconds - 1))),
        float(np.mean(np.abs(columns @ solved - 1))),
        *map(float, solved),
    )


def closed_loop(row: dict[str, str], is_async: bool) -> dict[str, float]:
    """Simulate a row of the PCIe table on the SXM profile; vLLM 0.19 is asynchronous by default."""
    keys: dict[str, Any] = {
        "model": {"name": "qwen2.5-7b", "max_model_len": 8192},
        "hardware": {"gpu": "a100-80gb-pcie"},
        "latency": {"profile": SXM},
        "scheduler": {"async_scheduling": is_async},
        "workload": {
            "arrivals": {"kind": "closed_loop", "clients": int(row["max_concurrency"]), "think_s": 0},
            "lengths": {
                "kind": "constant",
                "prompt": int(row["input_tokens"]),
                "output": int(row["output_tokens"]),
            },
            "max_tokens": int(row["output_tokens"]),
            "num_requests": int(row["num_prompts"]),
        },
    }
    found = simulate({"schema": 1, "name": row["workload"]} | keys, progress=False, bottleneck=False).summary
    return {name: float(found[name]) for name in ("request_throughput", "median_ttft_ms", "p99_tpot_ms")}  # type: ignore[arg-type]


def main(kernels: Path, measured: Path) -> None:
    print("Argonne, static batches (in sample)")
    for engine in ("vLLM", "TensorRT-LLM"):
        for model in MODELS:
            fit = argonne(kernels / "argonne_e2e_a100_h100_1gpu_vllm_trtllm.csv", engine, model)
            print(
                f"  {MODELS[model]:<11} {engine:<13} n {fit.num_points:>3}  of composed {fit.ratio:.2f}  "
                f"one scale {fit.one_scale:.1%}  shape {fit.shape:.1%}  host {1e3 * fit.per_step:+.2f} ms "
                f"{1e3 * fit.per_seq:+.3f} ms/seq  scale {fit.scale:.2f}"
            )
    print("A100 PCIe closed loop (peaks: SXM's profile as it is)")
    pcie, sxm = get_hardware("a100-80gb-pcie"), get_hardware(SXM)
    print(f"  bandwidth {pcie.hbm_bandwidth / sxm.hbm_bandwidth:.3f} of SXM's")
    for row in csv.DictReader(
        (measured / "a100_pcie_qwen2.5-7b_vllm_closed_loop.csv").open(encoding="utf-8")
    ):
        for is_async in (False, True) if row["tp"] == "1" else ():
            found = closed_loop(row, is_async)
            change = found["request_throughput"] / float(row["req_per_s"]) - 1
            print(
                f"  {row['workload']:<18} {'async' if is_async else 'sync':<5} req/s {row['req_per_s']:>5} "
                f"simulated {found['request_throughput']:.2f} ({change:+.0%})  TTFT p50 {row['ttft_p50_ms']} "
                f"{found['median_ttft_ms']:.0f}  TPOT p99 {row['tpot_p99_ms']} {found['p99_tpot_ms']:.1f} ms"
            )
    print("Llama-3.1-8B, ITL of decodes at 500 tokens of context")
    profile = load_profile(SXM, "llama-3.1-8b")
    for batch in (1, 2, 4, 8):
        step = StepFeatures.decode([500] * batch)
        host = profile.step_time(step) - without_host(profile).step_time(step)
        print(f"  batch {batch}: {1e3 * profile.step_time(step):.1f} ms, of which host {1e3 * host:.1f} ms")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
