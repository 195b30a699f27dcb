"""Candidates side by side: the same requests, the right winner, and a winner that runs as a scenario."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command import servetwin

import simulator
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.errors import ConfigError, InputError
from simulator.experiments.compare import COLUMNS, Comparison, candidates_of, compare, lower_is_better
from simulator.experiments.compare_report import comparison_html, save_comparison
from simulator.latency.profile_file import shipped_profiles
from simulator.schedulers import BATCHING
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.context import Context

QUIET = ("-o", "out", "--quiet", "--no-report")
FOUR = f"scheduler.batching={','.join(BATCHING)}"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tiny(**changes: object) -> simulator.Scenario:
    return load_scenario("tiny-cpu").with_(**{"workload.arrivals.rate": 5.0, **changes})


def found(*vary: str, **options: Any) -> Comparison:
    return compare(tiny(), candidates_of(vary or [FOUR]), **options)


# Candidates.


def test_several_keys_give_every_combination() -> None:
    named = candidates_of(["scheduler.max_num_seqs=4,8", "kv.enable_prefix_caching=true,false"])
    assert named == {
        "max_num_seqs=4 enable_prefix_caching=true": {
            "scheduler.max_num_seqs": 4,
            "kv.enable_prefix_caching": True,
        },
        "max_num_seqs=4 enable_prefix_caching=false": {
            "scheduler.max_num_seqs": 4,
            "kv.enable_prefix_caching": False,
        },
        "max_num_seqs=8 enable_prefix_caching=true": {
            "scheduler.max_num_seqs": 8,
            "kv.enable_prefix_caching": True,
        },
        "max_num_seqs=8 enable_prefix_caching=false": {
            "scheduler.max_num_seqs": 8,
            "kv.enable_prefix_caching": False,
        },
    }


def test_all_candidates_serve_the_same_requests() -> None:
    """Also those with other random components, and those for which the machine is another one."""
    keys = ["scheduler.batching=static,chunked", "kv.num_gpu_blocks_override=49,65"]
    made = found(*keys)
    assert len(made.runs) == 4
    assert made.same_requests
    one, *others = made.runs.values()
    for other in others:
        assert other.requests.arrival.tolist() == one.requests.arrival.tolist()
        assert other.requests.num_prompt.tolist() == one.requests.num_prompt.tolist()
        assert other.workload.num_output.tolist() == one.workload.num_output.tolist()
    assert len({run.requests.finish.tobytes() for run in made.runs.values()}) > 1


def test_a_candidate_gets_what_it_gets_when_run_alone() -> None:
    made = found()
    for name, changes in candidates_of([FOUR]).items():
        assert made.runs[name].summary == run_scenario(tiny(**changes)).summary


def test_de_01_results_do_not_depend_on_the_order_of_candidates() -> None:
    candidates = candidates_of([FOUR, "scheduler.max_num_seqs=4,12"])
    forward = compare(tiny(), candidates, baseline="batching=chunked max_num_seqs=12")
    turned = dict(reversed(candidates.items()))
    back = compare(tiny(), turned, baseline="batching=chunked max_num_seqs=12")
    by_name = {row["candidate"]: row for row in back.rows()}
    assert [by_name[row["candidate"]] for row in forward.rows()] == forward.rows()
    assert sorted(forward.best) == sorted(back.best)
    assert forward.cells()[1] == back.cells()[1][::-1]


def test_candidates_with_other_workloads_are_marked() -> None:
    made = found("workload.arrivals.rate=2.4,5")
    assert not made.same_requests
    assert made.text().endswith("a difference may be the workload's.")
    assert "Every candidate served the same requests" not in comparison_html(made, "t")
    assert "not sent the same requests" in comparison_html(made, "t")


# Who wins.


@pytest.mark.parametrize(
    ("metrics", "lower"),
    [
        (("p99_ttft_ms", "mean_tpot_ms", "p50_itl_ms", "median_e2el_ms", "std_ttft_ms", "duration"), True),
        (("failed", "rejected", "aborted", "unfinished", "num_preemptions", "evicted_blocks"), True),
        (("kv_usage_peak", "kv_waste_paged", "oversized_prompts", "stopped_by_length"), True),
        (("attainment", "request_goodput", "request_throughput", "output_throughput", "completed"), False),
        (("total_token_throughput", "max_output_tokens_per_s", "total_output_tokens"), False),
        (("prefix_hit_rate", "prefix_cache_hits"), False),
    ],
)
def test_a_metric_has_a_direction(metrics: tuple[str, ...], lower: bool) -> None:
    assert {metric: lower_is_better(metric) for metric in metrics} == dict.fromkeys(metrics, lower)


@pytest.mark.parametrize(
    ("metric", "best"), [("p99_itl_ms", min), ("output_throughput", max), ("duration", min)]
)
def test_the_best_value_wins(metric: str, best: Any) -> None:
    made = found(metric=metric)
    values = {row["candidate"]: row[metric] for row in made.rows()}
    assert values[made.winner] == best(values.values())
    assert made.to_dict()["winner"] == made.winner


def test_those_as_good_as_the_winner_are_named() -> None:
    made = found(metric="completed")
    assert made.best == list(made.runs)
    assert made.text().splitlines()[-1] == (
        "change: completed against batching=static. Best completed: batching=static, 40; "
        "just as good: batching=continuous, batching=prefill_first, batching=chunked"
    )


def test_without_an_slo_throughput_decides() -> None:
    assert found().metric == "attainment"
    nothing = {f"slo.{name}_ms": None for name in ("ttft", "tpot", "e2el")}
    assert compare(tiny(**nothing), candidates_of([FOUR])).metric == "output_throughput"


def test_changes_refer_to_the_baseline() -> None:
    made = found(metric="p99_itl_ms", baseline="batching=chunked")
    values = {str(row["candidate"]): float(row["p99_itl_ms"] or 0) for row in made.rows()}
    base = values["batching=chunked"]
    shown = {name: change for name, _, change, *_ in made.cells()[1]}
    assert shown == {name: f"{100 * (value / base - 1):+.1f}%" for name, value in values.items()}
    assert shown["batching=chunked"] == "+0.0%"
    points = found(baseline="batching=chunked").cells()[1]
    assert all(change.endswith(" pt") for _, _, change, *_ in points)


def test_the_metric_is_the_first_column_of_the_table() -> None:
    made = found(metric="mean_e2el_ms")
    assert made.cells()[0] == ["candidate", "mean_e2el_ms", "change", *COLUMNS.values()]
    assert found().cells()[0] == ["candidate", "within SLO", "change", *list(COLUMNS.values())[1:]]
    assert list(found(metric="kv_usage_peak").rows()[0])[:3] == ["candidate", "kv_usage_peak", "attainment"]
    widths = {len(line) for line in made.text().splitlines()[:-1]}
    assert len(widths) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "p99_ttf_ms"}, r"--metric 'p99_ttf_ms': no such metric; did you mean p99_ttft_ms\?"),
        ({"metric": "rejected_by_reason"}, r"--metric 'rejected_by_reason': has no number in any candidate"),
        ({"metric": "request_rate"}, None),
        ({"metric": "burstiness"}, None),
        ({"metric": "max_concurrency"}, r"--metric 'max_concurrency': has no number"),
        ({"baseline": "batching=chunkd"}, r"--baseline 'batching=chunkd': no such candidate; did you mean"),
    ],
)
def test_what_cannot_be_compared_is_told(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        found(**options)
        return
    with pytest.raises(ConfigError, match=message):
        found(**options)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ([], "compare: no candidates; vary at least one key"),
        (["scheduler.batching"], "--vary 'scheduler.batching': write key=value,value"),
        (["=a"], "--vary '=a': write key=value,value"),
        (["scheduler.victim=,last_admitted"], "write key=value,value"),
        (["scheduler.max_num_seqs=4,4"], "names a key or a value twice"),
        (["scheduler.max_num_seqs=4", "scheduler.max_num_seqs=8"], "names a key or a value twice"),
        (["scheduler.batchin=static"], "unknown key 'batchin'; did you mean batching?"),
        (["scheduler.batching=statik"], "scheduler.batching: unknown 'statik'; did you mean static?"),
        (["scheduler.max_num_seqs=many"], "scheduler.max_num_seqs: must be"),
    ],
)
def test_a_vary_that_cannot_be_is_told_in_one_line(vary: list[str], message: str) -> None:
    flags = [part for item in vary for part in ("--vary", item)]
    assert message in servetwin("compare", "tiny-cpu", *flags, "-o", "out").complaint
    assert not Path("out").exists()


# The command and what it leaves.


def test_the_command_prints_a_table_and_writes_a_folder() -> None:
    told = servetwin("compare", "tiny-cpu", "--vary", FOUR, "-o", "out")
    assert told.code == 0
    lines = told.out.splitlines()
    assert lines[0].split()[0] == "candidate"
    assert [line.split()[0] for line in lines[1:5]] == [f"batching={name}" for name in BATCHING]
    assert lines[5].startswith("change: attainment against batching=static. Best attainment: batching=")
    assert [line.removeprefix("Wrote ") for line in lines[6:]] == [
        "out/compare.json",
        "out/report.html",
        "out/winner/scenario.yaml",
    ]
    assert sorted(p.name for p in Path("out").iterdir()) == ["compare.json", "report.html", "winner"]


def test_json_is_strict_and_alone_on_stdout() -> None:
    told = servetwin("compare", "tiny-cpu", "--vary", FOUR, "-o", "out", "--json", "--no-report")
    told_again = servetwin("compare", "tiny-cpu", "--vary", FOUR, *QUIET, "--json")
    assert told.out == told_again.out == Path("out/compare.json").read_text()
    assert "Best attainment" in told.err
    assert told_again.err == ""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads(told.out, parse_constant=refuse)
    assert list(data) == ["metric", "baseline", "winner", "candidates"]
    assert [row["candidate"] for row in data["candidates"]] == [f"batching={name}" for name in BATCHING]
    assert set(data["candidates"][0]) == {"candidate", *COLUMNS}


def test_a_value_that_does_not_exist_is_null() -> None:
    """A horizon before the first arrival: nothing completes."""
    scenario = tiny(**{"run.horizon_s": 0.001})
    made = compare(scenario, candidates_of([FOUR]), metric="output_throughput")
    save_comparison(made, Path("out"), "t")
    data = json.loads(Path("out/compare.json").read_text())
    assert all(row["p99_ttft_ms"] is None for row in data["candidates"])
    assert "n/a" in made.text()


def test_flags_change_every_candidate() -> None:
    servetwin("compare", "tiny-cpu", "--vary", FOUR, "--num-requests", 5, "--seed", 9, *QUIET)
    winner = load_scenario("out/winner")
    assert (winner.workload.num_requests, winner.seed) == (5, 9)


@pytest.mark.parametrize("command", ["run", "check", "compare"])
def test_the_winner_is_a_scenario_for_every_command(command: str) -> None:
    vary = ("--vary", "scheduler.max_num_seqs=4,12", "--metric", "output_throughput")
    assert servetwin("compare", "tiny-cpu", *vary, *QUIET).code == 0
    best = json.loads(Path("out/compare.json").read_text())
    again = {
        "run": ("--quiet", "--no-report", "-o", "again"),
        "check": (),
        "compare": ("--vary", "scheduler.batching=chunked", "-o", "again", "--quiet", "--no-report"),
    }
    assert servetwin(command, "out/winner", *again[command]).code == 0
    if command == "run":
        summary = json.loads(Path("again/summary.json").read_text())
        values = {row["candidate"]: row["output_throughput"] for row in best["candidates"]}
        assert summary["output_throughput"] == values[best["winner"]]


def test_a_winner_is_not_overwritten_by_a_run_nor_a_run_by_a_comparison() -> None:
    assert servetwin("compare", "tiny-cpu", "--vary", FOUR, *QUIET).code == 0
    assert "is no run's" in servetwin("run", "tiny-cpu", "-o", "out/winner").complaint
    assert servetwin("run", "tiny-cpu", "-o", "run", "--quiet", "--no-report").code == 0
    told = servetwin("compare", "tiny-cpu", "--vary", FOUR, "-o", "run")
    assert told.complaint == "run: holds a run; name another folder with -o"


def test_a_folder_that_cannot_be_written_is_told() -> None:
    Path("file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        save_comparison(found(), Path("file/out"), "t")


# Policies of one's own.

MINE = """\
from simulator import Scheduler


class Patient(Scheduler):
    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_running(batch)
        self.admit(batch)
        return self.commit(batch)


def shortest(seq, ctx):
    return seq.num_prompt
"""


def test_a_file_named_by_vary_is_run_and_kept_with_the_winner() -> None:
    Path("mine.py").write_text(MINE)
    vary = ("--vary", "scheduler.order=fcfs,mine.py:shortest", "--metric", "mean_ttft_ms", "--rate", 9)
    told = servetwin("compare", "tiny-cpu", *vary, "-o", "out", "--no-report")
    assert told.code == 0
    assert "Best mean_ttft_ms: order=mine.py:shortest" in told.out
    assert sorted(p.name for p in Path("out/winner").iterdir()) == ["mine.py", "scenario.yaml"]
    assert Path("out/winner/mine.py").read_text() == MINE
    Path("mine.py").write_text("raise SystemExit('not the copy')")
    assert "pass --trust" in servetwin("run", "out/winner").complaint
    assert servetwin("run", "out/winner", "--trust", "--quiet", "--no-report", "-o", "again").code == 0


def test_a_file_that_the_scenario_names_still_needs_trust() -> None:
    Path("mine.py").write_text(MINE)
    Path("s.yaml").write_text("scheduler: {order: mine.py:shortest}\nworkload: {num_requests: 3}\n")
    vary = ("--vary", "scheduler.max_num_seqs=4,8", *QUIET)
    assert "pass --trust" in servetwin("compare", "s.yaml", *vary).complaint
    assert servetwin("compare", "s.yaml", *vary, "--trust").code == 0


def test_a_candidate_of_a_notebook_may_be_a_class_a_function_or_keys() -> None:
    class Patient(Chunked):
        pass

    def shortest(seq: simulator.Sequence, ctx: Context) -> int:
        return seq.num_prompt

    Path("mine.py").write_text(MINE)
    made = simulator.compare(
        tiny(),
        {
            "as it is": {},
            "patient": Patient,
            "shortest": shortest,
            "file": {"scheduler.order": "mine.py:shortest"},
            "few": {"scheduler.max_num_seqs": 2},
        },
        metric="mean_ttft_ms",
        slo={"ttft": 800},
    )
    assert list(made.results) == ["as it is", "patient", "shortest", "file", "few"]
    assert made.results["patient"].scenario.scheduler.batching == "Patient"
    summaries = {name: result.summary["mean_ttft_ms"] for name, result in made.results.items()}
    assert summaries["patient"] == summaries["as it is"]
    assert summaries["shortest"] == summaries["file"] != summaries["as it is"]
    assert made.winner == "shortest"
    assert made.results["few"].summary["servetwin"]["slo"] == {"ttft_ms": 800.0}
    assert made.table.index.tolist() == list(made.results)
    assert "shortest" in str(made)
    assert "<b>shortest</b>" in made._repr_html_()
    for kind in ("latency", "queue"):
        assert len(made.plot(kind).data) >= 5
    with pytest.raises(ConfigError, match="plot: unknown kind 'latenc'; did you mean latency"):
        made.plot("latenc")
    made.save("out")
    assert Path("out/winner/scenario.yaml").exists()


# The profile.


def test_the_winner_pins_the_shipped_profile_that_it_ran_with() -> None:
    vary = ("--vary", "scheduler.max_num_seqs=64,128", "--num-requests", 20, *QUIET)
    assert servetwin("compare", "chat-a100", *vary).code == 0
    path = shipped_profiles()["a100-80gb-sxm"]
    assert Path("out/winner", path.name).read_bytes() == path.read_bytes()
    winner = load_scenario("out/winner")
    assert winner.latency.profile == str(Path("out/winner", path.name).resolve())
    assert servetwin("run", "out/winner", "--quiet", "--no-report", "-o", "again").code == 0
    summary = json.loads(Path("again/summary.json").read_text())
    best = json.loads(Path("out/compare.json").read_text())
    values = {row["candidate"]: row["p99_ttft_ms"] for row in best["candidates"]}
    assert summary["p99_ttft_ms"] == values[best["winner"]]
    original = run_scenario(load_scenario("chat-a100").with_(**{"workload.num_requests": 20}))
    assert summary["servetwin"]["provenance"] == original.own["provenance"]


@pytest.mark.parametrize("how", ["path", "name"])
def test_a_profile_that_is_named_goes_with_the_winner(how: str) -> None:
    shipped = shipped_profiles()["a100-80gb-sxm"]
    Path("mine.json").write_bytes(shipped.read_bytes())
    profile = "mine.json" if how == "path" else "a100-80gb-sxm"
    vary = ("--vary", "scheduler.max_num_seqs=64", "--num-requests", 5, *QUIET)
    assert servetwin("compare", "chat-a100", "--profile", profile, *vary).code == 0
    name = "mine.json" if how == "path" else shipped.name
    assert Path("out/winner", name).read_bytes() == shipped.read_bytes()
    assert f"  profile: {name}\n" in Path("out/winner/scenario.yaml").read_text()


@pytest.mark.parametrize("scenario", ["tiny-cpu", "roofline", "estimated"])
def test_a_winner_without_a_profile_has_none(scenario: str) -> None:
    flags = {
        "tiny-cpu": (),
        "roofline": ("--set", "latency.kind=roofline"),
        "estimated": ("--hardware", "l40s"),
    }
    base = "tiny-cpu" if scenario == "tiny-cpu" else "chat-a100"
    vary = ("--vary", "scheduler.max_num_seqs=8,12", "--num-requests", 5, *QUIET)
    assert servetwin("compare", base, *flags[scenario], *vary).code == 0
    assert [p.name for p in Path("out/winner").iterdir()] == ["scenario.yaml"]


# The page.


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_shows_table_and_figures_and_loads_nothing() -> None:
    page = comparison_html(found(), "tiny")
    assert page == comparison_html(found(), "tiny")
    tags = Tags()
    tags.feed(page)
    ids = [attrs["id"] for _, attrs in tags.seen if "id" in attrs]
    assert {"table", "latency", "queue", "figure-compare-latency", "figure-compare-queue"} <= set(ids)
    assert len(ids) == len(set(ids))
    assert not [attrs for tag, attrs in tags.seen if attrs.get("src") or tag in ("link", "iframe")]
    assert "Best attainment: batching=" in page


def test_se_02_hostile_names_are_shown_and_never_run() -> None:
    hostile = "</script><script>x()</script>"
    made = compare(
        tiny(name=hostile), {hostile: {}, "<img src=x onerror=x()>": {"scheduler.max_num_seqs": 2}}
    )
    page = comparison_html(made, hostile)
    assert hostile not in page
    assert "<img src=x" not in page
    assert "&lt;/script&gt;" in page
    save_comparison(made, Path("out"), hostile)
    assert load_scenario("out/winner").name == hostile


def test_candidates_on_unlike_groups_of_gpus_do_not_share_a_machine() -> None:
    scenario = load_scenario("chat-a100").with_(**{"workload.num_requests": 20})
    found = compare(scenario, {str(n): {"parallel.tensor_parallel_size": n} for n in (1, 2)})
    one, two = (run.machine.kv for run in found.runs.values())
    assert (one.tensor_parallel_size, two.tensor_parallel_size) == (1, 2)
    assert two.num_gpu_blocks > 2 * one.num_gpu_blocks


@pytest.mark.parametrize("command", ["compare", "capacity"])
def test_a_folder_that_holds_a_run_is_refused_before_anything_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    vary = ("--vary", "scheduler.max_num_seqs=2,8")
    done = servetwin(command, "tiny-cpu", *vary, "--num-requests", 10**7, "-o", tmp_path)
    assert done.code == 2
    assert "holds a run; name another folder with -o" in done.err


@pytest.mark.parametrize("command", ["compare", "capacity"])
def test_a_folder_that_cannot_be_made_is_named_before_anything_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    vary = ("--vary", "scheduler.max_num_seqs=2,8")
    done = servetwin(command, "tiny-cpu", *vary, "--num-requests", 10**7, "-o", tmp_path / "file" / "out")
    assert (done.code, done.out) == (2, "")
    assert f"cannot write {tmp_path / 'file' / 'out'}: Not a directory" in done.err
