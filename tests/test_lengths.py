"""Length distributions: their laws and edges, and the bundled joint tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.workload import LENGTHS, generate, read_trace
from simulator.workload.tables import TABLES, load_table, table_names

EXAMPLES: dict[str, dict[str, Any]] = {  # Any: as parsed from a scenario
    "constant": {"prompt": 1000, "output": 100},
    "uniform": {"prompt": [1, 9], "output": [5, 5]},
    "exponential": {"prompt": 1000, "output": 1},
    "lognormal": {"prompt": {"mean": 1000, "sigma": 1}, "output": {"mean": 10, "sigma": 0}},
    "quantiles": {"prompt": {0: 3, 50: 100, 100: 8000}, "output": {0: 1, 100: 1}},
    "table": {"name": "azure-conv"},
}


def draw(kind: str, n: int = 20_000, **params: Any) -> tuple[np.ndarray, np.ndarray]:
    return LENGTHS[kind](np.random.default_rng(0), np.arange(n) * 0.18, **params)


@pytest.mark.parametrize("kind", LENGTHS)
def test_every_kind_gives_whole_lengths_from_1_that_the_seed_fixes(kind: str) -> None:
    for column, again in zip(
        draw(kind, 300, **EXAMPLES[kind]), draw(kind, 300, **EXAMPLES[kind]), strict=True
    ):
        assert column.dtype == np.int64
        assert column.min() >= 1
        assert column.tolist() == again.tolist()


def test_means_are_those_asked_for() -> None:
    prompt, output = draw("exponential", prompt=1000, output=100)
    assert (prompt.mean(), output.mean()) == (pytest.approx(1000, rel=0.03), pytest.approx(100, rel=0.03))
    prompt, output = draw("lognormal", prompt={"mean": 1000, "sigma": 1}, output={"mean": 10, "sigma": 0})
    assert prompt.mean() == pytest.approx(1000, rel=0.04)
    assert np.log(prompt).std() == pytest.approx(1, rel=0.02)
    assert set(output.tolist()) == {10}


def test_uniform_includes_both_ends() -> None:
    prompt, output = draw("uniform", prompt=[1, 3], output=[5, 5])
    assert np.bincount(prompt)[1:] / len(prompt) == pytest.approx([1 / 3] * 3, abs=0.02)
    assert set(output.tolist()) == {5}


def test_quantiles_are_met() -> None:
    prompt, _ = draw("quantiles", **EXAMPLES["quantiles"])
    assert np.percentile(prompt, 50) == pytest.approx(100, rel=0.05)
    assert np.percentile(prompt, 75) == pytest.approx(4050, rel=0.05)


def test_prompt_and_output_draw_from_streams_of_their_own() -> None:
    one, _ = draw("exponential", 100, prompt=1000, output=100)
    other, _ = draw("exponential", 100, prompt=1000, output=7)
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("constant", {"prompt": 0, "output": 1}, r"lengths\.prompt: must be 1 to .* got 0"),
        ("constant", {"prompt": 1, "output": 10**9}, r"lengths\.output"),
        ("uniform", {"prompt": [9, 1], "output": [1, 1]}, "low <= high"),
        ("lognormal", {"prompt": {"mean": 5}, "output": {"mean": 5, "sigma": 1}}, "sigma"),
        ("quantiles", {"prompt": {10: 1, 100: 9}, "output": {0: 1, 100: 1}}, "percent 0 to 100"),
        ("quantiles", {"prompt": {0: 9, 100: 1}, "output": {0: 1, 100: 1}}, "do not fall"),
        ("table", {"name": "azur-code"}, "did you mean azure-code"),
    ],
)
def test_impossible_parameters_are_named(kind: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        draw(kind, 10, **params)


def test_every_bundled_table_is_small_and_says_where_it_comes_from() -> None:
    licences = {}
    for section in ("arrivals", "lengths", "sessions"):
        for name in table_names(section):
            assert (TABLES / f"{name}.json").stat().st_size < 100_000
            table = load_table(name, "", section)
            licences[name] = table["licence"]
            assert table["source"]
            assert table["attribution"]
    assert licences == {"azure-code": "CC-BY-4.0", "azure-conv": "CC-BY-4.0", "agentic": "Apache-2.0"}


@pytest.mark.parametrize("name", table_names())
def test_a_length_table_has_laws_for_all_arrivals(name: str) -> None:
    table = load_table(name, "", "lengths")
    lengths = table["lengths"]
    for law in (*lengths["prompt"], *lengths["output"]):
        assert len(law) == len(lengths["p"])
        assert law == sorted(law)
    assert [sum(row) for row in lengths["shares"]] == table["arrivals"]["counts"]


def test_a_table_follows_the_time_of_arrival_and_repeats() -> None:
    shares = np.array(load_table("azure-conv", "", "lengths")["lengths"]["shares"])
    span = load_table("azure-conv", "", "lengths")["lengths"]["span_s"]
    arrival = np.concatenate([np.full(5000, 30.0), np.full(5000, 25 * 60 + 30.0), np.full(5000, span + 30.0)])
    prompt, _ = LENGTHS["table"](np.random.default_rng(0), arrival, name="azure-conv")
    early, late, again = (x.mean() for x in np.split(prompt, 3))
    assert early == pytest.approx(901, rel=0.05)  # mean prompt of the trace's first minute, and of its 26th
    assert late == pytest.approx(1427, rel=0.05)
    assert again == pytest.approx(early, rel=0.05)
    assert shares.shape[0] == 59


@pytest.mark.parametrize("which", ["conv", "code"])
def test_a_table_gives_the_lengths_of_the_trace(which: str, shared_data: Path) -> None:
    trace = read_trace(shared_data / "traces" / f"azure_llm_2023_{which}.csv.gz")
    name = f"azure-{which}"
    drawn = generate({"kind": "profile", "name": name}, {"kind": "table", "name": name}, len(trace))
    for ours, theirs in ((drawn.num_prompt, trace.num_prompt), (drawn.num_output, trace.num_output)):
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.02)
        points = [10, 50, 90, 99]
        assert np.percentile(ours, points) == pytest.approx(np.percentile(theirs, points), rel=0.12, abs=1)
    corr = [np.corrcoef(w.num_prompt, w.num_output)[0, 1] for w in (drawn, trace)]
    assert corr[0] == pytest.approx(corr[1], abs=0.05)
