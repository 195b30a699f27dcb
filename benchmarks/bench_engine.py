"""What of an engine step is not the forward pass: deciding, batch building, sampling, bookkeeping.

The teaching model (8 layers, hidden 512, fp32) on the CPU, one thread, 16 sequences that decode from 64
tokens of context on. Wall time, since that is what a step takes; the share is a ratio within one run.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_backend.engine import Engine  # noqa: E402
from gpu_backend.model import Decoder  # noqa: E402

SIXTEEN: dict[str, Any] = {
    "schema": 1,
    "name": "sixteen",
    "model": {"name": "tiny-llama-28m", "max_model_len": 512},
    "hardware": {"gpu": "cpu-1core"},
    "kv": {"num_gpu_blocks_override": 600},
    "scheduler": {"max_num_seqs": 16, "max_num_batched_tokens": 512},
    "latency": {"kind": "linear", "coefficients": {"constant": 0.01}},
    "workload": {
        "arrivals": {"kind": "all_at_once"},
        "lengths": {"kind": "constant", "prompt": 64, "output": 120},
        "max_tokens": 128,
        "num_requests": 16,
    },
}
TARGET = 0.12
ROUNDS = 5


def measure(monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return seconds of a decode step and of its forward pass, medians over the run."""
    forward: list[float] = []

    def timed(method: Any) -> Any:
        def call(*args: Any) -> Any:
            begin = time.perf_counter()
            result = method(*args)
            forward.append(time.perf_counter() - begin)
            return result

        return call

    engine = Engine(SIXTEEN, device="cpu", clock="wall")
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "forward", timed(Decoder.forward))
        patch.setattr(Decoder, "head", timed(Decoder.head))
        run = engine.run(progress=False)
    steps = run.steps
    decodes = steps.num_decodes == 16
    per_step = torch.tensor(forward[-2 * len(steps) :]).view(-1, 2).sum(1)
    return float(torch.tensor((steps.end - steps.start)[decodes]).median()), float(per_step[decodes].median())


def test_the_forward_pass_dominates(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    for _ in range(ROUNDS):
        step, forward = measure(monkeypatch)
        shares.append(1 - forward / step)
        print(f"step {1e3 * step:.2f} ms, forward pass {1e3 * forward:.2f} ms, the rest {shares[-1]:.1%}")
    print(f"beside the forward pass: {min(shares):.1%} to {max(shares):.1%} of a step (target {TARGET:.0%})")
