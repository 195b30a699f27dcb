"""Results of real servers become run folders: every number by its meaning, none that is not in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from result_samples import aiperf, aiperf_rows, guidellm, sglang, vllm, without_rows, write

from simulator.config.run import run_scenario
from simulator.errors import InputError
from simulator.experiments.diff import diff
from simulator.experiments.run_folder import load_run, save_run
from simulator.experiments.server.imported import Imported, read_imported
from simulator.experiments.server.recognise import SHAPES, open_result

BY_HAND = {  # of the three requests in result_samples
    "completed": 2,
    "duration": 2.5,
    "total_input_tokens": 150,
    "total_output_tokens": 4,
    "request_throughput": 0.8,
    "output_throughput": 1.6,
    "total_token_throughput": 61.6,
    "mean_ttft_ms": 300.0,
    "mean_tpot_ms": 200.0,
    "mean_itl_ms": 200.0,
    "mean_e2el_ms": 500.0,
}


def only(path: Path, source: str = "auto") -> Imported:
    (found,) = read_imported(path, source)
    return found


def run_folder(tmp_path: Path, *objects: object, name: str = "result.json") -> Path:
    done = servetwin("import", write(tmp_path / "in" / name, *objects), "-o", tmp_path / "run", "--quiet")
    assert done.code == 0, done.err
    return tmp_path / "run"


# Every format.


@pytest.mark.parametrize(
    ("source", "objects"),
    [
        ("vllm", [vllm()]),
        ("sglang", [sglang()]),
        ("guidellm", [guidellm()]),
        ("aiperf", aiperf_rows()),
    ],
    ids=["vllm", "sglang", "guidellm", "aiperf"],
)
def test_the_same_requests_give_the_same_numbers(source: str, objects: list[object], tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", *objects)
    assert open_result(path)[0] == source
    summary = only(path).summary
    expected = dict(BY_HAND)
    if source == "aiperf":  # its lines alone do not say how long the benchmark took: the makespan
        expected |= {"duration": 1.4, "request_throughput": 2 / 1.4}
        expected |= {"output_throughput": 4 / 1.4, "total_token_throughput": 154 / 1.4}
    found = {key: summary[key] for key in expected}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("objects", "null"),
    [
        ([without_rows(vllm())], ["mean_tpot_ms", "mean_e2el_ms", "p95_ttft_ms"]),
        ([without_rows(sglang())], ["failed", "p99_tpot_ms", "model_id", "max_output_tokens_per_s"]),
        ([guidellm(listed=1)], ["mean_tpot_ms", "median_itl_ms", "p99_itl_ms", "p99_tpot_ms"]),
        ([aiperf()], ["mean_itl_ms", "p95_ttft_ms", "tokenizer_id"]),
    ],
    ids=["vllm", "sglang", "guidellm", "aiperf"],
)
def test_what_is_not_in_the_file_is_null(objects: list[object], null: list[str], tmp_path: Path) -> None:
    found = only(write(tmp_path / "r.json", *objects))
    assert {key: found.summary[key] for key in null} == dict.fromkeys(null)
    assert found.own["attainment"] is None
    assert found.own["imported"]["derived"] == []  # type: ignore[index]


def test_aiperfs_inter_token_latency_is_vllms_tpot(tmp_path: Path) -> None:
    summary = only(write(tmp_path / "r.json", aiperf())).summary
    assert summary["mean_tpot_ms"] == 200.0
    assert summary["mean_itl_ms"] is None
    assert summary["request_goodput"] == 0.4
    assert summary["model_id"] == "Qwen/Qwen3-8B"


def test_guidellms_time_per_output_token_is_nobodys_tpot_and_its_latency_is_in_seconds(
    tmp_path: Path,
) -> None:
    found = only(write(tmp_path / "r.json", guidellm()))
    assert found.summary["mean_tpot_ms"] == pytest.approx(200.0)  # 250 in the file
    assert found.summary["mean_e2el_ms"] == pytest.approx(500.0)  # 0.5 in the file
    assert found.summary["failed"] == 1
    assert any("time_per_output_token_ms" in note for note in found.own["notes"])  # type: ignore[attr-defined]
    assert any("1 requests were cut off" in note for note in found.own["notes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("unit", "factor"), [("ms", 1.0), ("s", 1e-3), ("sec", 1e-3), ("us", 1e3), ("ns", 1e6)]
)
def test_aiperfs_units_are_read_not_assumed(unit: str, factor: float, tmp_path: Path) -> None:
    result = aiperf(time_to_first_token={"unit": unit, "avg": 300.0 * factor, "p99": 398.0 * factor})
    summary = only(write(tmp_path / "r.json", result)).summary
    assert summary["mean_ttft_ms"] == pytest.approx(300.0)
    assert summary["p99_ttft_ms"] == pytest.approx(398.0)


def test_aiperfs_two_files_are_read_together(tmp_path: Path) -> None:
    write(tmp_path / "profile_export.jsonl", *aiperf_rows())
    found = only(write(tmp_path / "profile_export_aiperf.json", aiperf()))
    assert found.summary["mean_itl_ms"] == pytest.approx(200.0)  # from the requests
    assert found.summary["duration"] == 2.5  # from the aggregates
    assert found.requests is not None
    assert len(found.requests) == 3
    assert any("warm-up" in note for note in found.own["notes"])  # type: ignore[attr-defined]


def test_a_stated_number_is_taken_and_a_missing_one_computed_and_named(tmp_path: Path) -> None:
    found = only(write(tmp_path / "r.json", vllm(mean_ttft_ms=301.0)))
    assert found.summary["mean_ttft_ms"] == 301.0
    mark = found.own["imported"]
    assert isinstance(mark, dict)
    assert "mean_tpot_ms" in mark["derived"]
    assert "mean_ttft_ms" not in mark["derived"]


def test_zeros_of_a_benchmark_without_completions_are_no_latencies(tmp_path: Path) -> None:
    summary = only(write(tmp_path / "r.json", without_rows(vllm(completed=0, mean_ttft_ms=0.0)))).summary
    assert summary["mean_ttft_ms"] is None


# The folder.


def test_a_run_folder_has_requests_but_no_decisions(tmp_path: Path) -> None:
    run = load_run(run_folder(tmp_path, vllm()))
    assert run.requests.id == ["0", "1", "2"]
    assert run.requests.arrival.tolist() == [0.0, 1.0, 2.0]
    assert run.requests.first_token[:2] == pytest.approx([0.2, 1.4])
    assert run.requests.finish[:2] == pytest.approx([0.6, 1.4])
    assert np.isnan(run.requests.finish[2])
    assert run.requests.status.tolist() == [0, 0, 2]
    assert run.requests.reason[2] == "ConnectionError: <b>gone</b>"
    assert np.isnan(run.requests.num_cached).all()  # nobody noted it
    assert (run.steps, run.decisions, run.known_scenario) == (None, None, None)
    assert run.is_measured


def test_several_results_give_a_folder_each(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, without_rows(sglang()), without_rows(sglang(tag="second")), name="r.jsonl")
    assert [load_run(folder / n).summary["label"] for n in ("1", "2")] == ["first", "second"]


def test_nothing_of_an_earlier_run_stays_in_the_folder(tmp_path: Path) -> None:
    save_run(run_scenario(_tiny()), tmp_path / "run", logs=("steps", "decisions"))
    folder = run_folder(tmp_path, without_rows(vllm()))
    assert sorted(path.name for path in folder.iterdir()) == ["summary.json"]
    assert len(load_run(folder).requests) == 0


def _tiny() -> Any:
    from simulator.config.loading import load_scenario

    return load_scenario("tiny-cpu")


def test_our_own_summary_comes_back_with_every_number_and_its_scenario(tmp_path: Path) -> None:
    run = run_scenario(_tiny())
    save_run(run, tmp_path / "a", report=False)
    assert servetwin("import", tmp_path / "a" / "summary.json", "-o", tmp_path / "b").code == 0
    before, after = load_run(tmp_path / "a"), load_run(tmp_path / "b")
    mark = after.summary["servetwin"].pop("imported")  # type: ignore[attr-defined]
    assert mark["tool"] == "servetwin"
    assert json.dumps(after.summary) == json.dumps(before.summary)
    assert after.scenario == before.scenario
    assert (tmp_path / "b" / "requests.csv").read_bytes() == (tmp_path / "a" / "requests.csv").read_bytes()
    assert servetwin("import", tmp_path / "b" / "summary.json", "-o", tmp_path / "c").code == 0
    assert (tmp_path / "c" / "summary.json").read_bytes() == (tmp_path / "b" / "summary.json").read_bytes()


def test_our_own_summary_alone_is_enough(tmp_path: Path) -> None:
    save_run(run_scenario(_tiny()), tmp_path / "a", report=False)
    alone = tmp_path / "mail" / "summary.json"
    alone.parent.mkdir()
    alone.write_bytes((tmp_path / "a" / "summary.json").read_bytes())
    assert servetwin("import", alone, "-o", tmp_path / "b").code == 0
    assert load_run(tmp_path / "b").scenario == load_run(tmp_path / "a").scenario


# Beside a simulated run.


def test_diff_lays_it_beside_a_simulation_and_says_what_cannot_be_compared(tmp_path: Path) -> None:
    save_run(run_scenario(_tiny(), decisions=True), tmp_path / "model", logs=("decisions",), report=False)
    folder = run_folder(tmp_path, vllm())
    found = diff(load_run(folder), load_run(tmp_path / "model"))
    assert found.names == ("measured", "model")
    values = {change.name: change for change in found.metrics}
    assert values["mean_ttft_ms"].a == 300.0
    assert values["mean_ttft_ms"].percent is not None
    notes = "\n".join(found.notes)
    assert "its decisions, steps and settings are not compared" in notes
    assert "not the same load: completed machine 2, model 40" in notes
    assert found.resimulated is None
    text = servetwin("diff", tmp_path / "model", folder, "-o", tmp_path / "d")
    assert text.code == 0
    assert "decisions: not compared" in text.out


def test_explain_and_run_refuse_it_in_one_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, vllm())
    assert "has no scenario or decisions" in servetwin("explain", folder, "0").complaint
    assert "an imported result, which has no scenario" in servetwin("run", folder).complaint


def test_a_notebook_holds_it(tmp_path: Path) -> None:
    from simulator.api import load_run as load

    result = load(run_folder(tmp_path, vllm()))
    assert result.requests["num_prompt"].tolist() == [100, 50, 70]
    assert "measured by vllm bench serve" in str(result)
    assert "imported: vllm bench serve" in result._repr_html_()
    with pytest.raises(InputError, match="has no scenario"):
        result.plot("latency")


# Hostile files.

HUGE = 10**400


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "empty"),
        ("[]", "expected an object, got list"),
        ("3", "expected an object, got int"),
        ("{", "not JSON"),
        ('{"a": 1}\nnonsense', "no known tool"),
        ("[" * 100_000, "not JSON"),
        ('{"total_token_throughput": ' + "9" * 5000 + "}", "not JSON"),
        ('{"hello": 1, "<script>": 2}', "no known tool .* its first keys: hello"),
        ('{"benchmarks": [3]}', "no known tool"),
    ],
)
def test_a_file_that_is_no_result_is_refused_in_one_line(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(InputError, match=why) as error:
        list(read_imported(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (vllm(completed="two"), "completed must be a number, got 'two'"),
        (vllm(completed=2.5), "completed must be a whole number, got 2.5"),
        (vllm(duration=-1.0), "duration must be between 0 and 1e.15, got -1.0"),
        (vllm(mean_ttft_ms=HUGE), "mean_ttft_ms must be between 0"),
        (vllm(mean_ttft_ms=float("inf")), "mean_ttft_ms must be between 0"),
        (vllm(mean_ttft_ms=[[[[]]]]), "mean_ttft_ms must be a number"),
        (vllm(ttfts=[0.2, float("nan"), 0.0]), r"ttfts\[1\] must be between 0"),
        (vllm(ttfts=[0.2, "0.4", 0.0]), r"ttfts\[1\] must be a number, got '0.4'"),
        (vllm(ttfts=[0.2, HUGE, 0.0]), r"ttfts\[1\] must be between 0"),
        (vllm(ttfts=[0.2]), "ttfts has 1 entries for 3 requests"),
        (vllm(ttfts={"a": 1}), "ttfts must be a list, got dict"),
        (vllm(itls=[[0.1, "x"], [], []]), r"itls\[0\]\[1\] must be a number"),
        (vllm(output_lens=[3.5, 1, 0]), r"output_lens\[0\] must be a whole number"),
        (sglang(itls=None), "was it cut"),
        (guidellm(requests={"successful": 3}), "successful must be a list"),
        (guidellm(requests={"successful": [[]]}), r"successful\[0\]: expected an object"),
        (guidellm(duration="x"), "duration must be a number"),
        (aiperf(time_to_first_token={"unit": "bananas", "avg": 1}), "unit must be one of ms"),
        (aiperf(request_latency={"unit": None, "avg": 1}), "unit must be one of ms"),
    ],
)
def test_a_hostile_value_is_named_in_one_line(result: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why) as error:
        list(read_imported(write(tmp_path / "r.json", result)))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300 + len(str(tmp_path))


def test_a_hostile_row_of_aiperf_is_named_by_its_line(tmp_path: Path) -> None:
    rows = aiperf_rows()
    rows[2]["metrics"]["request_latency"]["value"] = "soon"
    with pytest.raises(InputError, match=r"r.jsonl:3: metrics: request_latency: value must be a number"):
        list(read_imported(write(tmp_path / "r.jsonl", *rows)))


def test_a_nan_among_aggregates_is_no_value(tmp_path: Path) -> None:
    result = without_rows(vllm(mean_ttft_ms=float("nan")))
    assert only(write(tmp_path / "r.json", result)).summary["mean_ttft_ms"] is None


def test_names_from_a_file_are_text_and_nothing_else(tmp_path: Path) -> None:
    name = "<script>x()</script>\x1b[31m\u202e"
    path = write(tmp_path / "r.json", vllm(model_id=name, label=name))
    done = servetwin("import", path, "-o", tmp_path / "run")
    assert done.code == 0
    assert "\x1b" not in done.out
    save_run(run_scenario(_tiny()), tmp_path / "model", report=False)
    assert servetwin("diff", tmp_path / "run", tmp_path / "model", "-o", tmp_path / "d").code == 0
    assert "<script>x()" not in (tmp_path / "d" / "diff.html").read_text()


def test_an_unknown_source_is_refused_with_the_near_name(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", vllm())
    assert "did you mean vllm" in servetwin("import", path, "--source", "vlm").complaint
    assert "not a result of guidellm" in servetwin("import", path, "--source", "guidellm").complaint
    assert next(iter(SHAPES)) == "servetwin"  # a summary of ours has vLLM's keys too


def test_a_hundred_thousand_requests_are_read(tmp_path: Path) -> None:
    n = 100_000
    times = np.arange(n, dtype=float)
    rows = {"input_lens": [9] * n, "output_lens": [2] * n, "ttfts": [0.5] * n, "errors": [""] * n}
    result = vllm(**rows, itls=[[0.25]] * n, start_times=times.tolist(), completed=n)
    summary = only(write(tmp_path / "r.json", result)).summary
    assert summary["mean_e2el_ms"] == pytest.approx(750.0)


def test_a_file_without_any_number_is_refused_whatever_the_source(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text("{}")
    assert (
        "holds no number" in servetwin("import", path, "--source", "vllm", "-o", tmp_path / "run").complaint
    )
