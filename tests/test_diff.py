"""Two runs compared: metrics beside their noise, errors split, the first decision in which they part."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from measured_runs import KERNELS, TINY, measured, saved, simulated

from simulator.api import diff as api_diff
from simulator.config.run import Run
from simulator.engine.decisions import Decision
from simulator.errors import InputError
from simulator.experiments.diff import diff
from simulator.experiments.diff_labels import changed_keys, kernel_label
from simulator.experiments.diff_plots import error_parts, step_scatter
from simulator.experiments.diff_result import Diff, MetricChange
from simulator.experiments.divergence import Divergence, first_divergence
from simulator.experiments.run_folder import save_run
from simulator.experiments.step_errors import KINDS, by_kind, step_times
from simulator.latency.linear import LinearModel

BUSY = TINY.with_(**{"workload.arrivals.rate": 5.0, "kv.num_gpu_blocks_override": 45})


@pytest.fixture(scope="module")
def machine() -> Run:
    return measured(BUSY)


@pytest.fixture(scope="module")
def model() -> Run:
    return simulated(BUSY)


@pytest.fixture(scope="module")
def compared(machine: Run, model: Run) -> Diff:
    return diff(saved(machine), saved(model), repeats=[saved(measured(BUSY, seed=3))])


def change(found: Diff, name: str) -> MetricChange:
    return next(each for each in found.metrics if each.name == name)


def decision(step: int = 0, **changes: Any) -> Decision:
    line: dict[str, Any] = {
        "step": step,
        "t": 0.1 * step,
        "decodes": 2,
        "chunks": [],
        "cached": {},
        "preempted": [],
        "free_blocks": 7,
        "running": 2,
        "waiting": 0,
        "finished": [],
    }
    return line | changes  # type: ignore[return-value]


# The split.


def test_the_parts_add_up_to_the_error(compared: Diff) -> None:
    split = [each for each in compared.metrics if each.resimulated is not None]
    assert len(split) > 30
    for each in split:
        assert each.a is not None
        assert each.b is not None
        assert each.timing is not None
        assert each.decisions is not None
        assert each.timing + each.decisions == pytest.approx(each.b - each.a, abs=1e-9)


def test_with_the_same_policies_all_error_is_timing(compared: Diff) -> None:
    assert compared.resimulated is not None
    assert compared.resimulated.divergence is None
    assert {each.decisions for each in compared.metrics} <= {0.0, None}
    mean = change(compared, "mean_e2el_ms")
    assert mean.percent is not None
    assert mean.percent < -10
    assert "\n  decisions: identical in all " in compared.text()


def test_with_the_same_times_most_error_is_decisions(model: Run) -> None:
    exact = replace(saved(model), summary=labelled(model))
    fewer = saved(simulated(BUSY.with_(**{"kv.num_gpu_blocks_override": 43})))
    found = diff(exact, fewer)
    mean = change(found, "mean_e2el_ms")
    assert mean.decisions is not None
    assert mean.timing is not None
    assert abs(mean.decisions) > 0
    # Played by kind, the recorded times are the model's own but for steps that it did not take.
    assert abs(mean.timing) < abs(mean.decisions)


def labelled(run: Run, **label: object) -> dict[str, object]:
    own = run.own | {"backend": "gpu_backend", "clock": "wall", "kernels": KERNELS} | label
    return run.summary | {"servetwin": own}


def test_one_block_less_is_a_decision_error_and_its_cause_is_named(machine: Run) -> None:
    fewer = saved(simulated(BUSY.with_(**{"kv.num_gpu_blocks_override": 44})))
    found = diff(saved(machine), fewer)
    assert found.resimulated is not None
    parting = found.resimulated.divergence
    assert parting is not None
    assert parting.causes == ("machine has 44 usable blocks, re-simulated 43",)
    assert any(each.decisions for each in found.metrics)
    assert found.resimulated.reach["num_unlike"]
    told = found.resimulated.reach["told"]
    assert isinstance(told, list)
    assert told[0] in found.text()


def test_simulations_are_split_only_when_asked(model: Run) -> None:
    plain = diff(saved(model), saved(simulated(BUSY.with_(seed=1))))
    assert (plain.names, plain.resimulated, plain.steps) == (("A", "B"), None, ())
    assert "noise" not in plain.text()
    asked = diff(saved(model), saved(model), split=True)
    assert asked.resimulated is not None
    assert [each.bias for each in asked.steps] == pytest.approx([0.0] * 3)


def test_what_cannot_be_split_is_told_or_raised(machine: Run, model: Run) -> None:
    bare = replace(saved(machine), steps=None)
    found = diff(bare, saved(model))
    assert found.resimulated is None
    assert any(note.startswith("the error is not split: tiny-cpu: has no steps.csv") for note in found.notes)
    with pytest.raises(InputError, match=r"has no steps\.csv"):
        diff(bare, saved(model), split=True)


def test_the_measured_run_comes_first(machine: Run, model: Run, compared: Diff) -> None:
    turned = diff(saved(model), saved(machine))
    assert turned.names == ("measured", "model")
    assert change(turned, "mean_e2el_ms").percent == change(compared, "mean_e2el_ms").percent
    assert turned.notes[0] == "the second run was measured: the first is compared with it"


def test_a_replay_under_the_predicted_clock_is_no_measurement(model: Run) -> None:
    predicted = replace(saved(model), summary=labelled(model, clock="predicted"))
    found = diff(predicted, saved(model))
    assert found.names == ("A", "B")
    assert found.divergence is None


# Noise.


def test_errors_stand_beside_the_noise_floor(compared: Diff, machine: Run) -> None:
    again = measured(BUSY, seed=3)
    p99, noise = change(compared, "p99_itl_ms"), change(compared, "p99_itl_ms").noise
    theirs = again.summary["p99_itl_ms"]
    assert isinstance(theirs, float)
    assert p99.a is not None
    assert noise == pytest.approx(abs(100 * (theirs / p99.a - 1)))
    within = {each.name for each in compared.metrics if each.is_within_noise}
    assert {"completed", "median_ttft_ms"} <= within
    assert "mean_tpot_ms" not in within
    lines = {line.split()[0]: line for line in compared.text().splitlines() if line}
    assert lines["median_ttft_ms"].endswith("within noise")
    assert not lines["mean_tpot_ms"].endswith("within noise")


def test_the_largest_of_several_noises_counts(machine: Run, model: Run) -> None:
    runs = [saved(measured(BUSY, seed=seed)) for seed in (3, 4)]
    both = diff(saved(machine), saved(model), repeats=runs, split=False)
    each = [diff(saved(machine), saved(model), repeats=[run], split=False) for run in runs]
    for i, metric in enumerate(both.metrics):
        assert metric.noise == max((one.metrics[i].noise or 0.0) for one in each)


def test_without_a_repeat_the_floor_is_unknown(machine: Run, model: Run) -> None:
    found = diff(saved(machine), saved(model), split=False)
    assert any(note.startswith("noise floor unknown: ") for note in found.notes)
    assert change(found, "mean_ttft_ms").is_within_noise is None


def test_a_disturbed_machine_makes_it_inconclusive(compared: Diff, machine: Run, model: Run) -> None:
    assert any(note.startswith("machine not quiet: the repeat differs by +7.") for note in compared.notes)
    quiet = diff(saved(machine), saved(model), repeats=[saved(machine)], split=False)
    assert not any("quiet" in note for note in quiet.notes)


# Step times.


def test_step_times_are_compared_by_kind(machine: Run) -> None:
    times = step_times(machine.steps, machine.machine.latency)
    errors = {each.kind: each for each in by_kind(times)}
    assert list(errors) == ["decode", "prefill", "mixed"]
    assert sum(each.count for each in errors.values()) == len(machine.steps)
    seconds = machine.steps.end - machine.steps.start
    decodes = machine.steps.prefill_tokens == 0
    assert errors["decode"].measured_ms == 1e3 * np.median(seconds[decodes])
    ratio = times.model[times.kind == 0] / times.measured[times.kind == 0]
    assert errors["decode"].mape == pytest.approx(100 * np.abs(ratio - 1).mean())
    assert -14 < errors["decode"].bias < -6  # the machine is 1.1 times as slow


def test_padded_and_speculative_steps_are_kinds_of_their_own() -> None:
    static = simulated(BUSY.with_(**{"scheduler.batching": "static", "latency": {"kind": "roofline"}}))
    times = step_times(static.steps, static.machine.latency)
    errors = {each.kind: each for each in by_kind(times)}
    assert list(errors) == ["decode", "prefill", "padded"]
    assert all(abs(each.bias) < 1e-9 for each in errors.values()), "padding rows are priced as they were"
    drafted = copy.copy(static.steps)
    drafted.num_tokens = drafted.num_tokens + 3
    assert {each.kind for each in by_kind(step_times(drafted, LinearModel(0.01)))} == {KINDS[4]}


# Labels.


def test_other_kernels_are_named() -> None:
    assert kernel_label(KERNELS, KERNELS, "") is None
    assert kernel_label(None, "vllm 0.14", "") is None, "a simulation ran none"
    assert kernel_label(KERNELS, "vllm 0.14", "") == (
        "the profile was measured on other kernels (vllm 0.14) than the replay ran (sdpa/cpu/float32): "
        "its timing error is not the model's"
    )
    assert kernel_label(KERNELS, None, "by hand") == (
        "the model does not say on which kernels it was measured (by hand), the replay ran sdpa/cpu/float32: "
        "its timing error may not be the model's"
    )


def test_other_kernels_are_named_in_print_and_json() -> None:
    scenario = BUSY.with_(**{"hardware.gpu": "a100-80gb-sxm", "model.name": "llama-3.1-8b"})
    scenario = scenario.with_(**{"latency": {"kind": "profile"}, "workload.num_requests": 5})
    found = diff(saved(measured(scenario)), saved(simulated(scenario)))
    label = (
        "the profile was measured on other kernels (sglang 0.5.10, trtllm 1.0.0, vidur 7d47513, vllm 0.14.0)"
    )
    assert f"Note: {label} than the replay ran (sdpa/cpu/float32)" in found.text()
    notes = found.to_dict()["notes"]
    assert isinstance(notes, tuple)
    assert any(note.startswith(label) for note in notes)


def test_what_differs_between_the_runs_is_named(machine: Run) -> None:
    other = simulated(BUSY.with_(**{"seed": 1, "scheduler.max_num_seqs": 5, "kv.block_size": 8}))
    notes = diff(
        saved(machine), replace(saved(other), summary=labelled(other, device="gpu")), split=False
    ).notes
    assert "device: A cpu, B gpu" in notes
    assert "seed: A 0, B 1" in notes
    assert (
        "scenarios differ in 3 keys: seed (0, 1), kv.block_size (16, 8), scheduler.max_num_seqs (12, 5)"
        in notes
    )
    many = BUSY.with_(**{f"run.{key}": value for key, value in {"horizon_s": 3, "warmup": "auto"}.items()})
    assert changed_keys(BUSY, many, ("run.",)) == ["run.warmup (none, auto)", "run.horizon_s (unset, 3.0)"]


# Where decisions part.


def test_an_arrival_between_two_step_ends_is_the_cause(compared: Diff, machine: Run, model: Run) -> None:
    parting = compared.divergence
    assert parting is not None
    assert parting.before is not None
    one, other = parting.before
    assert {**one, "t": 0} == {**other, "t": 0}
    (cause,) = parting.causes
    name = cause.split()[1]
    at = float(machine.requests.arrival[machine.requests.id.index(name)])
    begins = machine.steps.start[parting.step], model.steps.start[parting.step]
    seen = int(np.searchsorted(model.steps.start, at))
    assert begins[1] < at <= begins[0]
    assert cause == (
        f"request {name} arrived at {at:.4f} s, before step {parting.step} of machine ({begins[0]:.4f} s), "
        f"and at {at:.4f} s, after step {parting.step} of model ({begins[1]:.4f} s; seen in step {seen})"
    )
    assert f"only machine computed tokens 0 to 95 of request {name}" in parting.words


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            {"chunks": [("r17", 60, 96)], "cached": {"r17": 96}},
            {"chunks": [("r17", 76, 80)], "cached": {"r17": 80}},
            "A admitted request r17 with 96 cached tokens, B with 80",
        ),
        (
            {"chunks": [("r1", 60, 0)]},
            {"chunks": [("r1", 50, 0)]},
            "of request r1 A computed tokens 0 to 60, B 0 to 50",
        ),
        ({"preempted": ["r3"]}, {}, "only A preempted r3"),
        ({}, {"finished": ["r4", "r5"]}, "only B ended r4, r5"),
        ({"decodes": 3}, {}, "A decoded for 3 requests, B for 2"),
        ({"waiting": 1}, {}, "waiting: A 1, B 0"),
        ({"free_blocks": 6}, {}, "free blocks: A 6, B 7"),
        ({"moves": [("r1", 0, 4, "out")]}, {}, "transfers: A [('r1', 0, 4, 'out')], B []"),
    ],
)
def test_what_differs_is_told_in_words(a: dict[str, Any], b: dict[str, Any], words: str, model: Run) -> None:
    logs = [decision(), decision(1, **a)], [decision(), decision(1, **b)]
    runs = [replace(saved(model), decisions=log) for log in logs]
    parting = diff(*runs).divergence
    assert parting is not None
    assert parting.step == 1
    assert words in parting.words
    text = "\n".join(parting.lines(("A", "B")))
    assert "  step 0, decided alike: 2 decodes\n" in text
    assert f"differs: {words}" in text
    if "cached" in a:
        assert parting.causes == (
            "the prefix caches held different blocks, though all decisions before were alike",
        )


def test_a_client_that_left_is_the_cause(model: Run) -> None:
    runs = []
    for left in (0.05, 0.15):
        run = copy.deepcopy(saved(simulated(BUSY.with_(**{"workload.timeout_s": 0.9}))))
        gone = int(np.flatnonzero(run.requests.status == 2)[0])
        run.requests.arrival[:] = 0.0
        run.requests.finish[run.requests.status == 2] = 9.0
        run.requests.finish[gone] = left
        run.decisions = [decision(), decision(1, running=1 if left < 0.1 else 2), decision(2)]
        runs.append(run)
    parting = diff(*runs).divergence
    assert parting is not None
    name = runs[0].requests.id[int(np.flatnonzero(runs[0].requests.finish == 0.05)[0])]
    assert parting.causes == (
        f"request {name} was given up at 0.0500 s, before step 1 of A (0.1000 s), and at 0.1500 s, after "
        "step 1 of B (0.1000 s; seen in step 2)",
    )


def test_pools_of_two_sizes_part_where_they_decide_otherwise() -> None:
    a = [decision(), decision(1, free_blocks=5)]
    b = [decision(free_blocks=9), decision(1, free_blocks=7, decodes=1)]
    assert first_divergence(a, b, more_blocks=2) == Divergence(1, ("decodes",), a[1], b[1])
    found = first_divergence(a, b)
    assert found is not None
    assert (found.step, found.fields) == (0, ("free_blocks",))


def test_a_log_that_ends_early_parts_there() -> None:
    a = [decision(), decision(1)]
    assert first_divergence(a, a) is None
    assert first_divergence(a, a[:1]) == Divergence(1, ("steps",), a[1], None)
    assert "  step 1, B: there is none, the run is over" in Divergence(1, ("steps",), a[1], None).lines(
        ("A", "B")
    )


# What is printed, written and shown.


def test_json_is_strict_and_says_the_same(compared: Diff) -> None:
    found = json.loads(json.dumps(compared.to_dict(), allow_nan=False))
    mean = found["metrics"]["mean_e2el_ms"]
    assert mean["timing"] + mean["decisions"] == pytest.approx(mean["b"] - mean["a"])
    assert set(mean) == {
        "a", "b", "percent", "noise_percent", "is_within_noise", "resimulated", "timing", "decisions",
    }  # fmt: skip
    assert [each["kind"] for each in found["steps"]] == ["decode", "prefill", "mixed"]
    assert found["resimulated"]["divergence"] is None
    assert found["divergence"]["causes"]
    assert compared.text() == str(compared)


def test_the_page_holds_figures_tables_and_decisions(compared: Diff, tmp_path: Path) -> None:
    written = compared.save(tmp_path / "error")
    assert [path.name for path in written] == ["diff.json", "diff.html"]
    page = written[1].read_text()
    for part in (
        'id="figure-diff-parts"',
        'id="figure-diff-steps"',
        "first difference in step",
        "median_ttft_ms",
    ):
        assert part in page
    compared.save(tmp_path / "again")
    assert (tmp_path / "again" / "diff.html").read_text() == page
    shown = compared._repr_html_()
    assert "<table>" in shown
    assert "figure" not in shown


def test_figures_hold_what_they_say(compared: Diff) -> None:
    assert compared.times is not None
    scatter = step_scatter(compared.times)
    assert [trace.name for trace in scatter.data] == ["equal", "decode (270)", "prefill (2)", "mixed (77)"]
    bars = {trace.name: trace for trace in error_parts(compared.metrics).data}
    at = list(bars["timing"].y).index("mean_e2el_ms")
    assert bars["timing"].base[at] + bars["timing"].x[at] == pytest.approx(bars["model - measured"].x[at])
    empty = error_parts([MetricChange("mean_ttft_ms", 1.0, 2.0, 100.0)])
    assert "not split" in empty.layout.annotations[0].text


def test_the_command_compares_run_folders(tmp_path: Path, machine: Run, model: Run) -> None:
    folders = {"machine": machine, "model": model, "again": measured(BUSY, seed=3)}
    for name, run in folders.items():
        save_run(run, tmp_path / name, logs=("steps", "decisions"), report=False)
    pair = str(tmp_path / "machine"), str(tmp_path / "model")
    made = servetwin("diff", *pair, "--repeat", tmp_path / "again", "-o", tmp_path / "error", "--json")
    assert made.code == 0
    assert made.err.count("Wrote ") == 2
    found = json.loads(made.out)
    assert found["metrics"]["mean_ttft_ms"]["decisions"] == 0.0
    assert json.loads((tmp_path / "error/diff.json").read_text()) == {
        key: value for key, value in found.items() if key != "over_limit"
    }
    assert servetwin("diff", *pair, "--limit", "mean_e2el_ms:5").code == 1
    plain = servetwin("diff", *pair, "--no-split")
    assert "timing" not in plain.out
    again = api_diff(pair[0], pair[1], repeat=tmp_path / "again")
    assert json.loads(json.dumps(again.to_dict())) == json.loads((tmp_path / "error/diff.json").read_text())
