"""Every family under the real scheduler: its logits are transformers', whatever became of its blocks."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_models import FAMILIES, greedy, logits, save_model

from gpu_backend.engine import Engine

TIGHT: dict[str, Any] = {
    "schema": 1,
    "name": "families",
    "model": {"max_model_len": 100},
    "hardware": {"gpu": "cpu-1core"},
    "kv": {"num_gpu_blocks_override": 29, "block_size": 4},
    "scheduler": {"max_num_seqs": 5, "max_num_batched_tokens": 20},
    "latency": {
        "kind": "linear",
        "coefficients": {"constant": 0.05, "per_token": 0.003, "per_kv_token": 1e-4},
    },
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "uniform", "prompt": [5, 50], "output": [8, 24]},
        "max_tokens": 30,
        "num_requests": 9,
    },
}
HOST = [{"name": "host", "capacity_gib": 1e-3, "bandwidth_gb_s": 1e-3, "latency_us": 1000, "offload": False}]


class Watched:
    """Keeps the logits of every token that an engine samples, by request and position."""

    def __init__(self, engine: Engine) -> None:
        self.logits: dict[tuple[int, int], Any] = {}
        self._make = engine._executor
        engine._executor = self._executor  # type: ignore[method-assign]

    def _executor(self, *args: Any) -> Any:
        executor = self._make(*args)
        run = executor._runner.run

        def watched(rows: Any) -> Any:
            found = run(rows)
            samplers = [row for row in rows if row.samples]
            for row, own in zip(samplers, found, strict=True):
                self.logits[row.seq.index, row.end] = own
            return found

        executor._runner.run = watched
        return executor


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens_are_those_of_transformers(family: str, preemption: str, tmp_path: Path) -> None:
    """Chunked prefill, mixed batches, scattered blocks, cached prefixes at readmission, swapped blocks."""
    reference = save_model(family, tmp_path)
    changes = {
        "model.name": str(tmp_path / "config.json"),
        "scheduler.preemption": preemption,
        "kv.tiers": HOST if preemption == "swap" else [],
    }
    engine = Engine(TIGHT, device="cpu", clock="predicted", weights=tmp_path, set=changes)
    watched = Watched(engine)
    result = engine.replay(progress=False)
    own = result.summary["servetwin"]
    assert own["num_preemptions"] > 0
    assert own["swapped_tokens"] > 0 if preemption == "swap" else own["prefix_cache_hits"] > 0
    assert engine.executor is not None
    run = result._run
    assert run is not None
    for index, answer in engine.executor.answers.items():
        prompt = engine.prompt(run.workload.requests[index], index).tolist()
        assert answer == greedy(reference, prompt, len(answer))
        expected = logits(reference, prompt + answer)
        for position in range(len(prompt), len(prompt) + len(answer)):
            found = watched.logits[index, position]
            torch.testing.assert_close(found, expected[position - 1], rtol=1e-5, atol=1e-5)
