"""Hardware and model tables: published parameter counts, tensor-parallel shares, lookup by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.specs import HARDWARE, MODELS, Hardware, MoE, get_hardware, get_model
from simulator.specs.models import DTYPE_BITS

PUBLISHED = {  # safetensors totals on the models' pages; DeepSeek-V3 without its multi-token-prediction layer
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-70b": 70_553_706_496,
    "codellama-34b": 33_743_970_304,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tiny-llama-28m"])
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert MODELS[name].num_params == PUBLISHED[name]


def test_active_parameters_leave_out_experts_not_routed_to() -> None:
    mixtral = MODELS["mixtral-8x7b"]
    assert mixtral.active_params == mixtral.num_params - 32 * 6 * 3 * 4096 * 14336
    assert round(mixtral.active_params / 1e9, 1) == 12.9  # Mixtral paper, section 1: 13 B
    assert round(MODELS["deepseek-v3"].active_params / 1e9) == 38  # its README: 36.6 B without the embedding
    assert MODELS["llama-3.1-8b"].active_params == MODELS["llama-3.1-8b"].num_params


def test_layer_gemms_of_a_dense_layer() -> None:
    model = MODELS["llama-3.1-8b"]
    assert model.layer_gemms() == [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    assert model.layer_gemms(4) == [(1536, 4096), (4096, 1024), (7168, 4096), (4096, 3584)]
    assert model.head_gemm() == (128256, 4096)
    assert model.head_gemm(4) == (32064, 4096)


def test_layer_gemms_of_experts_are_those_one_token_uses() -> None:
    assert MODELS["mixtral-8x7b"].layer_gemms()[2:] == 2 * [(28672, 4096), (4096, 14336)]
    deepseek = MODELS["deepseek-v3"].layer_gemms()
    assert deepseek[:5] == [(1536, 7168), (24576, 1536), (576, 7168), (32768, 512), (7168, 16384)]
    assert deepseek[5:] == 9 * [(4096, 7168), (7168, 2048)]  # one shared and eight routed experts


@pytest.mark.parametrize("name", MODELS)
def test_gemms_and_embeddings_make_up_the_dense_models(name: str) -> None:
    model = MODELS[name]
    if model.moe:
        return
    matrices = model.num_layers * sum(n * k for n, k in model.layer_gemms())
    tables = 1 if model.tied_embeddings else 2
    rest = model.num_params - matrices - tables * model.vocab_size * model.hidden_size
    assert 0 < rest < 1e-3 * model.num_params


def test_tensor_parallel_splits_weights_and_replicates_scarce_kv_heads() -> None:
    model = MODELS["llama-3.1-8b"]
    whole = model.weight_bytes()
    assert whole == 2 * model.num_params
    norms = 2 * (2 * 32 + 1) * 4096
    assert model.weight_bytes(tensor_parallel_size=8) == (whole - norms) // 8 + norms
    copied = 32 * 2 * 128 * 4096  # 16 ranks hold one KV head each, of 8: half a head more than their share
    assert model.weight_bytes(tensor_parallel_size=16) == (whole - norms) // 16 + norms + copied
    assert model.kv_bytes_per_token(tensor_parallel_size=8) == 131072 // 8
    assert model.kv_bytes_per_token(tensor_parallel_size=32) == 131072 // 8


@pytest.mark.parametrize(
    ("name", "tp", "words"),
    [
        ("qwen2.5-7b", 8, "tensor_parallel_size 8 does not divide the 28 attention heads of qwen2.5-7b"),
        ("llama-3.1-8b", 0, "tensor_parallel_size 0 does not divide the 32 attention heads"),
        ("qwen3-14b", 20, "neither divides nor is a multiple of the 8 KV heads of qwen3-14b"),
    ],
)
def test_impossible_split_is_a_config_error(name: str, tp: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MODELS[name].kv_bytes_per_token(tensor_parallel_size=tp)


def test_weights_take_the_type_of_their_kind() -> None:
    model = MODELS["llama-3.1-8b"]
    other = 2 * 128256 * 4096 + (2 * 32 + 1) * 4096  # embedding, head and norms stay in 16 bits
    linear = model.num_params - other
    assert model.weight_bytes("float32") == 4 * model.num_params
    assert model.weight_bytes("int8") == linear + 2 * other
    scales = linear // 128 * (16 + 4) // 8  # a 16-bit scale and a 4-bit zero point for each group of 128
    assert model.weight_bytes("int4") == linear // 2 + scales + 2 * other
    assert replace(model, quantization="int8").weight_bytes() == linear + 2 * other
    assert round(MODELS["deepseek-v3"].weight_bytes() / 1e9) == 673  # released in fp8
    with pytest.raises(ConfigError, match="dtype 'fp9' is unknown; did you mean fp8"):
        model.weight_bytes("fp9")


def test_sliding_window_bounds_only_its_layers() -> None:
    model = MODELS["mistral-7b"]
    assert model.kv_bytes(4096) == 4096 * 131072
    assert model.kv_bytes(32768) == 4096 * 131072
    hybrid = replace(model, sliding_window=1024, num_sliding_layers=24)
    assert hybrid.kv_bytes(1000) == 1000 * 131072
    assert hybrid.kv_bytes(10_000) == (8 * 10_000 + 24 * 1024) * 4096


@given(st.sampled_from(sorted(MODELS)), st.sampled_from([1, 2, 4]), st.sampled_from(sorted(DTYPE_BITS)))
def test_ranks_together_hold_at_least_the_whole(name: str, tp: int, dtype: str) -> None:
    model = MODELS[name]
    for measure in (model.weight_bytes, model.kv_bytes_per_token):
        whole, share = measure(dtype, 1), measure(dtype, tp)
        assert share <= whole <= tp * share
    assert model.kv_bytes(7, dtype, tp) == 7 * model.kv_bytes_per_token(dtype, tp)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0},
        {"head_dim": -1},
        {"num_kv_heads": 5},
        {"sliding_window": 128},
        {"num_sliding_layers": 3},
        {"sliding_window": 128, "num_sliding_layers": 33},
        {"moe": MoE(4, 5, 128)},
    ],
)
def test_impossible_model_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"model 'llama-3\.1-8b': "):
        replace(MODELS["llama-3.1-8b"], **changes)


def test_model_is_found_by_name_id_or_path(tmp_path: Path) -> None:
    assert get_model("Llama-3.1-8B") is MODELS["llama-3.1-8b"]
    assert get_model("meta-llama/Llama-3.1-8B") is MODELS["llama-3.1-8b"]
    assert get_model("meta-llama/llama-3.1-8b-INSTRUCT") is MODELS["llama-3.1-8b"]
    folder = tmp_path / "tiny"
    folder.mkdir()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    config = {"model_type": "llama", "intermediate_size": 128, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    assert get_model(str(folder)) == get_model(str(folder / "config.json"))
    assert get_model(str(folder)).name == "tiny"


@pytest.mark.parametrize("name", ["llama-3.1-8", "meta-llama/Llama-3.1-9B"])
def test_unknown_model_suggests_the_near_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model.name: .* did you mean llama-3.1-8b\?"):
        get_model(name)


@pytest.mark.parametrize("name", ["", "x" * 10_000, "a\0b", "../nothing\nthere"])
def test_hostile_model_name_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_model(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("gpu", [gpu for gpu in HARDWARE.values() if gpu.name != "cpu-1core"], ids=str)
def test_hardware_numbers_are_plausible(gpu: Hardware) -> None:
    nominal = float(gpu.description.split()[-2]) * 1e9  # the description ends with "80 GB"
    assert (
        0.97 < gpu.memory / nominal < 1.08
    )  # the vendor's GB are GiB on all but the H200, less what is reserved
    assert 100 < gpu.flops / gpu.hbm_bandwidth < 450  # FLOP per byte at the roofline's ridge
    assert gpu.flops_int8 >= 1.98 * gpu.flops
    assert gpu.nvlink is None or gpu.nvlink > gpu.pcie


def test_hardware_lookup() -> None:
    assert get_hardware(" A100-80GB-SXM ").memory == 81_151 * 2**20
    with pytest.raises(
        ConfigError, match=r"hardware.gpu: 'a100-80gb-smx' is unknown; did you mean a100-80gb-sxm\?"
    ):
        get_hardware("a100-80gb-smx")
    with pytest.raises(ConfigError, match=r"'a100' is unknown; known: a100-40gb-sxm, .*rtx-pro-6000"):
        get_hardware("a100")


def test_impossible_hardware_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hardware 'h200': flops must be > 0, got nan"):
        replace(HARDWARE["h200"], flops=float("nan"))
