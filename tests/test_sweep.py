"""Sweeps: the same bytes whatever happens to them, and nothing finished is ever lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import MAIN, servetwin, spawn

import simulator
from simulator.errors import ConfigError, InputError
from simulator.experiments.sweep.backends import open_pool
from simulator.experiments.sweep.journal import Journal, Shard
from simulator.experiments.sweep.plan import read_plan
from simulator.experiments.sweep.points import build_sweep
from simulator.experiments.sweep.run import Where, run_sweep
from simulator.experiments.sweep.table import estimate
from simulator.experiments.sweep.tasks import Outcome, Task, run_task
from simulator.experiments.sweep.trade_off import tokens_per_user_and_gpu

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "sweep.yaml"
SMALL: dict[str, Any] = {
    "base": "tiny-cpu",
    "vary": {"scheduler.max_num_seqs": [2, 12], "workload.arrivals.rate": [2.4, 6.0]},
    "replications": 2,
}
FORTY = """
base: tiny-cpu
vary:
  scheduler.max_num_seqs: [2, 4, 8, 12]
  workload.arrivals.rate: [1.2, 2.4, 3.6, 4.8, 6.0]
  scheduler.order: [fcfs, sjf_prompt]
"""
MEANWHILE = """
def slow(seq, ctx):
    end = time.perf_counter() + 0.0002
    while time.perf_counter() < end:
        pass
    return seq.arrival

def failing(seq, ctx):
    if ctx.now > 3.0:
        raise RuntimeError(f"/home/me/secret/table.csv is bad at {hex(id(seq))}")
    return seq.arrival
"""
FILES = ("points.jsonl", "results.csv", "report.html", "sweep.json")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A policy that fails in the middle of a run, one that takes its time."""
    path = tmp_path / "mine.py"
    path.write_text(f"import time\n{MEANWHILE}")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    done = servetwin("sweep", EXAMPLE, "-o", tmp_path, "--workers", 1)
    assert done.code == 0, done
    assert "Pareto front" in done.out
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert len(lines) == 41
    assert "p99_ttft_ms,p99_ttft_ms_low,p99_ttft_ms_high" in lines[0]
    assert len((tmp_path / "points.jsonl").read_text().splitlines()) == 120


def test_a_point_is_the_run_that_its_keys_give(tmp_path: Path) -> None:
    found = simulator.sweep(SMALL, progress=False, workers=1)
    alone = simulator.simulate("tiny-cpu", set={"scheduler.max_num_seqs": 12, "workload.arrivals.rate": 6.0})
    first = found.outcomes()[6]
    assert first[0] == (3, 0)
    assert first[1].values["p99_ttft_ms"] == alone.summary["p99_ttft_ms"]
    assert list(found.frame.index) == [0, 1, 2, 3]
    assert found.best("p99_ttft_ms")["scheduler.max_num_seqs"] == 12
    assert found.best("output_throughput").name == 3
    assert found.front.index.tolist() == found.to_dict()["pareto_front"] != []
    assert found.front.equals(found.frame.loc[found.front.index])
    assert "point" in found._repr_html_()
    assert len(found.plot("pareto").data) == 2
    assert found.plot().data[0].type == "heatmap"
    with pytest.raises(ConfigError, match="line does not fit a sweep of 2 keys; heatmap does"):
        found.plot("line")
    found.save(tmp_path / "saved")
    assert simulator.sweep(SMALL, tmp_path / "again", progress=False).to_dict() == found.to_dict()
    assert contents(tmp_path / "saved") == contents(tmp_path / "again")


@pytest.mark.parametrize(("num", "kind"), [(1, "scatter"), (2, "heatmap"), (3, "scatter")])
def test_every_number_of_keys_has_a_picture(num: int, kind: str, tmp_path: Path) -> None:
    keys = {
        "scheduler.max_num_seqs": [2, 4],
        "workload.arrivals.rate": [2.0, 3.0],
        "scheduler.order": ["fcfs", "lifo"],
    }
    vary = dict(list(keys.items())[:num])
    found = simulator.sweep(
        {"base": "tiny-cpu", "vary": vary, "metrics": ["attainment", "p99_ttft_ms"]}, workers=1
    )
    figure = found.plot()
    assert figure.data[0].type == kind
    seen = [trace.visible for trace in figure.data]
    assert 0 < sum(seen) == len(seen) / 2
    chosen = figure.layout.updatemenus[0].buttons[1].args[0]["visible"]
    assert chosen == [not each for each in seen]
    assert found.plot("scatter").data


def test_intervals_over_replications_are_students() -> None:
    """Devore, t table: 2.262 for 9 degrees of freedom."""
    found = estimate([float(x) for x in range(10)])
    assert found.mean == 4.5
    assert found.high is not None
    assert found.high - found.mean == pytest.approx(2.262 * (110 / 12 / 10) ** 0.5, rel=1e-3)


def test_two_workers_a_shuffled_order_and_shards_give_the_same_bytes(tmp_path: Path) -> None:
    file = written(tmp_path, FORTY)
    for name, flags in {"one": ["--workers", 1], "two": ["--workers", 2]}.items():
        assert servetwin("sweep", file, "-o", tmp_path / name, *flags).code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    parts = tmp_path / "parts"
    sizes = []
    for i in (1, 2, 3):
        assert servetwin("sweep", file, "-o", parts, "--shard", f"{i}/3", "--workers", 1, "--quiet").code == 0
        sizes.append(len((parts / f"points-{i}-of-3.jsonl").read_text().splitlines()))
    assert sizes == [14, 13, 13]
    assert not (parts / "results.csv").exists()
    joined = servetwin("sweep", file, "-o", parts)
    assert "40 of 40 runs were finished before" in joined.err
    assert contents(parts) == contents(tmp_path / "one")
    lines = (tmp_path / "one" / "points.jsonl").read_bytes().splitlines(keepends=True)
    random.Random(1).shuffle(lines)
    (parts / "points.jsonl").write_bytes(b"".join(lines))
    assert servetwin("sweep", file, "-o", parts).code == 0
    assert contents(parts) == contents(tmp_path / "one")


def killed(file: Path, folder: Path, lines: int, *flags: object) -> int:
    """Kill a sweep, and what it started, once it has so many more lines; return how many it has."""
    path = folder / "points.jsonl"
    before = path.read_bytes().count(b"\n") if path.exists() else 0
    argv = [sys.executable, "-c", MAIN, "sweep", file, "-o", folder, "--trust", *flags]
    process = subprocess.Popen(
        list(map(str, argv)), stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= before + lines:
            break
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return path.read_bytes().count(b"\n")


def test_a_sweep_killed_three_times_equals_one_that_was_not(tmp_path: Path, policies: Path) -> None:
    file = written(tmp_path, FORTY.replace("[fcfs, sjf_prompt]", "[fcfs, mine.py:slow]"))
    assert servetwin("sweep", file, "-o", tmp_path / "whole", "--trust", "--workers", 1).code == 0
    rng = random.Random()
    folder, have = tmp_path / "killed", 0
    for workers in (1, 2, 1):
        have = killed(file, folder, rng.randint(1, 10), "--workers", workers)
    assert 3 <= have < 40
    done = servetwin("sweep", file, "-o", folder, "--trust", "--workers", 2)
    assert done.code == 0
    assert f"{have} of 40 runs were finished before" in done.err
    assert contents(folder) == contents(tmp_path / "whole")
    places = [json.loads(line)["point"] for line in (folder / "points.jsonl").read_text().splitlines()]
    assert places == list(range(40))


def test_SW_01_resume_after_a_torn_line_with_configs_that_always_fail(tmp_path: Path, policies: Path) -> None:
    """20 configs, some of which fail: 20 rows, none tried twice, equal to the run that nothing stopped."""
    orders = "[fcfs, lifo, mine.py:failing, sjf_prompt, priority]"
    text = f"base: tiny-cpu\nvary:\n  scheduler.max_num_seqs: [2, 4, 8, 12]\n  scheduler.order: {orders}\n"
    text = text.replace("[2, 4, 8, 12]", "[4, 8, 10, 12]")
    file = written(tmp_path, text)
    whole = servetwin("sweep", file, "-o", tmp_path / "whole", "--trust", "--workers", 1)
    assert whole.code == 1
    lines = (tmp_path / "whole" / "points.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 20
    for workers, have in ((1, 7), (4, 13)):
        folder = tmp_path / f"torn{workers}"
        folder.mkdir()
        half = lines[have][: len(lines[have]) // 2]
        (folder / "points.jsonl").write_bytes(b"".join(lines[:have]) + half)
        done = servetwin("sweep", file, "-o", folder, "--trust", "--workers", workers)
        assert done.code == 1
        assert "the last line was cut short by what ended the sweep; its run is made again" in done.err
        assert f"{have} of 20 runs were finished before" in done.err
        assert contents(folder) == contents(tmp_path / "whole")
    again = servetwin("sweep", file, "-o", tmp_path / "whole", "--trust")
    assert again.code == 1  # it still has failed points
    assert "20 of 20 runs were finished before" in again.err


@pytest.mark.slow
def test_DE_01_results_depend_on_no_worker_and_no_order(tmp_path: Path) -> None:
    """8 configs x 5 replicas, seed 123: the same table for 1, 2 and 8 processes; replicas differ pairwise."""
    plan = {
        "base": simulator.load_scenario("tiny-cpu").with_(seed=123),
        "vary": {"scheduler.max_num_seqs": [2, 4, 8, 12], "scheduler.order": ["fcfs", "sjf_prompt"]},
        "replications": 5,
    }
    for workers in (1, 2, 8):
        simulator.sweep(plan, tmp_path / str(workers), workers=workers, progress=False)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "8")
    sweep = build_sweep(read_plan(plan))
    keys = [(point, i) for point in range(8) for i in range(5)]
    random.Random(7).shuffle(keys)
    shuffled = {key: run_task(sweep.points[key[0]].task(key[1], 5)) for key in keys}
    assert shuffled == run_sweep(sweep, where=Where(workers=1))
    for point in range(8):
        durations = [shuffled[point, i].values["duration"] for i in range(5)]
        assert len(set(durations)) == 5


def test_a_crashing_point_is_written_down_and_the_rest_goes_on(tmp_path: Path, policies: Path) -> None:
    file = written(tmp_path, "base: tiny-cpu\nvary: {scheduler.order: [mine.py:failing, fcfs]}\n")
    assert "pass --trust" in servetwin("sweep", file, "-o", tmp_path / "no").complaint
    done = servetwin("sweep", file, "-o", tmp_path / "out", "--trust", "--workers", 1)
    assert done.code == 1
    assert "point 0 failed (order=mine.py:failing): ConfigError: scheduler.order: failing" in done.out
    first, second = map(json.loads, (tmp_path / "out" / "points.jsonl").read_text().splitlines())
    assert "table.csv is bad at 0x" in first["error"]
    assert "mine.py:11 in failing" in first["calls"]
    assert "values" in second
    assert "/" not in json.dumps(first)
    row = (tmp_path / "out" / "results.csv").read_text().splitlines()[1]
    assert row.startswith("0,mine.py:failing,0,1,,")
    assert "RuntimeError" in (tmp_path / "out" / "report.html").read_text()


def test_another_sweep_is_refused_in_the_folder_and_fresh_begins_anew(tmp_path: Path) -> None:
    file, out = written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 2]}\n"), tmp_path / "out"
    assert servetwin("sweep", file, "-o", out).code == 0
    written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 3]}\n")
    told = servetwin("sweep", file, "-o", out).complaint
    assert "holds runs of another sweep (other points); --fresh" in told
    (out / "sweep.json").unlink()
    assert "points.jsonl, line 1: a run of another sweep" in servetwin("sweep", file, "-o", out).complaint
    assert servetwin("sweep", file, "-o", out, "--fresh").code == 0
    assert [json.loads(x)["keys"] for x in (out / "points.jsonl").read_text().splitlines()] == [
        {"seed": 1},
        {"seed": 3},
    ]
    written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 3]}\nmetrics: [p90_ttft_ms]\n")
    done = servetwin("sweep", file, "-o", out)  # other columns, the same runs
    assert "2 of 2 runs were finished before" in done.err
    assert (out / "results.csv").read_text().startswith("point,seed,runs,failed,p90_ttft_ms\n")


def test_a_policy_file_that_changed_makes_another_sweep(tmp_path: Path, policies: Path) -> None:
    file = written(tmp_path, "base: tiny-cpu\nvary: {scheduler.order: [fcfs, mine.py:slow]}\n")
    assert servetwin("sweep", file, "-o", tmp_path / "out", "--trust").code == 0
    policies.write_text(policies.read_text() + "\n# other\n")
    told = servetwin("sweep", file, "-o", tmp_path / "out", "--trust").complaint
    assert "other file mine.py:slow" in told


def test_a_line_that_is_no_run_is_named(tmp_path: Path) -> None:
    file, out = written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 2, 3]}\n"), tmp_path / "out"
    assert servetwin("sweep", file, "-o", out).code == 0
    lines = (out / "points.jsonl").read_bytes().splitlines(keepends=True)
    (out / "points.jsonl").write_bytes(lines[0] + b"[1]\n" + lines[2])
    assert "points.jsonl, line 2: not a run of a sweep" in servetwin("sweep", file, "-o", out).complaint


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    sweep = build_sweep(read_plan(SMALL))
    with Journal(tmp_path, sweep), pytest.raises(InputError, match="another process is running this sweep"):
        run_sweep(sweep, tmp_path)
    with Journal(tmp_path, sweep, Shard(1, 2)):
        pass


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 2]}\n")
    (tmp_path / "taken").write_text("")
    told = servetwin("sweep", file, "-o", tmp_path / "taken" / "out").complaint
    assert "cannot write" in told
    assert "Not a directory" in told


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk: the file takes some lines and a part of one more."""
    file, out = written(tmp_path, FORTY), tmp_path / "out"
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1)); {MAIN}"
    done = spawn("sweep", file, "-o", out, "--workers", 1, "--quiet", code=limit)
    assert "File too large; the" in done.complaint
    assert "runs finished before are kept, and with more room the same command goes on" in done.complaint
    have = (out / "points.jsonl").read_bytes()
    assert have.endswith(b"\n")
    assert 0 < have.count(b"\n") < 40
    assert servetwin("sweep", file, "-o", out).code == 0
    assert servetwin("sweep", file, "-o", tmp_path / "whole").code == 0
    assert contents(out) == contents(tmp_path / "whole")


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(tmp_path: Path, policies: Path) -> None:
    file, out = written(tmp_path, FORTY.replace("sjf_prompt", "mine.py:slow")), tmp_path / "out"
    argv = [sys.executable, "-c", MAIN, "sweep", file, "-o", out, "--trust", "--workers", 2]
    process = subprocess.Popen(
        list(map(str, argv)), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not (out / "points.jsonl").exists():
        time.sleep(0.01)
    while time.monotonic() < until and not (out / "points.jsonl").read_bytes().count(b"\n"):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert f"what is finished is in {out}; the same command goes on from there" in told
    assert "Traceback" not in told
    assert (out / "points.jsonl").read_bytes().count(b"\n") >= 1


def test_dry_run_writes_nothing_and_says_how_long(tmp_path: Path) -> None:
    file = written(tmp_path, FORTY)
    done = servetwin("sweep", file, "--dry-run", "-o", tmp_path / "out", "--workers", 2)
    assert done.out.startswith("sweep: 40 points, 40 runs\n  0  max_num_seqs=2 rate=1.2 order=fcfs\n")
    assert "with 2 workers (timed: " in done.out
    found = json.loads(servetwin("sweep", file, "--dry-run", "--json").out)
    assert found["runs"] == 40
    assert len(found["timed_s"]) == 2
    assert not (tmp_path / "out").exists()


def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    file = written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 2]}\n")
    done = servetwin("sweep", file, "-o", tmp_path / "out", "--json", "--quiet")
    found = json.loads(done.out)
    assert (found["points"], len(found["rows"]), done.err) == (2, 2, "")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--backend", "dusk"], "--backend 'dusk': unknown; did you mean dask?"),
        (["--address", "tcp://here:1"], "--address: loky works on this machine"),
        (["--workers", "0"], "--workers: must be 1 to 1,000, got 0"),
        (["--workers", "100000"], "--workers: must be 1 to 1,000, got 100000"),
        (["--shard", "3/2"], "--shard '3/2': i must be from 1 to n"),
        (["--shard", "half"], "--shard 'half': write i/n, such as 1/4"),
        (["--shard", "1/9"], "--shard 1/9: the sweep has only 2 runs"),
    ],
)
def test_flags_that_cannot_be_used_are_named(flags: list[str], words: str, tmp_path: Path) -> None:
    file = written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 2]}\n")
    assert words in servetwin("sweep", file, "-o", tmp_path / "out", *flags).complaint


def test_policies_of_ones_own_are_values_too(tmp_path: Path) -> None:
    def longest(seq: Any, ctx: Any) -> Any:
        return -seq.num_prompt

    plan = {
        "base": "tiny-cpu",
        "vary": {"scheduler.order": ["fcfs", longest], "workload.arrivals.rate": [9.0]},
    }
    found = simulator.sweep(plan, tmp_path, workers=2, progress=False)
    assert found.frame["scheduler.order"].tolist() == ["fcfs", "longest"]
    alone = simulator.simulate("tiny-cpu", order=longest, set={"workload.arrivals.rate": 9.0})
    assert found.frame["p99_ttft_ms"][1] == alone.summary["p99_ttft_ms"]
    assert found.frame["p99_ttft_ms"][0] != found.frame["p99_ttft_ms"][1]


def test_text_from_a_sweep_file_cannot_inject_html(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    base = simulator.load_scenario("tiny-cpu").to_dict() | {"name": name}
    plan = {"base": base, "vary": {"workload.tenants": [None, [{"name": "<script>alert(2)</script>"}]]}}
    page = (
        simulator.sweep(plan, tmp_path, workers=1, progress=False) and tmp_path / "report.html"
    ).read_text()
    assert "<img src=x" not in page
    assert "<script>alert(2)" not in page


def test_a_point_on_two_gpus_gives_its_tokens_to_each(tmp_path: Path) -> None:
    vary = {"parallel.tensor_parallel_size": [1, 2], "workload.num_requests": [30]}
    found = simulator.sweep({"base": "chat-a100", "vary": vary}, workers=1, progress=False)
    whole = [row.value("output_throughput") for row in found.rows]
    assert whole[0] is not None
    assert whole[1] is not None
    each = tokens_per_user_and_gpu(found.rows)
    assert each[:, 1].tolist() == [whole[0], whole[1] / 2]
    tpot = [row.value("mean_tpot_ms") for row in found.rows]
    assert each[:, 0].tolist() == [1000 / ms for ms in tpot if ms]


def test_a_folder_of_a_run_is_left_alone(tmp_path: Path) -> None:
    simulator.simulate("tiny-cpu").save(tmp_path / "run")
    file = written(tmp_path, "base: tiny-cpu\nvary: {seed: [1, 2]}\n")
    before = (tmp_path / "run" / "report.html").read_bytes()
    for flags in ([], ["--fresh"]):
        told = servetwin("sweep", file, "-o", tmp_path / "run", *flags).complaint
        assert "holds a run or a comparison" in told
    assert (tmp_path / "run" / "report.html").read_bytes() == before


def _square_or_die(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number * number


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_worker_that_dies_costs_its_own_item_only() -> None:
    with open_pool("loky", workers=2) as pool:
        found = dict(pool.each(_square_or_die, range(8), died=lambda number: -number))
    assert found == {i: -3 if i == 3 else i * i for i in range(8)}


def test_a_task_that_fails_comes_back_as_its_outcome() -> None:
    (point,) = build_sweep(read_plan({"base": "tiny-cpu", "vary": {"seed": [1]}})).points
    found = run_task(Task(point.scenario.with_(**{"model.name": "/no/where/config.json"}), point.policies))
    assert isinstance(found, Outcome)
    assert found.error is not None
    assert "/no/where" not in found.error
    assert found.calls


@pytest.fixture(params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"dask": "distributed"}.get(request.param, request.param))
    return str(request.param)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_local_cluster_gives_the_same_bytes(cluster: str, tmp_path: Path) -> None:
    file = written(tmp_path, FORTY)
    assert servetwin("sweep", file, "-o", tmp_path / "here", "--workers", 1).code == 0
    argv = [
        sys.executable,
        "-c",
        MAIN,
        "sweep",
        file,
        "-o",
        tmp_path / "there",
        "--backend",
        cluster,
        "--workers",
        2,
    ]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
