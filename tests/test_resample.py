"""Windows and block bootstrap of a trace: nothing lost, sessions whole, copies apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config.loading import load_scenario
from simulator.experiments import replications
from simulator.experiments.replications import Replications, seed_of
from simulator.workload.resample import block_bootstrap, windows
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Workload


def plain(num: int, gap: float = 1.0) -> Workload:
    lens = np.arange(1, num + 1)
    return Workload(np.arange(num) * gap, lens, lens, ids=[f"r{i}" for i in range(num)])


def sessions() -> Workload:
    """Two sessions of three turns, interleaved, and a request on its own."""
    arrival = np.array([0.0, 1.0, 2.0, 50.0, 70.0, 100.0, 130.0])
    ones = np.ones(7, np.int64)
    follows = np.array([[0, 2], [2, 4], [1, 3], [3, 6]])
    return Workload(
        arrival,
        ones,
        ones,
        follows=follows,
        think=np.array([0.0, 0, 1, 2, 3, 0, 4]),
        session=["a", "b", "a", "b", "a", "", "b"],
    )


def test_windows_hold_every_request_once() -> None:
    parts = windows(plain(100), 7)
    assert sum(map(len, parts)) == 100
    assert [i for part in parts for i in part.ids or []] == [f"r{i}" for i in range(100)]
    assert all(part.arrival[0] < 1.0 for part in parts), "each starts at its own zero"


def test_a_session_stays_in_the_window_of_its_first_turn() -> None:
    first, second = windows(sessions(), 2)
    assert first.session == ["a", "b", "a", "b", "a", "b"]
    assert first.follows is not None
    assert first.follows.tolist() == [[0, 2], [2, 4], [1, 3], [3, 5]]
    assert second.session == [""]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(1.0, 80.0))
def test_a_bootstrap_has_about_as_many_requests_in_the_same_span(seed: int, block: float) -> None:
    drawn = block_bootstrap(plain(300), np.random.default_rng(seed), block)
    assert abs(len(drawn) - 300) <= 300 / block + 2
    assert drawn.arrival.max() <= 300
    assert len(set(drawn.ids or [])) == len(drawn)


def test_gaps_within_a_block_stay() -> None:
    drawn = block_bootstrap(plain(1000, 0.1), np.random.default_rng(1), 10.0)
    gaps = np.diff(drawn.arrival)
    assert np.mean(np.abs(gaps - 0.1) < 1e-9) > 0.97


def test_a_copied_session_is_whole_and_waits_for_itself() -> None:
    for seed in range(20):
        drawn = block_bootstrap(sessions(), np.random.default_rng(seed), 40.0)
        names = drawn.session or []
        assert all(names.count(name) == 3 for name in set(names) if name)
        assert drawn.follows is not None
        for before, after in drawn.follows.tolist():
            assert names[before] == names[after]
            assert drawn.arrival[before] <= drawn.arrival[after]


def test_copies_do_not_hit_what_only_their_original_asked() -> None:
    blocks = TraceBlocks.of_ids(np.arange(50), np.arange(51), 16)  # nothing is shared
    base = Workload(np.arange(50.0), np.full(50, 16), np.ones(50, np.int64), blocks=blocks)
    drawn = block_bootstrap(base, np.random.default_rng(0), 5.0)
    assert len(set(drawn.ids or [])) > len({id.split(".")[0] for id in drawn.ids or []}), "some are copies"
    assert drawn.blocks is not None
    assert drawn.blocks.hit_blocks().sum() == 0


def test_the_first_replication_of_a_drawn_workload_is_the_plain_run() -> None:
    scenario = load_scenario("tiny-cpu")
    made = Replications.of(scenario, 512)
    assert made.kind == "seeds"
    assert seed_of(scenario.seed, 0) == scenario.seed
    own, other = (made.workload(scenario, 512, i) for i in (0, 1))
    assert own.arrival.tolist() != other.arrival.tolist()
    faster = scenario.with_(**{"scheduler.max_num_seqs": 2})
    assert made.workload(faster, 512, 1) is other, "candidates share the requests"


@pytest.mark.parametrize(("rows", "kind"), [(6000, "windows"), (900, "bootstrap")])
def test_a_trace_is_cut_or_resampled(tmp_path: Path, rows: int, kind: str) -> None:
    trace = tmp_path / "t.csv"
    lines = [f"{i * 0.1:.1f},{20 + i % 7},{3 + i % 5}" for i in range(rows)]
    trace.write_text("arrival,prompt,output\n" + "\n".join(lines) + "\n")
    scenario = load_scenario("tiny-cpu").with_(
        **{
            "workload.trace": str(trace),
            "workload.columns": {"arrival": "arrival", "prompt": "prompt", "output": "output"},
            "workload.time_unit": "s",
        }
    )
    made = Replications.of(scenario, 512)
    assert made.kind == kind
    assert kind in made.words(3) or "window" in made.words(3)
    assert len(made.workload(scenario, 512, 1)) > 400


@pytest.mark.parametrize("rows", [6000, 900])
def test_a_trace_is_read_once_for_all_replications(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "t.jsonl"
    line = '{{"timestamp": {}, "input_length": 20, "output_length": 3}}'
    trace.write_text("\n".join(line.format(100 * i) for i in range(rows)))
    scenario = load_scenario("tiny-cpu").with_(**{"workload.trace": str(trace)})
    read = []
    build = replications.build_workload
    monkeypatch.setattr(replications, "build_workload", lambda *given: read.append(1) or build(*given))
    made = Replications.of(scenario, 512)
    sizes = [len(made.workload(scenario, 512, i)) for i in range(5)]
    assert min(sizes) > 400
    assert len(read) == 1
    for index, limit in enumerate((700, 800, 700, 800)):
        made.workload(scenario.with_(**{"workload.limit": limit}), 512, index)
    assert len(read) == 3
    assert len(made._wholes) == replications.WHOLES, "memory is bounded"
