"""Searches find what a look at every point finds, the same wherever they run, and survive a kill."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import MAIN, servetwin

import simulator
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.errors import ConfigError, InputError
from simulator.experiments.metric_cells import metric_of
from simulator.experiments.pareto import pareto_front

pytest.importorskip("optuna")

SEATS, BUDGETS = [2, 4, 6, 9], [12, 24, 48, 96, 192]
TINY = load_scenario("tiny-cpu").with_(**{"workload.arrivals.rate": 5.0}).to_dict()
GRID: dict[str, Any] = {
    "base": TINY,
    "vary": {"scheduler.max_num_seqs": SEATS, "scheduler.max_num_batched_tokens": BUDGETS},
    "objectives": ["p99_itl_ms:min"],
    "constraints": ["p99_ttft_ms<=900"],
    "trials": 60,
}
TWO = GRID | {"objectives": ["p99_itl_ms:min", "p99_ttft_ms:min"], "constraints": []}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def truth() -> dict[tuple[int, int], dict[str, float]]:
    """Every point of the grid, run on its own."""
    base = load_scenario(TINY)
    found = {}
    for seats, budget in itertools.product(SEATS, BUDGETS):
        changes = {"scheduler.max_num_seqs": seats, "scheduler.max_num_batched_tokens": budget}
        run = run_scenario(base.with_(**changes))
        values = {name: metric_of(run, name) for name in ("p99_itl_ms", "p99_ttft_ms")}
        found[seats, budget] = {name: value for name, value in values.items() if value is not None}
    return found


def write(search: dict[str, Any], name: str = "search.yaml") -> Path:
    path = Path(name)
    path.write_text(json.dumps(search), encoding="utf-8")  # JSON is YAML
    return path


def complaint(**changes: Any) -> str:
    search = {key: value for key, value in (GRID | changes).items() if value is not ...}
    return servetwin("search", write(search), "-o", "out", "--quiet").complaint


def files(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


# What it finds.


def test_tpe_finds_the_best_point_of_a_known_grid(truth: dict[tuple[int, int], dict[str, float]]) -> None:
    found = simulator.search(GRID, progress=False)
    allowed = {point: values for point, values in truth.items() if values["p99_ttft_ms"] <= 900}
    assert 0 < len(allowed) < len(truth), "the constraint must matter"
    best = min(values["p99_itl_ms"] for values in allowed.values())
    assert best > min(values["p99_itl_ms"] for values in truth.values())
    chosen = allowed[found.best["scheduler.max_num_seqs"], found.best["scheduler.max_num_batched_tokens"]]
    assert chosen["p99_itl_ms"] == best
    assert metric_of(run_scenario(found.scenario), "p99_itl_ms") == best


def test_the_front_of_nsga2_is_that_of_the_grid(truth: dict[tuple[int, int], dict[str, float]]) -> None:
    """All 20 points get tried or, if not, what is missing lies close to what was found."""
    found = simulator.search(TWO, trials=200, progress=False)
    values = np.array([[v["p99_itl_ms"], v["p99_ttft_ms"]] for v in truth.values()])
    true_front = values[pareto_front(-values)]
    ours = found.front[["p99_itl_ms", "p99_ttft_ms"]].to_numpy()
    assert len(true_front) > 2
    span = true_front.max(axis=0) - true_front.min(axis=0)
    for row in true_front:
        assert np.abs((ours - row) / span).max(axis=1).min() <= 0.05


WIDE = TWO | {
    "vary": {
        "scheduler.max_num_seqs": {"low": 1, "high": 12, "int": True},
        "scheduler.max_num_batched_tokens": {"low": 12, "high": 192, "int": True},
    }
}


@pytest.mark.slow
def test_nsga2_comes_close_to_the_front_of_a_large_grid() -> None:
    """160 of some 2,000 points find nine tenths of what 480 others and they find together."""
    from simulator.experiments.search.volume import hypervolume

    search = WIDE
    few = simulator.search(search, trials=160, progress=False)
    many = simulator.search(search | {"seed": 1}, trials=480, progress=False)
    both = [each.front[["p99_itl_ms", "p99_ttft_ms"]].to_numpy() for each in (few, many)]
    worst = np.concatenate(both).max(axis=0) * 1.1
    pooled = hypervolume(np.concatenate(both), worst)
    assert hypervolume(both[0], worst) >= 0.9 * pooled


def test_of_several_objectives_the_knee_wins(truth: dict[tuple[int, int], dict[str, float]]) -> None:
    found = simulator.search(TWO, trials=200, progress=False)
    ours = found.front[["p99_itl_ms", "p99_ttft_ms"]].to_numpy()
    scaled = (ours - ours.min(axis=0)) / (ours.max(axis=0) - ours.min(axis=0))
    knee = found.front.iloc[int(np.hypot(*scaled.T).argmin())]
    assert found.best == {key: knee[key] for key in TWO["vary"]}
    assert "Knee, nearest to the ideal" in str(found)


def test_where_nothing_meets_the_limits_it_says_so_and_names_the_nearest() -> None:
    found = simulator.search(GRID | {"constraints": ["p99_ttft_ms<=1"]}, trials=16, progress=False)
    assert "No point meets p99_ttft_ms<=1. Nearest to it" in str(found)
    assert found.front.empty
    assert (
        found.trials["p99_ttft_ms"].min()
        == found.trials.loc[found.to_dict()["winner"]["trial"], "p99_ttft_ms"]
    )


def test_the_slo_limits_a_search_for_throughput_and_no_other() -> None:
    search = GRID | {"objectives": ["output_throughput:max"], "constraints": None, "trials": 2}
    assert simulator.search(search, progress=False).to_dict()["constraints"] == ["attainment>=0.95"]
    for changes in ({"constraints": []}, {"objectives": ["p99_itl_ms:min"]}):
        assert simulator.search(search | changes, progress=False).to_dict()["constraints"] == []


def test_a_value_is_the_mean_over_replications_that_all_points_share() -> None:
    search = GRID | {"vary": {"scheduler.max_num_seqs": [4, 8]}, "replications": 3, "trials": 8}
    found = simulator.search(search, progress=False)
    from simulator.experiments.replications import Replications

    for _, row in found.trials.iterrows():
        base = load_scenario(TINY).with_(**{"scheduler.max_num_seqs": row["scheduler.max_num_seqs"]})
        reps = Replications.of(base, 512, 3)
        each = [metric_of(run_scenario(reps.scenario(base, i)), "p99_itl_ms") for i in range(3)]
        assert row["p99_itl_ms"] == pytest.approx(np.mean(each))
        assert row["p99_itl_ms_se"] == pytest.approx(np.std(each, ddof=1) / 3**0.5)


def test_a_small_space_is_left_once_every_point_was_tried() -> None:
    found = simulator.search(GRID | {"vary": {"scheduler.max_num_seqs": [4, 8, 12]}}, progress=False)
    assert found.to_dict()["points"] == 3
    assert len(found.trials) < GRID["trials"]


# Sameness.


def test_workers_change_no_byte() -> None:
    path = write(TWO | {"trials": 24})
    for workers in (1, 2):
        made = servetwin("search", path, "-o", f"w{workers}", "--workers", workers, "--quiet")
        assert made.code == 0, made.err
    assert files("w1") == files("w2")
    assert len(Path("w1/trials.jsonl").read_text().splitlines()) == 24


def test_another_seed_asks_for_other_points() -> None:
    one, other = (simulator.search(GRID | {"seed": s, "trials": 8}, progress=False) for s in (0, 1))
    keys = list(GRID["vary"])
    assert one.trials[keys].to_numpy().tolist() != other.trials[keys].to_numpy().tolist()


@pytest.mark.parametrize(
    ("trials", "kills"), [(32, (3, 12)), pytest.param(48, (3, 21), marks=pytest.mark.slow)]
)
def test_a_killed_search_goes_on_and_ends_as_if_nothing_had_happened(
    trials: int, kills: tuple[int, int]
) -> None:
    base = load_scenario(TINY).with_(**{"workload.num_requests": 200}).to_dict()
    path = write(WIDE | {"trials": trials, "base": base})
    assert servetwin("search", path, "-o", "whole", "--workers", 1, "--quiet").code == 0
    log = Path("killed/trials.jsonl")
    for lines in kills:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "search", str(path), "-o", "killed", "--workers", "1", "--quiet"]
        )
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < lines):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    with log.open("ab") as file:
        file.write(b'{"number": %d, "poi' % (trials - 4))  # what a kill in the middle of a write leaves
    before = log.read_bytes().splitlines()[:-1]
    assert servetwin("search", path, "-o", "killed", "--workers", 1, "--quiet").code == 0
    after = log.read_bytes().splitlines()
    assert set(before) <= set(after)
    assert len(after) == len(set(after)) == trials
    assert files("whole") == files("killed")


def test_more_trials_go_on_from_the_folder() -> None:
    for trials in (12, 30):
        assert servetwin("search", write(GRID), "--trials", trials, "-o", "grown", "--quiet").code == 0
    assert servetwin("search", write(GRID), "--trials", 30, "-o", "once", "--quiet").code == 0
    assert files("grown") == files("once")


def test_a_folder_of_another_search_is_left_alone() -> None:
    assert servetwin("search", write(GRID), "--trials", 2, "-o", "out", "--quiet").code == 0
    kept = files("out")
    assert "out: holds another search; --fresh" in complaint(seed=1)
    assert files("out") == kept
    made = servetwin("search", write(GRID | {"seed": 1}), "--trials", 2, "-o", "out", "--quiet", "--fresh")
    assert made.code == 0
    assert len(Path("out/trials.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"nonsense",
        b'{"number": 0, "point": 7}',
        b'{"number": 0, "point": {"seed": 1}}',
        b"[" * 9999,
    ],
)
def test_a_foreign_line_among_the_trials_is_named(line: bytes) -> None:
    assert servetwin("search", write(GRID), "--trials", 2, "-o", "out", "--quiet").code == 0
    Path("out/trials.jsonl").write_bytes(line + b"\n")
    assert "out/trials.jsonl" in complaint(trials=2)


# What goes wrong.


def test_a_point_that_crashes_is_recorded_and_the_rest_goes_on() -> None:
    Path("mine.py").write_text("def bad(seq, ctx): raise RuntimeError('<b>broken</b>')\n")
    search = GRID | {"vary": {"scheduler.order": ["fcfs", "mine.py:bad"]}, "trials": 8, "constraints": []}
    assert "is code; to run it pass --trust" in servetwin("search", write(search), "-o", "out").complaint
    made = servetwin("search", write(search), "-o", "out", "--trust", "--quiet")
    assert made.code == 0, made.err
    lines = [json.loads(line) for line in Path("out/trials.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["error"]]
    assert 0 < len(failed) < len(lines)
    assert all("broken" in line["error"] for line in failed)
    page = Path("out/report.html").read_text()
    assert "<b>broken" not in page
    assert "&lt;b&gt;broken" in page
    assert json.loads(Path("out/search.json").read_text())["winner"]["point"] == {"scheduler.order": "fcfs"}


def test_a_policy_of_the_users_is_kept_with_the_winner() -> None:
    Path("mine.py").write_text("def mine(seq, ctx): return -seq.arrival\n")
    search = GRID | {"vary": {"scheduler.order": ["mine.py:mine"], "scheduler.max_num_seqs": [6, 9]}}
    made = servetwin("search", write(search), "-o", "out", "--trust", "--quiet")
    assert made.code == 0, made.err
    assert Path("out/winner/mine.py").read_text() == Path("mine.py").read_text()
    assert "order: mine.py:mine" in Path("out/winner/scenario.yaml").read_text()


def test_python_objects_can_be_searched() -> None:
    def last_first(seq: Any, ctx: Any) -> float:
        return float(-seq.arrival)

    vary = {"scheduler.order": ["fcfs", last_first]}
    found = simulator.search(GRID | {"vary": vary, "trials": 8, "constraints": []}, progress=False)
    assert set(found.trials["scheduler.order"]) == {"fcfs", "last_first"}
    assert found.trials["p99_ttft_ms"].nunique() == 2


def test_if_every_trial_fails_the_first_reason_is_told() -> None:
    vary = {"scheduler.max_num_seqs": [200, 300]}
    assert "all 8 trials failed; the first: " in complaint(vary=vary, trials=8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"objectives": ["p99_tft_ms:min"]},
            "objectives: 'p99_tft_ms': no such metric; did you mean p99_ttft_ms?",
        ),
        ({"objectives": ["p99_ttft_ms:smal"]}, "'smal' is no direction"),
        ({"objectives": ["p99_ttft_ms"]}, "write metric:min or metric:max, got 'p99_ttft_ms'"),
        ({"objectives": ["p99_ttft_ms:min", "p99_ttft_ms:max"]}, "'p99_ttft_ms' is given twice"),
        ({"objectives": []}, "needs one to 4"),
        ({"objectives": ...}, "needs one to 4"),
        ({"objectives": 7}, "objectives: must be a list, got 7"),
        ({"constraints": ["attainment=0.9"]}, "write metric<=number or metric>=number, got 'attainment=0.9'"),
        ({"constraints": ["attainment>=much"]}, "write metric<=number"),
        ({"constraints": ["attainment>=nan"]}, "write metric<=number"),
        ({"constraints": ["atainment>=0.9"]}, "did you mean attainment?"),
        ({"constraints": ["attainment>=0.9", "attainment>=0.8"]}, "'attainment' is given twice"),
        ({"sampler": "nsga"}, "sampler 'nsga': unknown; did you mean nsga2?"),
        ({"vary": {}}, "vary: must map scenario keys to values, got {}"),
        ({"vary": {"scheduler.max_seqs": [1]}}, "unknown key 'max_seqs'; did you mean max_num_seqs?"),
        ({"vary": {"seed": []}}, "vary.seed: the list is empty"),
        ({"vary": {"seed": [1, 1]}}, "vary.seed: 1 is given twice"),
        ({"vary": {"seed": {}}}, "vary.seed: low: must be a number, got None"),
        ({"vary": {"seed": {"low": 5, "high": 1}}}, "vary.seed: low must be < high, got 5 and 1"),
        ({"vary": {"seed": {"low": 0, "high": 1, "step": 1}}}, "unknown 'step'"),
        (
            {"vary": {"seed": {"low": 0, "high": 1, "log": True}}},
            "low must be > 0 for a logarithmic range",
        ),
        (
            {"vary": {"seed": {"low": 0.5, "high": 1, "int": True}}},
            "must be whole numbers with int: true",
        ),
        ({"vary": {"seed": {"low": 0, "high": float("inf")}}}, "high: must be a number, got 'Infinity'"),
        ({"vary": {"seed": 1}}, "vary.seed: must be a list of values"),
        ({"base": "tiny-cpus"}, "did you mean tiny-cpu?"),
        ({"base": ...}, "base is missing"),
        ({"objektives": []}, "unknown key 'objektives'; did you mean objectives?"),
        ({"trials": 0}, "trials: must be a whole number from 1 to"),
        ({"replications": 1.5}, "replications: must be a whole number"),
        ({"metrics": ["ttft"]}, "metrics: 'ttft': no such metric"),
    ],
)
def test_a_bad_search_is_named_in_one_line(changes: dict[str, Any], said: str) -> None:
    assert said in complaint(**changes)


def test_bad_flags_are_named_in_one_line() -> None:
    path = write(GRID)
    assert "--objective" in servetwin("search", path, "--objective", "x").complaint
    assert "--constraint" in servetwin("search", path, "--constraint", "x").complaint
    assert "--trials" in servetwin("search", path, "--trials", "0").complaint
    assert "no.yaml: " in servetwin("search", "no.yaml").complaint


def test_an_unwritable_folder_and_a_missing_optuna_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    assert "cannot write file" in servetwin("search", write(GRID), "-o", "file/out").complaint
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'servetwin[sweep]'" in servetwin("search", write(GRID), "-o", "out").complaint
    with pytest.raises(ConfigError, match="needs Optuna"):
        simulator.search(GRID)


# What it leaves.


def test_the_winner_is_a_scenario_and_the_report_shows_the_search() -> None:
    made = servetwin("search", write(GRID), "-o", "out", "--json")
    told = json.loads(made.out)
    assert told == json.loads(Path("out/search.json").read_text())
    again = load_scenario("out/winner")
    assert metric_of(run_scenario(again), "p99_itl_ms") == told["winner"]["values"]["p99_itl_ms"]
    page = Path("out/report.html").read_text()
    HTMLParser().feed(page)
    for figure in ("search-history", "search-parallel"):
        assert f'id="figure-{figure}"' in page
    rows = Path("out/results.csv").read_text().splitlines()
    assert len(rows) == 1 + told["trials"]
    assert servetwin("search", "out/search.yaml", "-o", "again", "--quiet").code == 0
    assert files("again") == files("out")


def test_saving_a_result_writes_what_the_command_writes() -> None:
    assert servetwin("search", write(TWO | {"trials": 16}), "-o", "out", "--quiet").code == 0
    found = simulator.search(TWO | {"trials": 16}, progress=False)
    found.save("saved")
    assert files("saved") == files("out")
    assert {found.plot(kind).layout.height for kind in ("pareto", "history", "parallel")}
    with pytest.raises(ConfigError, match="unknown kind 'heat'"):
        found.plot("heat")
    os.mkdir("run")
    Path("run/summary.json").write_text("{}")
    with pytest.raises(InputError, match="holds something else"):
        found.save("run")
