"""config.json files of transformers 4 and 5, of old and odd architectures, and hostile ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.specs import MODELS, Model, read_hf_config


def config(model_type: str | None = "llama", /, **fields: object) -> dict[str, object]:
    """The fields that every Llama-like config.json has, with some of them changed; None is JSON's null."""
    base = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
    named = {"model_type": model_type} if model_type else {}
    return {**named, **base, "intermediate_size": 11008, "torch_dtype": "float16", **fields}


def qwen3(hidden: int, heads: int, kv: int, layers: int, head_dim: int | None) -> dict[str, object]:
    fields = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv}
    return config("qwen3", num_hidden_layers=layers, head_dim=head_dim, **fields)


LLAMA_31 = config(
    num_key_value_heads=8,
    intermediate_size=14336,
    vocab_size=128256,
    max_position_embeddings=131072,
    rope_scaling={"factor": 8.0, "rope_type": "llama3"},
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
)
SHIPPED: dict[str, dict[str, object]] = {
    "llama-2-7b": config(num_key_value_heads=32, max_position_embeddings=4096),
    "llama-3.1-8b": LLAMA_31,
    "mistral-7b": {**LLAMA_31, "model_type": "mistral", "vocab_size": 32000, "max_position_embeddings": 32768}
    | {"sliding_window": 4096},
    "qwen2.5-7b": config("qwen2")
    | {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 131072}
    | {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
    | {"torch_dtype": "bfloat16"},
    "qwen3-8b": {**qwen3(4096, 32, 8, 36, 128), "intermediate_size": 12288, "vocab_size": 151936}
    | {"max_position_embeddings": 40960, "attention_bias": False, "sliding_window": None, "torch_dtype": None}
    | {"dtype": "bfloat16", "layer_types": ["full_attention"] * 36, "rope_parameters": {"rope_theta": 1e6}},
    "mixtral-8x7b": {
        **LLAMA_31,
        "model_type": "mixtral",
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
    }
    | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "deepseek-v3": config("deepseek_v3")
    | {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280}
    | {"num_key_value_heads": 128, "intermediate_size": 18432, "max_position_embeddings": 163840}
    | {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    | {"v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1}
    | {"moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1, "head_dim": 64}
    | {"topk_method": "noaux_tc", "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"}
    | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
}
FALCON = {"hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "vocab_size": 65024}
GPT2 = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "n_inner": None}


def kv(content: dict[str, object]) -> int:
    return read_hf_config(content).kv_bytes_per_token()


@pytest.mark.parametrize("name", SHIPPED)
def test_config_gives_the_shipped_model(name: str) -> None:
    read = read_hf_config(json.loads(json.dumps(SHIPPED[name])), name)
    assert read == replace(MODELS[name], source="config.json")


@pytest.mark.parametrize(
    ("content", "explicit", "derived"),
    [
        (qwen3(2560, 32, 8, 36, 128), 147456, 92160),
        (
            config("mistral", hidden_size=5120, num_hidden_layers=40, num_key_value_heads=8, head_dim=128),
            163840,
            204800,
        ),
        (qwen3(3584, 16, 4, 2, 256), 8192, 7168),
    ],
)
def test_cf_01_explicit_head_dim_wins_and_null_or_absent_is_derived(
    content: dict[str, object], explicit: int, derived: int
) -> None:
    assert kv(content) == explicit
    assert kv({**content, "head_dim": None}) == derived
    assert kv({key: value for key, value in content.items() if key != "head_dim"}) == derived


def test_cf_01_heads_that_do_not_divide_are_an_error() -> None:
    with pytest.raises(InputError, match=r"config.json: hidden_size 4096 is not a multiple of .* 33"):
        kv(config(num_attention_heads=33))
    with pytest.raises(InputError, match=r"num_attention_heads must be a whole number from 1 .* got 0"):
        kv(config(num_attention_heads=0))
    with pytest.raises(InputError, match=r"num_heads must be a multiple of num_kv_heads, got 32 and 5"):
        kv(config(num_key_value_heads=5))


@pytest.mark.parametrize("extra", [{}, {"num_kv_heads": 71}])
def test_cf_03_falcon_multi_query(extra: dict[str, int]) -> None:
    model = read_hf_config({"model_type": "falcon", **FALCON, "multi_query": True, "bias": False, **extra})
    assert model.kv_bytes_per_token() == 8192  # not 581,632
    assert model.num_params == 6_921_720_704  # tiiuae/falcon-7b
    assert model.attention == "MQA"


def test_cf_03_falcon_with_the_new_decoder_has_groups() -> None:
    sizes = {"hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "vocab_size": 65024}
    new = {"model_type": "falcon", **sizes, "new_decoder_architecture": True, "multi_query": True}
    assert kv({**new, "num_kv_heads": 8}) == 2 * 60 * 8 * 64 * 2  # tiiuae/falcon-40b


def test_cf_03_null_or_absent_kv_heads_are_all_heads() -> None:
    assert kv(config(num_key_value_heads=None)) == kv(config()) == 524288


def test_cf_03_nested_text_config_reads_like_a_flat_one() -> None:
    dtype = {"torch_dtype": LLAMA_31["torch_dtype"]}
    text = {key: value for key, value in LLAMA_31.items() if key != "torch_dtype"}
    nested = {"model_type": "llava", "vision_config": {"hidden_size": 1024}, "text_config": text, **dtype}
    flat, deep = read_hf_config(LLAMA_31), read_hf_config(nested)
    assert deep == replace(flat, source="config.json")
    unnamed = {key: value for key, value in text.items() if key != "model_type"}
    assert kv({"model_type": "llava", "text_config": unnamed}) == kv(LLAMA_31)


@pytest.mark.parametrize("named", [{"model_type": "gpt2"}, {}])
def test_cf_03_gpt2_names(named: dict[str, str]) -> None:
    model = read_hf_config({**GPT2, **named})
    assert model.kv_bytes_per_token() == 2 * 12 * 768 * 2
    assert (model.num_params, model.max_model_len) == (124_439_808, 1024)  # openai-community/gpt2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"model_type": "mamba", "d_model": 768, "n_layer": 24, "vocab_size": 50280},
            "hidden_size .*'mamba'",
        ),
        (config("jamba"), "model_type 'jamba' is not known here"),
        (config("qwen4"), "model_type 'qwen4' is not known here; did you mean qwen"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "text_config: num_hidden_layers"),
        ({"model_type": "llava", **FALCON}, "model_type 'llava' is not known"),
        (config(intermediate_size=None), "intermediate_size is missing, which model_type 'llama' needs"),
        (config("mixtral", num_local_experts=8), "num_experts_per_tok"),
        (config("deepseek_v3", kv_lora_rank=512), "qk_rope_head_dim is missing"),
        (config("gemma3_text", layer_types=["full_attention", "mamba"] * 16), "layer_types must be 32 of"),
        (config(quantization_config={"quant_method": "exl9"}), "quantization_config: quant_method 'exl9'"),
        (config(quantization_config={"quant_method": "gptq", "bits": 3}), "bits must be 4 or 8, got 3"),
        (config(torch_dtype="float12"), "dtype 'float12' is unknown"),
        ({}, "num_hidden_layers .*is missing"),
    ],
)
def test_cf_03_unknown_architecture_or_missing_field_is_named(content: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_hf_config(content)


def test_layers_with_a_window() -> None:
    def window(**fields: object) -> tuple[int | None, int]:
        model = read_hf_config(config(sliding_window=1024, **fields))  # type: ignore[arg-type]  # any JSON value
        return model.sliding_window, model.num_sliding_layers

    gemma3 = read_hf_config(config("gemma3_text", sliding_window=1024, num_hidden_layers=26))
    assert gemma3.num_sliding_layers == 22  # every sixth layer is full
    assert read_hf_config(config("gemma2", sliding_window=4096)).num_sliding_layers == 16
    assert window() == (1024, 32)
    assert window(layer_types=["sliding_attention", "full_attention"] * 16) == (1024, 16)
    assert window(layer_types=["full_attention"] * 32) == (None, 0)
    qwen = config("qwen2", sliding_window=4096, max_window_layers=28)
    assert read_hf_config({**qwen, "use_sliding_window": True}).num_sliding_layers == 4
    assert read_hf_config({**qwen, "use_sliding_window": False}).sliding_window is None


def test_experts_only_where_the_file_puts_them() -> None:
    sizes = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    moe = read_hf_config(config("qwen2_moe", **sizes, shared_expert_intermediate_size=5632)).moe
    assert moe is not None
    assert (moe.intermediate_size, moe.shared_intermediate_size, moe.num_dense_layers) == (1408, 5632, 0)
    sparse = read_hf_config(config("qwen3_moe", **sizes, decoder_sparse_step=2, mlp_only_layers=[1, 3])).moe
    assert sparse is not None
    assert sparse.num_dense_layers == 18
    assert read_hf_config(config("qwen3_moe", num_experts=0)).moe is None


def test_what_the_file_may_leave_out() -> None:
    model = read_hf_config(config(torch_dtype=None))
    assert (model.dtype, model.max_model_len, model.tied_embeddings) == ("bfloat16", 2048, False)
    assert read_hf_config(config("gemma", head_dim=256)).tied_embeddings
    assert (
        read_hf_config(config(quantization_config={"quant_method": "awq", "bits": 4})).quantization == "int4"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("hidden_size: 4096", "is not JSON"),
        ("[1, 2]", "must hold one JSON object, got list"),
        ("7", "must hold one JSON object, got int"),
        ("[" * 100_000, "is not JSON"),
        ('{"hidden_size": NaN}', "NaN is not a JSON number"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"a": "' + "x" * 10_000_000 + '"}', "10.0 MB is too large"),
        (json.dumps(config(hidden_size=-4096)), "hidden_size must be a whole number from 1 .*, got -4096"),
        (json.dumps(config(hidden_size="4096")), "hidden_size must be a whole number .*, got '4096'"),
        (json.dumps(config(hidden_size=4096.5)), "hidden_size must be a whole number .*, got 4096.5"),
        (json.dumps(config(hidden_size=True)), "hidden_size must be a whole number .*, got True"),
        (json.dumps(config(hidden_size=["x" * 10_000])), "hidden_size must be a whole number"),
        (json.dumps(config(num_hidden_layers=10**9)), "num_hidden_layers must be .* to 10,000"),
        (json.dumps(config("llama\n\x1b[31m")), "model_type must be a short text"),
        (json.dumps(config(tie_word_embeddings="no")), "tie_word_embeddings must be true or false"),
        (json.dumps({"text_config": "llama"}), "text_config must be an object"),
    ],
)
def test_hostile_file_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_hf_config(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < len(str(path)) + 250
    assert str(caught.value).isprintable()


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json: cannot be read: No such file"):
        read_hf_config(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary.json: is not JSON"):
        read_hf_config(tmp_path / "binary.json")
    with pytest.raises(InputError, match="is not a regular file"):
        read_hf_config("/dev/zero")


SCALARS = st.sampled_from([None, True, 0, 1, 3, -1, 2**70, 1.5, 1e300, "", "fp8", "\x1b[31m\n", "gpt2"])
JSON_VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.sampled_from("ab"), SCALARS)
KEYS = sorted(
    {key for content in SHIPPED.values() for key in content} | set(GPT2) | {"multi_query", "text_config"}
)


@given(st.sampled_from(sorted(SHIPPED)), st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, max_size=4))
def test_any_json_gives_a_model_or_an_input_error(name: str, changes: dict[str, object]) -> None:
    message = ""
    try:
        model = read_hf_config({**SHIPPED[name], **changes})
    except InputError as error:
        message = str(error)
    else:
        assert isinstance(model, Model)
        assert model.num_params > 0
    assert message.isprintable()
