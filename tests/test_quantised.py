"""Other widths of weights and KV: what moves and what stays, what is said of it, and the user's accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from command import servetwin
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import compare, kv_size, load_scenario, simulate
from simulator.config.build import build_machine, profile_path
from simulator.config.run import run_scenario
from simulator.errors import ConfigError
from simulator.experiments.jobs import numbers
from simulator.experiments.metric_cells import lower_is_better
from simulator.experiments.server.export import RULES
from simulator.experiments.server.setting import settings as server_settings
from simulator.latency.base import StepFeatures
from simulator.latency.estimate import estimate
from simulator.latency.group import group_profile
from simulator.latency.profile import Profile
from simulator.latency.profile_file import best_profile
from simulator.latency.quantised import RATIO_ERRORS, quantised
from simulator.latency.roofline import Roofline
from simulator.latency.uncertainty import draw_deviates
from simulator.specs import HARDWARE, MODELS, Model
from simulator.specs.models import QUANTIZATIONS, weight_bits

LLAMA = MODELS["llama-3.1-8b"]
A100, H100 = HARDWARE["a100-80gb-sxm"], HARDWARE["h100-80gb-sxm"]
KV_TYPES = ("auto", "fp8", "int8")
CASES = [(how, kv) for how in (None, *QUANTIZATIONS) for kv in KV_TYPES if (how, kv) != (None, "auto")]


@cache
def of(how: str | None, kv: str = "auto", gpu: str = A100.name, gpus: int = 1) -> Profile:
    model = LLAMA if how is None else LLAMA.quantized(how)
    found = group_profile(HARDWARE[gpu], model, gpus, None, kv)
    assert found is not None
    return found


def decode(batch: int, kv: int) -> StepFeatures:
    return StepFeatures.decode([kv] * batch)


PROMPTS = StepFeatures.prefill([(2048, 0)])
ONE, MANY, LONG = decode(1, 500), decode(256, 500), decode(64, 4000)


# ---- memory


def test_scales_count_where_they_are_real() -> None:
    # 8 bits: a scale a channel is 0.1 %; 4 bits: 16-bit scale and 4-bit zero point for each 128 weights
    assert [weight_bits(how) for how in QUANTIZATIONS] == [8, 4 + 20 / 128, 8]
    sizes = {how: kv_size(LLAMA, A100, quantization=how) for how in QUANTIZATIONS}
    assert sizes["int8"].weight_bytes == sizes["fp8"].weight_bytes == 9081200640
    # huggingface.co/hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4: files of 4.68 and 1.05 GB
    assert round(sizes["int4"].weight_bytes / 1e9, 2) == 5.73


def test_sz_04_an_int8_cache_has_a_scale_for_each_head() -> None:
    # 2 x 8 heads x (128 numbers + one fp32 scale) x 32 layers
    assert LLAMA.kv_bytes_per_token("int8") == 32 * 2 * 8 * (128 + 4) == 67584
    assert LLAMA.kv_bytes_per_token("fp8") == 65536
    assert MODELS["deepseek-v3"].kv_bytes_per_token("int8") == 35136  # SZ-05: the latent has no heads


def test_quantised_weights_leave_their_room_to_the_cache() -> None:
    plain, int4 = (kv_size(LLAMA, A100, quantization=how) for how in (None, "int4"))
    freed = plain.weight_bytes - int4.weight_bytes
    assert int4.num_gpu_blocks - plain.num_gpu_blocks == pytest.approx(freed / plain.block_bytes, abs=1)


def test_sz_07_a_rank_holds_its_part_of_quantised_weights() -> None:
    whole, rank = (kv_size(LLAMA, A100, quantization="int4", tensor_parallel_size=n) for n in (1, 4))
    assert 4 * rank.weight_bytes == pytest.approx(whole.weight_bytes, rel=1e-3)


# ---- times


@pytest.mark.parametrize(("how", "kv"), CASES)
@pytest.mark.parametrize("gpu", [A100.name, H100.name, "rtx-pro-6000"])
def test_only_what_is_narrower_gets_cheaper(how: str | None, kv: str, gpu: str) -> None:
    plain, other = of(None, gpu=gpu), of(how, kv, gpu)
    assert np.all(other.dense[1:] < plain.dense[1:]) if how else np.array_equal(other.dense, plain.dense)
    assert np.array_equal(other.head, plain.head)
    assert other.host == plain.host
    assert other.prefill == plain.prefill
    assert repr(other.prefill_factor) == repr(plain.prefill_factor)
    if kv == "auto":
        assert np.array_equal(other.decode.seconds, plain.decode.seconds)
    else:
        assert np.all(other.decode.seconds <= plain.decode.seconds)
        least = 0.5 if kv == "fp8" else 132 / 256
        assert (other.decode.seconds / plain.decode.seconds).min() >= least - 1e-12
        assert np.all(np.diff(other.decode.seconds, axis=1) >= 0)


def test_integer_weights_speed_up_reading_them_and_not_computing() -> None:
    plain, int8, int4 = of(None), of("int8"), of("int4")
    for step, at_most, at_least in ((ONE, 0.7, 0.5), (PROMPTS, 1.0, 0.97)):
        assert at_least < int8.step_time(step) / plain.step_time(step) < at_most
    assert int4.step_time(ONE) < int8.step_time(ONE)
    assert int4.step_time(PROMPTS) > 0.97 * plain.step_time(PROMPTS)


def test_fp8_doubles_the_flops_only_where_the_gpu_has_it() -> None:
    assert of("fp8").step_time(PROMPTS) == of("int8").step_time(PROMPTS)  # A100: weight-only
    plain, fp8 = of(None, gpu=H100.name), of("fp8", gpu=H100.name)
    assert 0.5 < fp8.step_time(PROMPTS) / plain.step_time(PROMPTS) < 0.7
    assert fp8.roofline.layer_flops == pytest.approx(H100.flops_fp8)
    assert "computed at 2 times the 16-bit FLOP/s" in fp8.provenance
    assert "FLOP/s" not in of("fp8").provenance.partition("derived")[2]


def test_a_narrow_cache_helps_by_what_is_read() -> None:
    plain, fp8 = of(None), of(None, "fp8")
    assert fp8.step_time(PROMPTS) == plain.step_time(PROMPTS)
    gains = [1 - fp8.step_time(step) / plain.step_time(step) for step in (ONE, MANY, LONG)]
    assert 0 < gains[0] < 0.02 < gains[1] < gains[2]


def test_a_measured_mixed_step_keeps_its_prompt_and_pays_less_for_its_decodes() -> None:
    plain, fp8 = (of(None, kv, "rtx-pro-6000").mixed for kv in ("auto", "fp8"))
    assert plain is not None
    assert fp8 is not None
    alone = StepFeatures.prefill([(512, 1000)])
    beside = StepFeatures(512 + 64, 65, 65, 64, 64 * 4000, 4000, 512, 512 * 256.0, 512)
    assert fp8.seconds(alone) == plain.seconds(alone)
    assert fp8.seconds(beside) < plain.seconds(beside)


def test_a_plain_model_is_the_profile_itself() -> None:
    profile = best_profile(A100, LLAMA)
    assert profile is not None
    assert quantised(profile, A100, LLAMA) is profile


@pytest.mark.parametrize(("how", "kv"), CASES)
def test_what_takes_a_profile_takes_a_derived_one(how: str | None, kv: str) -> None:
    """decode_times == step_time to the bit, also scaled, overlapped, drawn and in a group of GPUs."""
    base = of(how, kv)
    group = of(how, kv, gpus=2)
    several = [base, base.scaled(2.0, 1.5), base.overlapped(), *base.draws(2), group, group.scaled(0.5)]
    for each in several:
        for batch, context in ((1, 100), (7, 1234), (256, 60), (1500, 10)):
            times = each.decode_times(decode(batch, context), 5)
            ticked = [each.step_time(decode(batch, context + i)) for i in range(5)]
            assert times.tolist() == ticked
    assert base.scaled().step_time(LONG) == base.step_time(LONG)
    assert group.dense[64] > 0.5 * base.dense[64]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(CASES),
    st.integers(1, 256),
    st.integers(1, 8000),
    st.integers(0, 2048),
)
def test_more_work_never_takes_less_time(
    case: tuple[str | None, str], batch: int, kv: int, more: int
) -> None:
    profile = DERIVED[case]
    assert profile.step_time(decode(batch, kv + more)) >= profile.step_time(decode(batch, kv))


DERIVED = {(how, kv): of(how, kv) for how, kv in CASES}


@pytest.mark.parametrize("how", QUANTIZATIONS)
def test_an_estimate_is_priced_by_the_same_rooflines(how: str) -> None:
    plain, other = estimate(A100, LLAMA), estimate(A100, LLAMA.quantized(how), "fp8")
    assert np.array_equal(other.head, plain.head)
    assert np.all(other.dense[1:] < plain.dense[1:])
    assert np.all(other.decode.seconds < plain.decode.seconds)
    assert other.prefill.per_work == plain.prefill.per_work
    by_hand = Roofline.of(A100, LLAMA.quantized(how), "fp8")
    assert (by_hand.weight_bytes, by_hand.head_bytes, by_hand.kv_bytes) == (weight_bits(how) / 8, 2, 1)


def test_a_narrow_gemm_by_hand() -> None:
    roofline = Roofline.of(H100, LLAMA.quantized("fp8"))
    e = roofline.efficiency
    memory = (1 * 4096 * 4096 + 2 * 64 * 8192) / (e.bandwidth * 3.35e12)
    compute = 2 * 64 * 4096 * 4096 / (e.compute * 1979e12)
    p = e.sharpness
    assert roofline.gemm(64, 4096, 4096) == pytest.approx(
        e.gemm_overhead + (memory**p + compute**p) ** (1 / p)
    )


# ---- what is said


@pytest.mark.parametrize(("how", "kv"), CASES)
def test_a_derived_time_says_so(how: str | None, kv: str) -> None:
    scenario = load_scenario("chat-a100").with_(**{"model.quantization": how, "kv.kv_cache_dtype": kv})
    machine = build_machine(scenario)
    assert machine.latency.error is None
    assert "derived by rooflines, not measured" in machine.latency.provenance
    assert "estimated" not in machine.latency.provenance
    (note,) = (note for note in machine.notes if "derived, not measured" in note)
    assert (f"{how} weights" in note) == (how is not None)
    assert (f"{kv} KV cache" in note) == (kv != "auto")
    assert not any("no profile is shipped" in note for note in machine.notes)
    path = profile_path(scenario, machine)
    assert path is not None
    assert path.name == "a100-80gb-sxm.json"


def test_a_profile_by_name_serves_quantised_models_too() -> None:
    keys = {"latency.profile": "a100-80gb-sxm", "model.quantization": "int4"}
    named = build_machine(load_scenario("chat-a100").with_(**keys)).latency
    assert named.step_time(LONG) == of("int4").step_time(LONG)


def test_a_line_is_not_repriced_and_says_so() -> None:
    line = {"kind": "linear", "coefficients": {"constant": 0.01}}
    scenario = load_scenario("chat-a100").with_(
        **{"latency.kind": "linear", "latency.coefficients": line["coefficients"], "kv.kv_cache_dtype": "fp8"}
    )
    assert any("change only the memory" in note for note in build_machine(scenario).notes)


def test_ratios_have_errors_of_their_own() -> None:
    plain, both = of(None), of("int8", "fp8")
    assert both.error_terms == plain.error_terms | RATIO_ERRORS
    deviates = dict.fromkeys(both.error_terms, 0.0)
    assert both.drawn(deviates).step_time(LONG) == both.step_time(LONG)
    off = both.drawn(deviates | {"weights": 1.0})
    assert off.dense[64] == pytest.approx(np.exp(0.15) * both.dense[64])
    assert np.array_equal(off.head, both.head)
    off = both.drawn(deviates | {"kv_cache": 1.0})
    assert np.allclose(off.decode.seconds, np.exp(0.2) * both.decode.seconds)


def test_what_plain_and_quantised_have_in_common_cancels_in_their_ratio() -> None:
    plain, int8 = of(None), of("int8")
    without = replace(int8, ratio_errors={})
    spread = []
    for other in (int8, without):
        draws = draw_deviates(other.error_terms, 40, seed=1)
        ratios = [other.drawn(z).dense[1] / plain.drawn(z).dense[1] for z in draws]
        spread.append(np.std(np.log(ratios)))
    assert spread[0] == pytest.approx(0.15, rel=0.4)
    assert spread[1] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--set", "model.quantization=int3"],
            "model.quantization: must be 'int8', 'int4' or 'fp8', got 'int3'",
        ),
        (["--set", "model.accuracy={int9: 3}"], "model.accuracy: unknown type 'int9'; did you mean int8?"),
        (
            ["--set", "model.accuracy={none: .nan}"],
            "model.accuracy: a score must be a finite number, got nan",
        ),
        (["--set", "model.accuracy=yes"], "model.accuracy: a score must be a finite number, got 'yes'"),
        (["--set", "model.accuracy={}"], "model.accuracy: a mapping of scores must have one"),
    ],
)
def test_bad_values_are_one_line(arguments: list[str], words: str) -> None:
    found = servetwin("check", "chat-a100", *arguments)
    assert found.code == 2
    assert words in found.err
    assert found.err.count("\n") == 1


def test_kv_size_takes_a_type_of_weights() -> None:
    found = servetwin("kv-size", "llama-3.1-8b", "--quantization", "int4", "--json")
    assert json.loads(found.out)["weight_bytes"] == LLAMA.quantized("int4").weight_bytes()
    refused = servetwin("kv-size", "llama-3.1-8b", "--quantization", "int5")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "quantization 'int5' is not one of int8, int4, fp8; did you mean int" in refused.err


@pytest.mark.parametrize("server", RULES)
@pytest.mark.parametrize("how", QUANTIZATIONS)
def test_servers_are_told_the_type_or_the_user_the_checkpoint(server: str, how: str) -> None:
    scenario = load_scenario("chat-a100").with_(**{"model.quantization": how})
    argv, lacks = server_settings(scenario, build_machine(scenario), RULES[server])
    (lack,) = (each for each in lacks if each.key == "model.quantization")
    assert ("--quantization" in argv) == (how == "fp8")
    assert "checkpoint" in lack.instead
    assert lack.value == how


# ---- the user's accuracy

SCORES = {"none": 68.4, "int8": 68.1, "int8/fp8": 67.25}


def candidates() -> dict[str, dict[str, object]]:
    types: Iterator[tuple[str, str | None, str]] = iter(
        [("plain", None, "auto"), ("int8", "int8", "auto"), ("both", "int8", "fp8"), ("int4", "int4", "auto")]
    )
    return {name: {"model.quantization": how, "kv.kv_cache_dtype": kv} for name, how, kv in types}


def small(**changes: object) -> dict[str, object]:
    lengths = {"kind": "constant", "prompt": 200, "output": 5}
    return {"workload.num_requests": 6, "workload.lengths": lengths, **changes}


def test_a_score_is_carried_to_the_result_and_never_made_up(tmp_path: Path) -> None:
    base = load_scenario("chat-a100").with_(**small(**{"model.accuracy": SCORES}))
    found = {name: run_scenario(base.with_(**keys)) for name, keys in candidates().items()}
    assert {name: run.own["accuracy"] for name, run in found.items()} == {
        "plain": 68.4,
        "int8": 68.1,
        "both": 67.25,
        "int4": None,
    }
    told = {name: [n for n in run.own["notes"] if "accuracy" in n] for name, run in found.items()}  # type: ignore[attr-defined]
    assert told["plain"] == told["both"] == []
    assert told["int4"] == ["model.accuracy has no score for int4: none is carried, none guessed"]
    assert numbers(found["both"])["accuracy"] == 67.25  # what sweeps and searches see
    assert "accuracy" not in numbers(found["int4"])
    assert not lower_is_better("accuracy")


def test_a_number_is_carried_whatever_else_varies_and_no_score_is_no_column() -> None:
    one = simulate("chat-a100", set=small(**{"model.accuracy": -3.5, "model.quantization": "fp8"}))
    assert one.summary["servetwin"]["accuracy"] == -3.5
    assert one.summary["servetwin"]["scenario"]["model"]["accuracy"] == -3.5
    base = load_scenario("chat-a100").with_(**small())
    without = compare(base, candidates(), replications=None)
    scored = compare(base.with_(**{"model.accuracy": SCORES}), candidates(), replications=None)
    assert "accuracy" not in str(without).splitlines()[0]
    header, *rows = str(scored).splitlines()
    assert header.split()[-1] == "accuracy"
    assert [row.split()[-1] for row in rows[:4]] == ["68.4", "68.1", "67.25", "n/a"]


def test_report_and_terminal_say_whose_score_it_is(tmp_path: Path) -> None:
    arguments = (
        "run",
        "tiny-cpu",
        "--num-requests",
        "5",
        "--set",
        "model.accuracy=71.5",
        "-o",
        str(tmp_path / "r"),
    )
    found = servetwin(*arguments)
    assert "Accuracy: 71.5, your own score; servetwin measures none" in found.out
    page = (tmp_path / "r/report.html").read_text()
    assert "your own score, not simulated" in page


def test_digests_of_older_scenarios_stay() -> None:
    base = load_scenario("chat-a100")
    assert base.digest() == "3bb0b00d"
    assert base.with_(**{"model.accuracy": 1.0}).digest() != base.digest()


def test_a_model_refuses_a_type_it_cannot_have() -> None:
    with pytest.raises(ConfigError, match="quantization 'int6' is not one of int8, int4, fp8; did you mean"):
        LLAMA.quantized("int6")
    assert isinstance(LLAMA.quantized("fp8"), Model)
