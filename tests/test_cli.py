"""The command line: what each command prints and writes, what it loads, and with which code it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import MAIN, servetwin, spawn

from simulator.cli import app
from simulator.cli.inspect import Kind
from simulator.config.loading import bundled_scenarios, load_scenario
from simulator.experiments.run_folder import default_folder
from simulator.specs import HARDWARE, MODELS

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,20,6\n2.5,30,7\n"
LOADED = (
    "import sys; from simulator.cli import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def strict(text: str) -> dict[str, object]:
    """Parse one JSON object, without NaN and Infinity."""

    def refuse(name: str) -> object:
        raise ValueError(f"{name} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    assert isinstance(value, dict)
    return value


def quick_run(out: str, *args: object) -> None:
    made = servetwin("run", "tiny-cpu", "--no-report", "--quiet", "-o", out, *args)
    assert made == (0, "", ""), made


# What is loaded.


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"], ["trace", "--help"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    made = spawn(*args, code=LOADED)
    assert made.code == 0
    heavy = {"numpy", "pandas", "scipy", "plotly", "torch", "pydantic", "yaml", "simpy", "tqdm"}
    loaded = heavy & set(made.err.split())
    assert loaded <= {"pydantic"}, "typer checks the value of a flag with pydantic"
    assert not loaded or args != ["--help"]


def test_a_run_without_a_report_loads_neither_pandas_nor_statistics() -> None:
    made = spawn("run", "tiny-cpu", "--json", "--no-report", "--quiet", code=LOADED)
    assert made.code == 0
    assert not {"pandas", "scipy.stats", "scipy.optimize", "plotly", "torch"} & set(made.err.split())
    assert strict(made.out)["completed"] == 40


# Help.


def test_every_command_has_help_with_an_example() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert "Example" in (command.callback.__doc__ or ""), command.name
    assert servetwin("--version").out.startswith("servetwin ")
    overview = servetwin("--help").out
    for name in ("list", "init", "check", "run", "kv-size", "trace", "diff"):
        assert f" {name} " in overview


# list


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.policies])
def test_list_has_a_line_for_each(kind: Kind) -> None:
    lines = servetwin("list", kind).out.splitlines()
    found = servetwin("list", kind, "--json")
    assert found.err == ""
    rows = strict(found.out)[kind]
    assert isinstance(rows, dict)
    assert len(rows) == len(lines) > 0
    for (name, about), line in zip(rows.items(), lines, strict=True):
        assert line.split(maxsplit=1)[0] == name.split()[0]
        assert about
        assert line.endswith(about)


def test_list_knows_all_that_ships() -> None:
    for kind, names in {"scenarios": bundled_scenarios(), "models": MODELS, "hardware": HARDWARE}.items():
        rows = strict(servetwin("list", kind, "--json").out)[kind]
        assert isinstance(rows, dict)
        assert list(rows) == list(names)
    assert servetwin("list", "cars").code == 2


# init, check


def test_a_new_scenario_checks_and_runs() -> None:
    assert servetwin("init", "mine", "-o", "s.yaml").out == "Wrote s.yaml. Next: servetwin check s.yaml\n"
    assert load_scenario("s.yaml").name == "mine"
    checked = servetwin("check", "s.yaml", "--num-requests", 5)
    assert checked.code == 0
    assert "num_requests: 5\n" in checked.out
    assert "num_gpu_blocks  28,391" in checked.out
    assert servetwin("run", "s.yaml", "--num-requests", 5, "--no-report", "--quiet").code == 0
    assert [path.name[:5] for path in Path("runs").iterdir()] == ["mine-"]


def test_init_overwrites_nothing() -> None:
    Path("scenario.yaml").write_text("precious")
    assert servetwin("init").complaint == "scenario.yaml exists; name another file with -o"
    assert Path("scenario.yaml").read_text() == "precious"
    assert (
        servetwin("init", "-o", "no/s.yaml").complaint == "cannot write no/s.yaml: No such file or directory"
    )
    assert servetwin("init", "x" * 300, "-o", "s.yaml").complaint.startswith(
        "new scenario: name: must have at most"
    )
    assert servetwin("init", "a\nb", "-o", "s.yaml").complaint.startswith(
        "new scenario: name: must be one line"
    )
    assert not Path("s.yaml").exists()


def test_check_gives_one_json_object() -> None:
    found = strict(servetwin("check", "tiny-cpu", "--json").out)
    assert found["num_requests"] == 40
    assert found["scenario"] == load_scenario("tiny-cpu").to_dict()
    assert {"total_tokens", "estimated_seconds", "kv", "times", "notes"} <= found.keys()


# run


def test_run_prints_block_provenance_verdict_and_folder() -> None:
    made = servetwin("run", "tiny-cpu")
    assert made.code == 0
    assert made.out.startswith("============ Serving Benchmark Result ============\n")
    for line in (
        "Successful requests:                     40",
        "Times: linear coefficients",
        "SLO met: 100.0 %",
    ):
        assert line in made.out
    where = default_folder(load_scenario("tiny-cpu"))
    assert made.out.endswith(f"Report: {where}/report.html\n")
    names = {"summary.json", "requests.csv", "scenario.yaml", "report.html"}
    assert {path.name for path in where.iterdir()} == names


def test_json_is_one_object_on_stdout_and_all_else_on_stderr() -> None:
    made = servetwin("run", "tiny-cpu", "--json", "--no-report", "-o", "out")
    assert strict(made.out) == strict(Path("out/summary.json").read_text())
    assert "Serving Benchmark Result" in made.err
    assert servetwin("run", "tiny-cpu", "--json", "--no-report", "-o", "out", "--quiet") == (0, made.out, "")


def test_logs_are_written_as_asked() -> None:
    quick_run("out", "--log", "all")
    logs = {"steps.csv", "decisions.jsonl", "timeline.json.gz", "metrics.prom"}
    assert logs <= {path.name for path in Path("out").iterdir()}
    quick_run("out", "--log", "steps,decisions")
    assert {path.name for path in Path("out").iterdir()} & logs == {"steps.csv", "decisions.jsonl"}
    quick_run("out")
    assert not {path.name for path in Path("out").iterdir()} & logs, "logs of an earlier run are gone"
    assert servetwin("run", "tiny-cpu", "--log", "step").complaint.startswith(
        "--log 'step': unknown; did you mean"
    )


def test_a_run_folder_is_a_scenario() -> None:
    quick_run("a", "--seed", 3, "--order", "priority")
    made = servetwin("run", "a", "--no-report", "--quiet", "-o", "b")
    assert made.code == 0
    for name in ("summary.json", "requests.csv", "scenario.yaml"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


def test_a_run_folder_may_be_written_again_but_nobody_elses_scenario() -> None:
    Path("scenario.yaml").write_text("# precious\nseed: 1\n")
    refused = servetwin("run", "tiny-cpu", "--no-report", "-o", ".").complaint
    assert refused == ".: holds a scenario.yaml that is no run's; name another folder with -o"
    assert Path("scenario.yaml").read_text().startswith("# precious")
    quick_run("out")
    quick_run("out", "--seed", 1)
    assert load_scenario("out").seed == 1


def test_flags_change_the_scenario() -> None:
    quick_run("out", "--model", "tiny-llama-28m", "--hardware", "cpu-1core", "--seed", 5, "--rate", 7,
              "--num-requests", 9, "--slo", "e2el:3000", "--slo", "tpot:80", "--set", "kv.block_size=8",
              "--set", "workload.lengths.output=[1, 4]", "--order", "priority")  # fmt: skip
    made = load_scenario("out")
    assert made.seed == 5
    assert made.workload.arrivals == {"kind": "poisson", "rate": 7.0}
    assert made.workload.num_requests == 9
    assert made.workload.lengths["output"] == [1, 4]
    assert made.slo.seconds() == {"tpot": 0.08, "e2el": 3.0}
    assert made.kv.block_size == 8
    assert made.scheduler.order == "priority"


def test_a_trace_takes_its_flags() -> None:
    Path("t.csv").write_text("ts,in,out\n0,10,5\n2000,20,6\n4000,30,7\n")
    columns = ("--trace", "t.csv", "--columns", "arrival=ts,prompt=in,output=out", "--time-unit", "ms")
    quick_run("a", *columns)
    lines = Path("a/requests.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1:4] for line in lines] == [
        ["0.0", "10", "5"],
        ["2.0", "20", "6"],
        ["4.0", "30", "7"],
    ]
    quick_run("b", *columns, "--num-requests", 2)
    assert len(Path("b/requests.csv").read_text().splitlines()) == 3
    quick_run("c", *columns, "--rate", 3)
    assert load_scenario("c").workload.rate_scale == 4.0  # 3 requests in 4 s are to come in 1 s
    assert load_scenario("c").workload.trace == str(Path("t.csv").resolve())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["nope"],
            "scenario 'nope': no such file, run folder or bundled scenario; known: ",
        ),
        (["."], "scenario '.': no such file, run folder or bundled scenario"),
        (["x" * 5000], "scenario 'xxx"),
        (["tiny-cpu", "--slo", "ttft"], "--slo 'ttft': write ttft:MS, tpot:MS or e2el:MS"),
        (["tiny-cpu", "--slo", "itl:5"], "--slo 'itl:5': write ttft:MS, tpot:MS or e2el:MS"),
        (["tiny-cpu", "--slo", "ttft:fast"], "--slo 'ttft:fast': 'fast' is not a number of ms"),
        (["tiny-cpu", "--slo", "ttft:0"], "tiny-cpu: slo.ttft_ms: must be greater than 0, got 0.0"),
        (["tiny-cpu", "--slo", "ttft:nan"], "tiny-cpu: slo.ttft_ms: must be a finite number, got nan"),
        (["tiny-cpu", "--rate", "0"], "rate: must be > 0 and finite, got 0.0"),
        (
            ["tiny-cpu", "--rate", "1e-300"],
            "workload: the last request arrives after",
        ),
        (["tiny-cpu", "--rate", "inf"], "rate: must be > 0 and finite, got inf"),
        (
            ["tiny-cpu", "--num-requests", "0"],
            "tiny-cpu: workload.num_requests: must be greater than or equal to 1",
        ),
        (["tiny-cpu", "--seed", "-1"], "tiny-cpu: seed: must be greater than or equal to 0, got -1"),
        (["tiny-cpu", "--set", "seed"], "--set 'seed': write key=value"),
        (["tiny-cpu", "--set", "=3"], "--set '=3': write key=value"),
        (
            ["tiny-cpu", "--set", "kv.blocksize=3"],
            "kv.blocksize: unknown key 'blocksize'; did you mean block_size?",
        ),
        (
            ["tiny-cpu", "--order", "fcsf"],
            "scheduler.order: unknown 'fcsf'; did you mean fcfs?, or file.py:name",
        ),
        (["tiny-cpu", "--batching", "chunky"], "scheduler.batching: unknown 'chunky'; did you mean chunked?"),
        (["tiny-cpu", "--model", "llama"], "model.name: 'llama' is neither a shipped model nor an existing"),
        (["tiny-cpu", "--hardware", "h100"], "hardware.gpu: 'h100' is unknown; did you mean h200?"),
        (["chat-a100", "--profile", "no.json"], "no.json"),
        (["tiny-cpu", "--trace", "no.csv"], "no.csv: cannot be read: No such file or directory"),
        (["tiny-cpu", "--trace", "."], ".: cannot be read: Is a directory"),
        (["tiny-cpu", "--columns", "arrival"], "--columns 'arrival': write key=value"),
        (["tiny-cpu", "-o", "file"], "cannot write file: File exists"),
        (["tiny-cpu", "-o", "file/x"], "cannot write file/x: Not a directory"),
        (["tiny-cpu", "-o", "/proc/x"], "cannot write /proc/x: No such file or directory"),
    ],
)
def test_a_run_that_cannot_be_is_told_in_one_line(args: list[str], message: str) -> None:
    Path("file").write_text("")
    assert servetwin("run", *args).complaint.startswith(message)
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.parametrize("args", [[], ["--bogus"], ["tiny-cpu", "--seed", "x"], ["tiny-cpu", "tiny-cpu"]])
def test_wrong_usage_leaves_with_2(args: list[str]) -> None:
    made = servetwin("run", *args)
    assert (made.code, made.out) == (2, "")
    assert "Error" in made.err


@pytest.mark.parametrize(
    "name", ["../../x", "<script>x()</script>", "a/b\\c", "...", "ü" * 200, "x" * 200, "-rf"]
)
def test_a_hostile_name_stays_in_its_place(name: str, tmp_path: Path) -> None:
    report = [] if "<" in name else ["--no-report"]
    made = servetwin("run", "tiny-cpu", "--num-requests", 3, "--set", f"name={name}", *report)
    assert made.code == 0
    (run,) = Path("runs").iterdir()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert strict((run / "summary.json").read_text())["label"] == name
    assert load_scenario(run).name == name
    assert report or "<script>x" not in (run / "report.html").read_text(encoding="utf-8")


def test_an_error_cannot_fool_the_terminal() -> None:
    Path("t.csv").write_text("\x1b[2Jgone,b\n1,2\n")
    assert "found ?[2Jgone, b" in servetwin("run", "tiny-cpu", "--trace", "t.csv").complaint


# The process.


def test_an_interrupted_run_leaves_with_130() -> None:
    Path("ctrl_c.py").write_text(
        "import os, signal\n"
        "def order(seq, ctx):\n"
        "    if seq.id == '9': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return 0\n"
    )
    made = spawn("run", "tiny-cpu", "--no-report", "--order", "ctrl_c.py:order")
    assert made == (130, "", "servetwin: interrupted\n")
    assert not Path("runs").exists()


@pytest.mark.parametrize("args", [["list", "models"], ["run", "tiny-cpu", "--no-report"], ["--help"]])
def test_a_reader_that_goes_away_is_no_error(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as gone:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *args], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")


# kv-size


def test_kv_size_prints_units_and_json() -> None:
    found = strict(servetwin("kv-size", "llama-3.1-8b", "--context", 8192, "--json").out)
    assert found["bytes_per_token"] == 131_072  # 2 * 32 layers * 8 heads * 128 * 2 bytes
    assert found["num_gpu_blocks"] == 28_391
    text = servetwin("kv-size", "llama-3.1-8b", "--context", 8192).out
    assert "28,391" in text
    assert "55 of 8,192 tokens" in text  # (28,391 - 1) * 16 tokens / 8192
    halved = strict(servetwin("kv-size", "llama-3.1-8b", "--kv-cache-dtype", "fp8", "--json").out)
    assert halved["bytes_per_token"] == 65_536


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["llama"], "model.name: 'llama' is neither a shipped model nor an existing config.json"),
        (["llama-3.1-8b", "--hardware", "tpu"], "hardware.gpu: 'tpu' is unknown"),
        (["llama-3.1-8b", "--context", "0"], "context must be >= 1, got 0"),
        (
            ["llama-3.1-8b", "--gpu-memory-utilization", "nan"],
            "gpu_memory_utilization must be in (0, 1], got nan",
        ),
        (["llama-3.1-8b", "--tensor-parallel-size", "3"], "tensor_parallel_size 3 does not divide the 32"),
        (["llama-3.1-70b"], "llama-3.1-70b on a100-80gb-sxm with tensor_parallel_size 1: the weights take"),
    ],
)
def test_a_kv_size_that_cannot_be_is_told(args: list[str], message: str) -> None:
    assert servetwin("kv-size", *args).complaint.startswith(message)


# trace


def test_a_trace_is_described_cut_and_converted() -> None:
    Path("t.csv").write_text(VIDUR)
    info = strict(servetwin("trace", "info", "t.csv", "--json").out)
    assert info["num_requests"] == 3
    assert "3" in servetwin("trace", "info", "t.csv").out
    made = servetwin(
        "trace", "convert", "t.csv", "--start", 1, "--limit", 2, "--rate-scale", 2, "-o", "t.jsonl"
    )
    assert made.out == "Wrote 2 requests to t.jsonl\n"
    rows = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert rows == [
        {"timestamp": 0, "input_length": 20, "output_length": 6},
        {"timestamp": 750, "input_length": 30, "output_length": 7},
    ]
    assert servetwin("trace", "convert", "t.jsonl", "-o", "again.csv").code == 0
    assert Path("again.csv").read_text().splitlines()[0] == VIDUR.splitlines()[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["info", "no.csv"], "no.csv: cannot be read: No such file or directory"),
        (["info", "empty.csv"], "empty.csv: the file is empty"),
        (["info", "other.csv"], "other.csv: unknown trace format (found a, b, c)"),
        (
            ["info", "other.csv", "--columns", "arrival=a,prompt=b,output=d"],
            "other.csv: no column 'd' for output",
        ),
        (["info", "other.csv", "--columns", "arrival=a,prompt=b"], "workload.columns: output not given"),
        (
            ["info", "t.csv", "--format", "azura"],
            "workload.format: unknown format 'azura'; did you mean azure?",
        ),
        (["info", "t.csv", "--start", "9"], "workload: no request between 9 s and inf s"),
        (["info", "t.csv", "--start", "2", "--end", "1"], "--end 1: must be later than --start 2"),
        (["info", "t.csv", "--end", "nan"], "--end nan: must be later than --start 0"),
        (["info", "t.csv", "--rate-scale", "0"], "workload.rate_scale: must be > 0 and finite, got 0.0"),
        (["convert", "t.csv", "-o", "t.txt"], "-o t.txt: the name must end in .jsonl or .csv"),
        (["convert", "t.csv", "-o", "no/t.csv"], "cannot write no/t.csv: No such file or directory"),
        (["convert", "t.csv", "-o", "t.csv"], "-o t.csv: is the trace itself; name another file"),
    ],
)
def test_a_trace_that_cannot_be_used_is_told(args: list[str], message: str) -> None:
    Path("t.csv").write_text(VIDUR)
    Path("empty.csv").write_text("")
    Path("other.csv").write_text("a,b,c\n1,2,3\n")
    assert servetwin("trace", *args).complaint.startswith(message)
    assert Path("t.csv").read_text() == VIDUR


# diff


def test_diff_finds_the_first_decision_that_differs() -> None:
    quick_run("a", "--log", "decisions")
    quick_run("b", "--log", "decisions", "--set", "scheduler.max_num_batched_tokens=64")
    quick_run("c")
    same = servetwin("diff", "a", "a")
    assert same.code == 0
    assert "decisions: identical in all " in same.out
    assert "decisions: not compared (run both with --log decisions)" in servetwin("diff", "a", "c").out
    differ = servetwin("diff", "a", "b")
    assert differ.code == 0, "a difference is no failure unless it is over a limit"
    found = strict(servetwin("diff", "a", "b", "--json").out)
    step = found["divergence"]["step"]  # type: ignore[index]
    assert f"decisions: first difference in step {step} (chunks" in differ.out
    logs = [Path(run, "decisions.jsonl").read_text().splitlines() for run in ("a", "b")]
    one, other = ([json.loads(line)["chunks"] for line in log[: step + 1]] for log in logs)
    assert one[:-1] == other[:-1]
    assert one[-1] != other[-1]
    assert found["over_limit"] == []


def test_diff_fails_over_a_limit() -> None:
    quick_run("a")
    quick_run("b", "--rate", 9)
    limits = ("--limit", "mean_ttft_ms:1", "--limit", "completed:0", "--limit", "attainment:99")
    failed = servetwin("diff", "a", "b", *limits)
    assert failed.code == 1
    assert failed.err.startswith("mean_ttft_ms changed by +")
    assert failed.err.endswith(" %, limit 1 %\n")
    assert failed.err.count("\n") == 1
    assert len(strict(servetwin("diff", "a", "b", "--json", *limits).out)["over_limit"]) == 1  # type: ignore[arg-type]
    assert servetwin("diff", "a", "b", "--limit", "completed:0").code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a", "no"], "no: not a run folder (it has no summary.json)"),
        (["a", "a", "--limit", "mean_ttft_ms"], "--limit 'mean_ttft_ms': write METRIC:PERCENT"),
        (["a", "a", "--limit", "mean_ttft_ms:x"], "--limit 'mean_ttft_ms:x': write METRIC:PERCENT"),
        (
            ["a", "a", "--limit", "mean_ttft_ms:nan"],
            "--limit 'mean_ttft_ms:nan': the percentage must be >= 0",
        ),
        (
            ["a", "a", "--limit", "mean_ttft:1"],
            "--limit mean_ttft: no such metric; did you mean mean_ttft_ms?",
        ),
    ],
)
def test_a_diff_that_cannot_be_is_told(args: list[str], message: str) -> None:
    quick_run("a")
    assert servetwin("diff", *args).complaint.startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", "{", "bad/summary.json: "),
        ("summary.json", "[" * 100_000, "bad/summary.json: "),
        ("summary.json", "{}", "bad/summary.json: not the summary of a run (it has no object 'servetwin')"),
        ("summary.json", "\udcff", "bad/summary.json: "),
        ("requests.csv", "", "bad/requests.csv: its columns are not id, arrival, "),
        ("requests.csv", "id,arrival\n1,2\n", "bad/requests.csv: its columns are not id, arrival, "),
        ("decisions.jsonl", "{", "bad/decisions.jsonl: "),
        ("decisions.jsonl", "{}\n", "bad/decisions.jsonl, line 1: not a decision"),
        ("steps.csv", "start\n1\n", "bad/steps.csv: its columns are not start, end, "),
        ("scenario.yaml", "kv: 3", "bad/scenario.yaml: kv: must be a mapping"),
    ],
)
def test_a_damaged_run_folder_is_told(name: str, content: str, message: str) -> None:
    quick_run("bad")
    Path("bad", name).write_text(content, encoding="utf-8", errors="surrogateescape")
    assert servetwin("diff", "bad", "bad").complaint.startswith(message)


@pytest.mark.parametrize("row", ["7,1", "7,x" + ",1" * 11, "7" + ",0" * 12])
def test_a_damaged_row_is_told(row: str) -> None:
    quick_run("bad")
    with Path("bad/requests.csv").open("a") as file:
        file.write(row + "\n")
    assert servetwin("diff", "bad", "bad").complaint.startswith("bad/requests.csv: ")


def test_the_command_line_needs_no_installed_script() -> None:
    shown = spawn("--version", code="import runpy; runpy.run_module('simulator', run_name='__main__')")
    assert (shown.code, shown.out[:10]) == (0, "servetwin ")
