"""Scenario files: every key survives a round trip, every mistake is one line that says where and what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from simulator.config.build import build_machine
from simulator.config.build_workload import build_workload, with_rate
from simulator.config.loading import MAX_FILE_BYTES, bundled_scenarios, load_scenario, parse_value
from simulator.config.plain_yaml import MAX_DEPTH, dump_yaml, parse_yaml
from simulator.config.scenario import Scenario
from simulator.config.template import commented_yaml
from simulator.errors import ConfigError, SimulatorError

EXAMPLES: dict[str, object] = {
    "model.quantization": "int8",
    "schema": 1,
    "name": "café, 1e6: #2",
    "seed": 2**62,
    "model.name": "qwen2.5-7b",
    "model.dtype": "float16",
    "model.accuracy": {"none": 68.4, "int8/fp8": -1e-3},
    "model.max_model_len": None,
    "hardware.gpu": "h200",
    "hardware.price_per_gpu_hour": 2.5,
    "parallel.tensor_parallel_size": 4,
    "parallel.pipeline_parallel_size": 2,
    "parallel.expert_parallel": True,
    "parallel.expert_skew": 0.5,
    "kv.block_size": 32,
    "kv.gpu_memory_utilization": 0.5,
    "kv.num_gpu_blocks_override": 1000,
    "kv.reserve_gib": 0.0,
    "kv.kv_cache_dtype": "fp8",
    "kv.enable_prefix_caching": False,
    "kv.eviction": "lru",
    "kv.tiers": [
        {"name": "host", "capacity_gib": 64.0, "bandwidth_gb_s": 25.0, "latency_us": 10.0, "offload": True},
        {"name": "nvme", "capacity_gib": 1e3, "bandwidth_gb_s": 3.5, "latency_us": 80.0, "offload": False},
    ],
    "scheduler.batching": "chunked",
    "scheduler.order": "priority",
    "scheduler.victim": "least_important",
    "scheduler.preemption": "recompute",
    "scheduler.admission": ["reserve_output", {"queue_limit": 5}],
    "scheduler.max_num_seqs": 3,
    "scheduler.max_num_batched_tokens": 4096,
    "scheduler.long_prefill_token_threshold": 7,
    "scheduler.scheduler_reserve_full_isl": False,
    "scheduler.watermark": 0.01,
    "scheduler.async_scheduling": True,
    "scheduler.min_batch": "offline",
    "scheduler.max_wait_ms": 50.0,
    "speculative": {
        "method": "draft_model",
        "num_speculative_tokens": 2,
        "acceptance": [0.8, 0.6],
        "draft_model": "llama-3.2-1b",
        "num_speculative_tokens_per_batch_size": [[1, 16, 2], [17, 256, 0]],
        "lookup_us": 0.0,
    },
    "cluster": {
        "replicas": [{"count": 2, "set": {"hardware.gpu": "h200"}}, {"count": 1, "set": {}}],
        "router": "prefix_affinity",
        "signal_delay_s": 0.1,
        "retry": False,
        "outages": [{"replica": 2, "at_s": 10.0, "back_s": None}],
        "autoscaler": {
            "kind": "outstanding",
            "target": 20.0,
            "scale_down": 0.5,
            "min_replicas": 1,
            "max_replicas": 8,
            "interval_s": 5.0,
            "start_delay_s": 30.0,
        },
        "disaggregation": None,
    },
    "latency.kind": "roofline",
    "latency.profile": None,
    "latency.coefficients": None,
    "workload.trace": "no-such-file.csv",
    "workload.format": "azure",
    "workload.columns": {"arrival": "1e6", "prompt": "no", "output": "~"},
    "workload.time_unit": "ms",
    "workload.start_s": 1.5,
    "workload.duration_s": 1e-3,
    "workload.limit": 9,
    "workload.rate_scale": 1e-6,
    "workload.spread_ms": 3000.0,
    "workload.arrivals": {"kind": "ramp", "points": [[0, 1], [10, 2.5]]},
    "workload.lengths": {"kind": "quantiles", "prompt": {"0": 1, "100": 9}, "output": {"0": 1, "100": 9}},
    "workload.max_tokens": 5,
    "workload.num_requests": 77,
    "workload.max_concurrency": 8,
    "workload.sessions": {"replay": "scaled", "think_cap_s": None, "time_scale": 2.0},
    "workload.timeout_s": 1e9,
    "workload.pre_delay_s": {"lognormal": {"mean": 0.2, "sigma": 0.5}},
    "workload.tenants": [
        {
            "name": "null",
            "share": 1.5,
            "weight": 2.0,
            "priority": -1,
            "slo": {"ttft_ms": 1.0, "tpot_ms": None},
        },
        {"name": "1e6", "share": None, "weight": 1.0, "priority": None, "slo": None},
    ],
    "workload.cancel": {"fraction": 0.1, "after_s": 2.0},
    "workload.predicted_len": {"sigma": 0.3},
    "slo.ttft_ms": None,
    "slo.tpot_ms": 1e-3,
    "slo.e2el_ms": 3000.0,
    "slo.attainment": 1.0,
    "run.warmup": {"requests": 50},
    "run.horizon_s": 3600.0,
    "run.percentiles": [50.0, 99.9],
    "run.percentile_method": "nearest",
}
"""A value for every key; a key without one fails its test."""


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind, key = field.annotation, prefix + (field.alias or name)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{key}.")
        else:
            yield key


def look_up(scenario: Scenario, key: str) -> object:
    value: Any = scenario.to_dict()
    for part in key.split("."):
        value = value[part]
    return value


def complaint(text: str, folder: Path) -> str:
    """Return what loading a scenario file with this text complains of, after checking that it is one line."""
    path = folder / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 600
    return message.removeprefix(str(path)).lstrip(":, ")


@pytest.mark.parametrize("key", list(keys(Scenario)))
def test_every_key_survives_a_round_trip(key: str, tmp_path: Path) -> None:
    scenario = Scenario().with_(**{key: EXAMPLES[key]})
    (tmp_path / "s.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
    again = load_scenario(tmp_path / "s.yaml")
    assert look_up(again, key) == EXAMPLES[key]
    assert again == scenario
    assert again.digest() == scenario.digest()


@pytest.mark.parametrize("name", bundled_scenarios())
def test_bundled_scenarios_survive_a_round_trip(name: str) -> None:
    scenario = load_scenario(name)
    assert load_scenario(parse_yaml(scenario.to_yaml(), "")) == scenario  # type: ignore[arg-type]


def test_a_commented_template_is_the_default_scenario(tmp_path: Path) -> None:
    for name in ("a: b # c", "no", "1e6", "{x}", "ü"):
        (tmp_path / "t.yaml").write_text(commented_yaml(name), encoding="utf-8")
        assert load_scenario(tmp_path / "t.yaml") == Scenario(name=name)


@pytest.mark.parametrize("key", list(keys(Scenario)))
def test_the_template_shows_every_key(key: str) -> None:
    assert f"{key.rpartition('.')[2]}: " in commented_yaml("x")


TEXTS = st.text(st.characters(exclude_characters="\x85", exclude_categories=["Cs"]), max_size=9)
"""Without a line break of YAML 1.1 that PyYAML writes as it is, and without halves of characters."""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=8,
    )
)
def test_plain_data_survives_yaml(value: object) -> None:
    assert parse_yaml(dump_yaml({"k": value}), "") == {"k": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1_000_000),
        ("1E+3", 1000),
        ("2.5e-3", 0.0025),
        ("1_000", 1000),
        ("010", 10),
        (".inf", float("inf")),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("2026-01-01", "2026-01-01"),
        ("12:30", "12:30"),
        ("pol.py:sjf", "pol.py:sjf"),
        ("[1, a]", [1, "a"]),
        ("{50: 100}", {"50": 100}),
        ("[1", "[1"),
        ("*a", "*a"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_values_of_the_command_line_mean_what_people_mean(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a scenario is a mapping of keys to values, got nothing"),
        ("- 1", "a scenario is a mapping of keys to values, got [1]"),
        ("42", "a scenario is a mapping of keys to values, got 42"),
        ("sede: 1", "sede: unknown key; did you mean seed?"),
        ("kv: {block_sise: 1}", "kv.block_sise: unknown key; did you mean block_size?"),
        ("kv: 3", "kv: must be a mapping of keys to values, got 3"),
        ("schema: 2", "schema: must be 1, got 2"),
        ("seed: -1", "seed: must be greater than or equal to 0, got -1"),
        ("seed: 1.5", "seed: must be a valid integer, got 1.5"),
        ("seed: '1'", "seed: must be a valid integer, got '1'"),
        ("kv: {block_size: true}", "kv.block_size: must be a valid integer, got True"),
        ("kv: {enable_prefix_caching: 7}", "kv.enable_prefix_caching: must be a valid boolean"),
        ("slo: {ttft_ms: no}", "slo.ttft_ms: must be a valid number, got 'no'"),
        ("slo: {ttft_ms: .inf}", "slo.ttft_ms: must be a finite number, got inf"),
        ("slo: {ttft_ms: .nan}", "slo.ttft_ms: must be a finite number, got nan"),
        ("slo: {attainment: 1.5}", "slo.attainment: must be less than or equal to 1, got 1.5"),
        ("scheduler: {watermark: .nan}", "scheduler.watermark: must be a finite number, got nan"),
        ("scheduler: {order: true}", "scheduler.order: must be a valid string, got True"),
        (
            "scheduler: {max_num_seqs: 4096}",
            "scheduler: max_num_batched_tokens (2048) must be >= max_num_seqs",
        ),
        ("latency: {kind: magic}", "latency.kind: must be 'profile', 'roofline' or 'linear', got 'magic'"),
        ("latency: {kind: linear}", "latency: coefficients are needed for kind: linear, and only there"),
        ("latency: {kind: roofline, profile: x}", "latency: profile is used only by kind: profile"),
        ("latency: {kind: linear, coefficients: {a: x}}", "latency.coefficients.a: must be a valid number"),
        ("run: {percentiles: [101]}", "run.percentiles.0: must be less than or equal to 100, got 101"),
        ("run: {percentiles: 50}", "run.percentiles: must be a valid list, got 50"),
        ("workload: {arrivals: {kind: poisson, rate: .inf}}", "workload.arrivals: numbers must be finite"),
        (
            "workload: {arrivals: poisson}",
            "workload.arrivals: must be a mapping of keys to values, got 'poisson'",
        ),
        ("workload: {columns: {arrival: 3}}", "workload.columns.arrival: must be a valid string, got 3"),
        ("workload: {tenants: []}", "workload.tenants: must have at least 1 item"),
        ("workload: {tenants: a}", "workload.tenants: must be a valid list, got 'a'"),
        ("workload: {tenants: [{share: 1}]}", "workload.tenants.0.name: Field required"),
        ("workload: {tenants: [{name: 1}]}", "workload.tenants.0.name: must be a valid string, got 1"),
        ("workload: {tenants: [{name: ''}]}", "workload.tenants.0.name: must have at least 1 character"),
        (
            "workload: {tenants: [{name: a}, {name: b, wieght: 1}]}",
            "workload.tenants.1.wieght: unknown key; did you mean weight?",
        ),
        (
            "workload: {tenants: [{name: a, share: -1}]}",
            "workload.tenants.0.share: must be greater than or equal to 0, got -1",
        ),
        (
            "workload: {tenants: [{name: a, weight: 0}]}",
            "workload.tenants.0.weight: must be greater than or equal to 0.000001, got 0",
        ),
        (
            "workload: {tenants: [{name: a, priority: 99999999999}]}",
            "workload.tenants.0.priority: must be less than 2147483648",
        ),
        (
            "workload: {tenants: [{name: a, priority: 1.5}]}",
            "workload.tenants.0.priority: must be a valid integer, got 1.5",
        ),
        (
            "workload: {tenants: [{name: a, slo: {tfft_ms: 1}}]}",
            "workload.tenants.0.slo: unknown key 'tfft_ms'; did you mean ttft_ms?",
        ),
        (
            "workload: {tenants: [{name: a, slo: {ttft_ms: 0}}]}",
            "workload.tenants.0.slo.ttft_ms: must be greater than 0, got 0",
        ),
        (
            "workload: {tenants: [{name: a}, {name: b}, {name: a}]}",
            "workload.tenants: each name must appear once, got 'a' 2 times",
        ),
        (
            "workload: {predicted_len: {sigma: -0.1}}",
            "workload.predicted_len.sigma: must be greater than or equal to 0, got -0.1",
        ),
        (
            "workload: {predicted_len: {sigma: 99}}",
            "workload.predicted_len.sigma: must be less than or equal to 10, got 99",
        ),
        ("workload: {predicted_len: {}}", "workload.predicted_len.sigma: Field required"),
        ("workload: {predicted_len: 0.3}", "workload.predicted_len: must be a mapping of keys to values"),
        (
            "workload: {predicted_len: {sgima: 1, sigma: 1}}",
            "workload.predicted_len.sgima: unknown key; did you mean sigma?",
        ),
        ("speculative: {method: ngram}", "speculative.acceptance: Field required"),
        (
            "speculative: {method: eagle, acceptance: 0.5}",
            "speculative.method: must be 'ngram' or 'draft_model'",
        ),
        (
            "speculative: {method: ngram, acceptance: 1.5}",
            "speculative.acceptance: must be a rate such as 0.7, a falling list of them, or the path",
        ),
        (
            "speculative: {method: ngram, acceptance: [0.5, 0.6, 0.7]}",
            "speculative.acceptance: must be a rate such as 0.7, a falling list",
        ),
        (
            "speculative: {method: ngram, acceptance: [0.5, 0.4]}",
            "speculative: acceptance has 2 rates for 3 num_speculative_tokens; give one for each",
        ),
        (
            "speculative: {method: draft_model, acceptance: 0.5}",
            "speculative: draft_model is needed for method: draft_model, and only there",
        ),
        (
            "speculative: {method: ngram, acceptance: 0.5, draft_model: llama-3.2-1b}",
            "speculative: draft_model is needed for method: draft_model, and only there",
        ),
        (
            "speculative: {method: ngram, acceptance: 0.5, num_speculative_token: 2}",
            "speculative.num_speculative_token: unknown key; did you mean num_speculative_tokens?",
        ),
        ("name: ''", "name: must have at least 1 character, got ''"),
        (f"name: {'x' * 300}", "name: must have at most 200 characters"),
        ('name: "a\\nb"', r"name: must be one line of printable characters, got 'a\nb'"),
        ('name: "\\e[2J"', r"name: must be one line of printable characters, got '\x1b[2J'"),
        ("seed: x\nslo: {ttft_ms: y}", "seed: must be a valid integer, got 'x' (and 1 more)"),
        ("seed: 1\nseed: 2", "line 2: key 'seed' is given twice"),
        ("kv:\n\tblock_size: 3", "line 2: found character '\\t' that cannot start any token"),
        ("seed: [1", "line 1: expected ',' or ']'"),
        ("a: 1\n---\nb: 2", "line 2: but found another document"),
        ("a: b\0", "special characters are not allowed"),
        (f"seed: {'9' * 5000}", "Exceeds the limit (4300 digits)"),
    ],
)
def test_a_mistake_in_a_file_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert complaint(text, tmp_path).startswith(message)


@pytest.mark.parametrize(
    "value", ["3", "1.0", "-0.1", "soon", "{requests: x}", "{req: 5}", "{}", "[1]", "true"]
)
def test_a_warm_up_has_one_rule(value: str, tmp_path: Path) -> None:
    rule = "run.warmup: must be none, auto, a share below 1 such as 0.1, or {requests: 50}, got "
    assert complaint(f"run: {{warmup: {value}}}", tmp_path).startswith(rule)


def test_se_01_yaml_runs_no_code(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for tag in ("!!python/object/apply:os.system", "!!python/object/new:os.system", "!mine"):
        text = f"name: {tag} ['touch {marker}']"
        assert complaint(text, tmp_path) == "line 1: tags (!name) are not read"
    assert not marker.exists()


def test_few_lines_cannot_stand_for_gigabytes(tmp_path: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("abcdefghij", "bcdefghijk", strict=True):
        bomb += f"{other}: &{other} [{', '.join([f'*{one}'] * 9)}]\n"
    assert complaint(bomb, tmp_path) == "line 2: aliases (*name) are not read"
    assert complaint("a: &a [*a]", tmp_path) == "line 1: aliases (*name) are not read"


def test_nesting_has_a_limit(tmp_path: Path) -> None:
    message = f"line 1: nested deeper than {MAX_DEPTH} levels"
    assert complaint("[" * 100_000, tmp_path) == message
    assert complaint("a: " + "{a: " * 50 + "}" * 50, tmp_path) == message
    assert "a scenario is a mapping" in complaint("[" * 15 + "]" * 15, tmp_path)


def test_files_that_are_no_scenario_are_refused(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text("#" * (2 << 20))
    (tmp_path / "latin.yaml").write_bytes("name: café".encode("latin-1"))
    (tmp_path / "fine.yaml").write_text("seed: 1\n".ljust(MAX_FILE_BYTES, "#"))
    for name, message in {
        "big.yaml": "larger than 256 KiB, so not a scenario",
        "latin.yaml": "not UTF-8 text",
        "none.yaml": "no such file, run folder or bundled scenario",
        ".": "no such file, run folder or bundled scenario",
        "x" * 5000: "no such file, run folder or bundled scenario",
        "a\0b": "no such file, run folder or bundled scenario",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_scenario(f"{tmp_path}/{name}")
    assert load_scenario(tmp_path / "fine.yaml").seed == 1


def test_the_nearest_bundled_name_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"'chat-a10': no such file.*; did you mean chat-a100\?"):
        load_scenario("chat-a10")


def test_paths_are_relative_to_the_scenario_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,2\n")
    (inner / "s.yaml").write_text(
        "workload: {trace: t.csv}\nmodel: {name: llama-3-8b}\nscheduler: {order: p.py:f}"
    )
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario("inner/s.yaml")
    assert scenario.workload.trace == str(inner / "t.csv")
    assert scenario.scheduler.order == f"{inner}/p.py:f", (
        "code is looked for beside the file and nowhere else"
    )
    assert scenario.model.name == "llama-3-8b"


def test_a_folder_is_read_by_its_scenario_file(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("seed: 7")
    assert load_scenario(tmp_path).seed == 7


def test_changes_name_nested_keys() -> None:
    scenario = load_scenario("tiny-cpu").with_(
        **{"scheduler.max_num_seqs": np.int64(4), "workload.arrivals.rate": np.float64(1.5), "slo.ttft_ms": 9}
    )
    assert scenario.scheduler.max_num_seqs == 4
    assert scenario.workload.arrivals == {"kind": "poisson", "rate": 1.5}
    assert load_scenario("tiny-cpu").slo.ttft_ms == 1000


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sede", 1, "sede: unknown key 'sede'; did you mean seed?"),
        ("kv.block_sise", 1, "kv.block_sise: unknown key 'block_sise'; did you mean block_size?"),
        ("worklod.limit", 1, "worklod.limit: unknown key 'worklod'; did you mean workload?"),
        ("model.name.x", 1, "chat-a100: model.name: must be a valid string, got {'x': 1}"),
        (
            "seed",
            date(2026, 1, 1),
            "chat-a100.seed: must be text, a number, a list or a mapping, got datetime",
        ),
        ("workload.arrivals", {"a": {1, 2}}, "chat-a100.workload.arrivals.a: must be text, a number"),
    ],
)
def test_a_change_that_cannot_be_made_is_told(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Scenario().with_(**{key: value})
    assert str(caught.value).startswith(message)


def test_a_digest_differs_when_anything_differs() -> None:
    changes = [{key: value} for key, value in EXAMPLES.items() if look_up(Scenario(), key) != value]
    digests = {Scenario().with_(**change).digest() for change in changes}
    assert len(digests) == len(changes)
    assert load_scenario("tiny-cpu").digest() == load_scenario("tiny-cpu").with_(seed=0).digest()
    assert load_scenario("tiny-cpu").with_(**{"slo.ttft_ms": 1000.0}) == load_scenario("tiny-cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.name": "llama-3-8"},
            "model.name: 'llama-3-8' is neither a shipped model.*did you mean llama-3-8b",
        ),
        ({"hardware.gpu": "a100"}, "hardware.gpu: 'a100' is unknown"),
        ({"model.max_model_len": 999_999}, "model.max_model_len: 999999 exceeds the 4096 of tiny-llama-28m"),
        (
            {"latency.coefficients": {"constnat": 1}},
            "latency.coefficients.constnat: unknown; did you mean constant?",
        ),
        ({"latency": {"kind": "profile", "profile": "no.json"}}, "no.json"),
    ],
)
def test_a_machine_that_cannot_be_built_is_told(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SimulatorError, match=message) as caught:
        build_machine(load_scenario("tiny-cpu").with_(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"workload.arrivals": {"kind": "poison", "rate": 1}},
            "workload.arrivals.kind: unknown kind 'poison'; did",
        ),
        ({"workload.arrivals": {}}, "workload.arrivals.kind: unknown kind None; known: poisson"),
        ({"workload.arrivals.rate": "fast"}, "workload.arrivals: poisson cannot use {'rate': 'fast'}"),
        ({"workload.arrivals.rat": 1}, "workload.arrivals.rat: poisson has no such key; did you mean rate?"),
        ({"workload.lengths.prompt": 10**12}, "workload.lengths"),
        ({"workload.trace": "no.csv"}, "no.csv: cannot be read: No such file"),
    ],
)
def test_a_workload_that_cannot_be_built_is_told(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SimulatorError) as caught:
        build_workload(load_scenario("tiny-cpu").with_(**changes), 512)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_rate_goes_to_the_process_or_rescales_the_trace(tmp_path: Path) -> None:
    scenario = load_scenario("tiny-cpu")
    assert with_rate(scenario, 7).workload.arrivals == {"kind": "poisson", "rate": 7}
    assert (
        with_rate(scenario.with_(**{"workload.arrivals": {"kind": "poisson"}}), 7).workload.arrivals["rate"]
        == 7
    )
    profile = scenario.with_(**{"workload.arrivals": {"kind": "profile", "name": "azure-conv"}})
    workload = build_workload(with_rate(profile, 7), 512)
    assert len(workload) / workload.arrival[-1] == pytest.approx(7)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="rate: must be > 0 and finite"):
            with_rate(scenario, rate)
    with pytest.raises(ConfigError, match="rate: the requests all arrive at once"):
        with_rate(scenario.with_(**{"workload.arrivals": {"kind": "all_at_once"}}), 1)
