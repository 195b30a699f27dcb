"""A replay as a result in Python: compared with a simulation, written to a folder, imported without torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")

from test_two_clocks import BUSY
from test_two_clocks import model as model  # a fixture

import gpu_backend
from simulator import diff, load_run, simulate

FEW = {"workload.num_requests": 6}


def test_a_diff_of_results_compares_decisions(model: str) -> None:
    """`simulate` keeps no log, so the simulation is made again for it."""
    keys = FEW | {"model.name": model}
    replay = gpu_backend.Engine(BUSY, device="cpu", clock="predicted", set=keys).replay(progress=False)
    alike = diff(replay, simulate(BUSY, set=keys, progress=False))
    assert "decisions: identical in all" in str(alike)
    apart = diff(replay, simulate(BUSY, set=keys, order="sjf_prompt", progress=False))
    assert apart.divergence is not None


def test_two_simulations_are_not_made_again_for_a_diff() -> None:
    one, other = (simulate("tiny-cpu", bottleneck=False, progress=False) for _ in range(2))
    assert diff(one, other).num_steps is None


def test_a_saved_replay_keeps_the_steps_that_were_measured(model: str, tmp_path: Path) -> None:
    keys = FEW | {"model.name": model, "workload.arrivals": {"kind": "all_at_once"}}
    replay = gpu_backend.Engine(BUSY, device="cpu", set=keys).replay(progress=False)
    loaded = load_run(replay.save(tmp_path / "machine"))
    assert loaded.steps.equals(replay.steps)
    split = diff(loaded, simulate(BUSY, set=keys, progress=False)).resimulated
    assert split is not None
    assert split.divergence is None


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'servetwin\[gpu\]'"):
        from gpu_backend import Engine  # noqa: F401
    with pytest.raises(AttributeError):
        gpu_backend.Motor  # noqa: B018
