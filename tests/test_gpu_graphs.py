"""Graph replay without a GPU: buffers and padding are those of CUDA, "replaying" computes again."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_two_clocks import BUSY, answers, assert_alike, assert_plain_tokens
from test_two_clocks import model as model  # a fixture

from gpu_backend.attention.base import AttentionInputs
from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.engine import Engine
from gpu_backend.graphs import SIZES, DecodeGraphs, sizes_for
from gpu_backend.measure.correctness import compare_graphs
from gpu_backend.measure.engine_graphs import EngineGraphs
from gpu_backend.measure.measure import make_bench
from gpu_backend.measure.points import Point
from gpu_backend.runner import Runner


class OnDevice(SdpaGather):
    """Attends from what lies on the device alone, as a captured kernel must: lens, not host contexts."""

    name = "on device"

    def attend(
        self,
        q: Any,
        keys: Any,
        values: Any,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
    ) -> Any:
        inputs.decode_contexts = inputs.decode_lens.tolist()
        self._step = None
        return super().attend(q, keys, values, inputs, scale=scale, window=window)


def again(compute: Callable[[], Any]) -> Callable[[], Any]:
    """Stand in for a captured graph."""
    return compute


def test_graphs_give_the_tokens_of_eager_steps(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[int] = []

    def warm_up(self: Runner) -> None:
        self.graphs = DecodeGraphs(
            self.decoder,
            self.kv,
            OnDevice(),
            sizes=sizes_for(4),
            width=self.tables.matrix.shape[1],
            capture=again,
        )
        run = self.graphs.run
        monkeypatch.setattr(self.graphs, "run", lambda *a: (replayed.append(a[0].shape[1]), run(*a))[1])

    changes = {"model.name": model}
    eager = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    expected = eager.replay(progress=False)
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    make = engine._executor

    def with_graphs(*args: Any) -> Any:
        executor = make(*args)
        warm_up(executor._runner)
        return executor

    monkeypatch.setattr(engine, "_executor", with_graphs)
    machine = engine.replay(progress=False)
    assert_alike(machine, expected)
    assert_plain_tokens(engine, machine)
    assert answers(engine) == answers(eager)
    assert set(replayed) == {1, 2, 3, 4}  # three are padded to four; five and six run eagerly


def test_warming_up_touches_no_block_but_the_dummy(model: str) -> None:
    engine = Engine(BUSY, device="cpu", clock="predicted", set={"model.name": model})
    engine.replay(progress=False)
    assert engine.executor is not None
    before = engine._kv.pages.clone()
    engine.executor._runner.warm_up(sizes=(1, 3), chunks=(2, 9))
    assert not torch.equal(engine._kv.pages, before)
    assert torch.equal(engine._kv.pages[:, :, :-1], before[:, :, :-1])


def test_padding_is_one_token_without_a_kv_cache_too(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes to the dummy block; a whole sequence would write behind its own blocks."""
    padding: list[int] = []
    run = Runner.run

    def watched(self: Runner, rows: Any) -> Any:
        padding.extend(row.num_tokens for row in rows if row.is_padding)
        return run(self, rows)

    monkeypatch.setattr(Runner, "run", watched)
    changes = {"model.name": model, "scheduler.batching": "static"}
    Engine(BUSY, device="cpu", clock="predicted", kv_cache=False, set=changes).replay(progress=False)
    assert set(padding) == {1}


def test_the_ladder_of_sizes_is_vllms() -> None:
    assert SIZES[:5] == (1, 2, 4, 8, 16)
    assert SIZES[-2:] == (496, 512)
    assert 256 in SIZES
    assert 264 not in SIZES


@torch.inference_mode()
def test_the_graphs_of_a_bench_give_what_its_eager_steps_give(model: str) -> None:
    """The comparison that `gpu check` makes on CUDA, with the stand-in for captured graphs."""
    bench = make_bench(model, "cpu", "auto", 1)
    bench.attention = OnDevice()
    graphs = EngineGraphs(bench, capture=again)
    found = compare_graphs(bench, graphs)
    assert found["status"] == "passed"
    assert "1, 3, 8 and 13 decodes" in str(found["told"])
    numbers, tables = graphs.inputs(Point("step", (20, 30)))
    numbers[3] -= 9  # contexts that a graph must heed
    other = graphs.graphs(4).run(numbers, tables)
    numbers[3] += 9
    assert not torch.equal(other, graphs.graphs(4).run(numbers, tables))
