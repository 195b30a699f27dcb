"""The engine on a CUDA device that computes nothing: where tensors lie, who waits, what is captured."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fake_cuda import CUDA, FakeCuda, fake_cuda
from test_gpu_graphs import OnDevice
from test_two_clocks import BUSY, CONFIG, SWAP

from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.device import free_bytes
from gpu_backend.engine import Engine
from gpu_backend.executor import TorchExecutor
from gpu_backend.generate import Options, complete
from gpu_backend.graphs import DecodeGraphs
from gpu_backend.loader import random_decoder
from gpu_backend.sampling import SamplingParams
from gpu_backend.speculative import verify_all
from simulator.errors import ConfigError

LONG: dict[str, Any] = {
    "model.max_model_len": 4096,
    "kv.num_gpu_blocks_override": 600,
    "kv.block_size": 16,
    "scheduler.max_num_batched_tokens": 512,
    "workload.lengths.prompt": [3, 3000],
}
"""Contexts long enough that kernels split them; prompts in chunks, some of which sample nothing."""
FEW: dict[str, Any] = {"workload.lengths.output": [1, 12], "workload.num_requests": 3}
FIVE: dict[str, Any] = {"workload.num_requests": 5}
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5}
HOT = SamplingParams(temperature=0.8, top_k=5, top_p=0.9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG | {"torch_dtype": "bfloat16", "max_position_embeddings": 4096}))
    return str(path)


class Steps:
    """What each step of a run left behind, as `end_of` returned."""

    def __init__(self, machine: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy: list[bool] = []
        self.reads: list[int] = []
        self.blocking: list[str] = []
        plain = TorchExecutor.end_of

        def end_of(executor: TorchExecutor, batch: Any, start: float) -> float:
            end = plain(executor, batch, start)
            self.busy.append(machine.is_busy)
            self.reads.append(len(machine.reads))
            self.blocking = machine.blocking
            machine.reads.clear()
            return end

        monkeypatch.setattr(TorchExecutor, "end_of", end_of)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"model.quantization": "int8", "scheduler.async_scheduling": True}, id="int8"),
        pytest.param({"speculative": NGRAM}, id="ngram"),
    ],
)
@pytest.mark.parametrize("size", [FEW, pytest.param(FIVE, marks=pytest.mark.slow)], ids=["few", "five"])
def test_a_step_waits_once_ends_when_the_device_does_and_compiles_nothing(
    model: str, size: dict[str, Any], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cuda() as machine:
        engine = Engine(BUSY, device="cuda", set={"model.name": model, **LONG, **size, **changes})
        compiled: list[set[object]] = []
        made = engine._executor

        def executor(*args: Any) -> TorchExecutor:
            try:
                return made(*args)
            finally:
                compiled.append(set(machine.variants))

        monkeypatch.setattr(engine, "_executor", executor)
        steps = Steps(machine, monkeypatch)
        engine.replay(progress=False)
    assert len(steps.busy) > 15
    assert steps.reads.count(0) > 0, "no step without a sample: the test shows too little"
    assert max(steps.reads) == 1
    assert not any(steps.busy), "the device still works when its time is taken"
    assert steps.blocking == []
    assert machine.launches["_merge_splits"] > 0
    assert (machine.launches["graph"] > 0) == ("speculative" not in changes)
    assert machine.variants - compiled[0] == set(), "a step compiles a kernel"


def test_blocks_go_to_pinned_memory_and_back_while_the_host_waits_for_the_way_out_only(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"scheduler.preemption": "swap", "kv.tiers": SWAP, "workload.num_requests": 10}
    moved = {"copy_out": 0, "copy_in": 0}

    def count(name: str, plain: Callable[..., Any], *args: Any) -> Any:
        moved[name] += len(args[-1])
        return plain(*args)

    with fake_cuda() as machine:
        engine = Engine(BUSY, device="cuda", clock="predicted", set={"model.name": model, **changes})
        for name in moved:
            monkeypatch.setattr(engine._kv, name, partial(count, name, getattr(engine._kv, name)))
        engine.replay(progress=False)
    assert moved["copy_out"] > 0 < moved["copy_in"]
    assert machine.blocking == []


def test_a_second_replay_captures_and_allocates_nothing_more(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = NGRAM | {"method": "draft_model", "draft_model": model}
    changes: dict[str, object] = {
        "model.name": model,
        "workload.num_requests": 1,
        "workload.lengths.output": [4, 8],
        "scheduler.max_num_seqs": 1,
    }
    changes["speculative"] = keys
    with fake_cuda():
        engine = Engine(BUSY, device="cuda", set=changes)
        engine.replay(progress=False)
        graphs = engine._graphs
        monkeypatch.setattr(type(engine._place), "pages", None)
        engine.replay(progress=False)
    assert graphs is not None
    assert engine._graphs is graphs


def test_a_capture_refuses_what_waits_for_the_device(model: str) -> None:
    with fake_cuda() as machine:
        engine = Engine(BUSY, device="cuda", set={"model.name": model})
        with pytest.raises(AssertionError, match="in a captured graph"):
            DecodeGraphs(engine.decoder, engine._kv, OnDevice(), sizes=(1,), width=2)
    assert machine.reads  # while it warmed up


@pytest.mark.parametrize("family", [{}, {"model_type": "qwen2"}, {"model_type": "qwen3", "head_dim": 16}])
def test_sampling_on_the_device_meets_no_tensor_of_the_host(
    model: str, family: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | family))
    prompts = [np.arange(20), np.arange(35)]
    with fake_cuda() as machine:
        decoder = random_decoder(DecoderConfig.read(path), CUDA, torch.bfloat16)
        found = complete(decoder, prompts, Options(max_tokens=4, sampling=HOT, num_speculative_tokens=2))
        logits, probs = torch.zeros(7, 61, device=CUDA), torch.zeros(5, 61, device=CUDA)
        emitted = verify_all(logits, [[1, 2], [3, 4, 5]], probs, [HOT] * 2, [5, 9])
    assert [len(tokens) for tokens in found] == [4, 4]
    assert len(emitted) == 2
    assert len(machine.reads) == 4 + 2


def test_memory_that_pytorch_keeps_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [1]
    with fake_cuda():
        monkeypatch.setattr(torch.cuda, "empty_cache", kept.clear)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 - sum(kept), 10))
        assert free_bytes(CUDA) == 10


def test_a_draft_model_must_reach_as_far_as_its_target(model: str, tmp_path: Path) -> None:
    """Beyond its table of rotations a GPU would not raise an error but stop for good."""
    short = tmp_path / "config.json"
    short.write_text(json.dumps(CONFIG | {"max_position_embeddings": 64}))
    keys = NGRAM | {"method": "draft_model", "draft_model": str(short)}
    with pytest.raises(ConfigError, match=r"model\.max_model_len: 120 exceeds the 64 of the draft model"):
        Engine(BUSY, device="cpu", set={"model.name": model, "speculative": keys})
