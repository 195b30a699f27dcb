"""Checkpoints: what loads, in which spellings, and what is refused in which words."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_models import FAMILIES, LLAMA3_ROPE, logits, save_model
from gpu_sequences import Pages
from safetensors.torch import load_file, save_file

from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.checkpoint import INDEX, WHOLE, checkpoint_folder
from gpu_backend.decoder_config import DecoderConfig, RopeScaling
from gpu_backend.loader import load_decoder, random_decoder
from gpu_backend.model import Decoder, Linear
from simulator.errors import ConfigError, InputError
from simulator.specs import MODELS, get_model

TEXT = [5, 9, 2, 77, 31, 8, 60]
Json = dict[str, Any]


def edit(path: Path, change: Callable[[Json], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WHOLE)
    change(tensors)
    save_file(tensors, folder / WHOLE)


def computed(decoder: Decoder) -> torch.Tensor:
    pages = Pages(decoder, SdpaGather())
    return pages.step((pages.sequence(TEXT), len(TEXT)))


def load(folder: Path) -> Decoder:
    return load_decoder(folder, "cpu", torch.float32)


# ---- what loads ----


def test_shards_through_their_index(tmp_path: Path) -> None:
    model = save_model("qwen2", tmp_path)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    torch.testing.assert_close(computed(load(tmp_path / "sharded")), logits(model, TEXT), rtol=0, atol=1e-5)


def test_first_layers_only(tmp_path: Path) -> None:
    save_model("mistral", tmp_path)
    decoder = load_decoder(tmp_path, "cpu", torch.float32, num_layers=2)
    assert (decoder.config.num_layers, len(decoder.layers)) == (2, 2)
    edit(tmp_path / "config.json", lambda config: config.update(num_hidden_layers=2))
    edit_tensors(tmp_path, lambda t: [t.pop(name) for name in list(t) if name.startswith("model.layers.2.")])
    assert torch.equal(computed(decoder), computed(load(tmp_path)))
    with pytest.raises(ConfigError, match=r"num_layers must be 1\.\.2, got 3"):
        load_decoder(tmp_path, "cpu", torch.float32, num_layers=3)


def test_what_old_versions_saved_besides_is_ignored(tmp_path: Path) -> None:
    model = save_model("llama, tied, biases", tmp_path)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["lm_head.weight"] = torch.ones(97, 32)

    edit_tensors(tmp_path, add)
    torch.testing.assert_close(computed(load(tmp_path)), logits(model, TEXT), rtol=0, atol=1e-5)


def test_weights_take_the_type_asked_for(tmp_path: Path) -> None:
    save_model("llama 2", tmp_path)
    whole = load(tmp_path)
    half = load_decoder(tmp_path, "cpu", torch.float16)
    assert half.dtype == torch.float16
    assert torch.equal(half.embedding, whole.embedding.half())


@pytest.mark.parametrize("name", FAMILIES)
def test_both_spellings_of_a_config_read_the_same(tmp_path: Path, name: str) -> None:
    """transformers 4 wrote `rope_theta` and `rope_scaling` beside each other, and `torch_dtype`."""
    save_model(name, tmp_path)
    new = DecoderConfig.read(tmp_path)

    def older(config: Json) -> None:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        kind = rope.pop("rope_type")
        config["rope_scaling"] = {"type": kind, **rope} if kind != "default" else None
        config["torch_dtype"] = config.pop("dtype")
        config.pop("layer_types", None)

    edit(tmp_path / "config.json", older)
    assert DecoderConfig.read(tmp_path) == new
    assert DecoderConfig.read(tmp_path / "config.json") == new


def test_config_of_llama_3_1(tmp_path: Path) -> None:
    save_model("llama 3.1", tmp_path, eos_token_id=7)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    assert DecoderConfig.read(tmp_path) == DecoderConfig(
        num_layers=3,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=97,
        max_model_len=128,
        rope_theta=500.0,
        rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 32),
        eos_token_ids=(7, 9),
    )


def test_which_layers_have_the_window(tmp_path: Path) -> None:
    save_model("qwen2, windows in the last layers", tmp_path)
    config = DecoderConfig.read(tmp_path)
    assert [config.window(layer) for layer in range(3)] == [None, 6, 6]
    edit(
        tmp_path / "config.json",
        lambda c: c.update(layer_types=["sliding_attention", "full_attention", "full_attention"]),
    )
    config = DecoderConfig.read(tmp_path)
    assert [config.window(layer) for layer in range(3)] == [6, None, None]


# ---- random weights ----


def test_random_weights_are_the_same_for_a_seed_and_never_zero() -> None:
    config = replace(
        DecoderConfig.of(get_model("tiny-llama-28m")),
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        vocab_size=97,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        qk_norm=True,
    )
    first, same, other = (random_decoder(config, "cpu", torch.float32, seed) for seed in (1, 1, 2))
    for (_, name, a), (_, _, b), (_, _, c) in zip(
        first.projections(), same.projections(), other.projections(), strict=True
    ):
        assert isinstance(a, Linear) and isinstance(b, Linear) and isinstance(c, Linear)  # noqa: PT018
        assert a.bias is not None, name
        assert torch.equal(a.weight, b.weight)
        assert not torch.equal(a.weight, c.weight)
        assert a.bias.std().item() == pytest.approx(0.02, rel=0.3)
        assert a.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert first.layers[1].q_norm.mean().item() == pytest.approx(1.0, abs=0.02)
    assert first.final_norm.min() > 0.8
    assert computed(first).std() > 0
    assert torch.equal(computed(first), computed(same))


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_have_a_decoder_or_a_reason(name: str) -> None:
    model = get_model(name)
    if model.moe or model.mla:
        with pytest.raises(ConfigError, match="which gpu_backend does not run"):
            DecoderConfig.of(model)
        return
    config = DecoderConfig.of(model)
    assert (config.num_layers, config.qkv_bias, config.qk_norm) == (
        model.num_layers,
        model.qkv_bias,
        model.qk_norm,
    )
    windows = [config.window(layer) for layer in range(config.num_layers)]
    assert sum(window is not None for window in windows) == model.num_sliding_layers


# ---- what does not ----

CONFIG_ERRORS: dict[str, tuple[Json, str]] = {
    "moe": (
        {"model_type": "mixtral", "num_local_experts": 8},
        r"'mixtral' \(mixture of experts\) is not supp",
    ),
    "mla": (
        {"model_type": "deepseek_v3", "n_routed_experts": 8, "kv_lora_rank": 512},
        r"'deepseek_v3' \(multi-head latent attention\) is not supported: gpu_backend runs llama",
    ),
    "another family": (
        {"model_type": "gemma2"},
        "model_type 'gemma2' is not supported: gpu_backend runs llama",
    ),
    "no family": ({"model_type": None}, "model_type '' is not supported"),
    "yarn": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
        "rope_parameters: rope_type 'yarn' is not supported: default, linear and llama3 are",
    ),
    "dynamic, as transformers 4 had it": (
        {"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_scaling: rope_type 'dynamic' is not supported",
    ),
    "no factor": ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor is missing"),
    "factor of 0": (
        {"rope_parameters": {**LLAMA3_ROPE, "factor": 0}},
        "factor must be a number above 0, got 0",
    ),
    "waves of no length": (
        {"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 4}},
        "high_freq_factor must be above low_freq_factor, got 4 and 4",
    ),
    "partly rotated": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor 0.5 is not supported",
    ),
    "gelu": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    "quantised": (
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        "quant_method 'awq' is not supported: load the unquantised checkpoint",
    ),
    "odd heads": ({"head_dim": 7}, "head_dim must be even, got 7"),
    "end token": ({"eos_token_id": "</s>"}, "eos_token_id must hold token ids, got '</s>'"),
    "eps": ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number above 0, got '1e-5'"),
}


@pytest.mark.parametrize("name", CONFIG_ERRORS)
def test_configs_that_are_refused(tmp_path: Path, name: str) -> None:
    change, message = CONFIG_ERRORS[name]
    save_model("llama 2", tmp_path)
    edit(tmp_path / "config.json", lambda config: config.update(change))
    refused(tmp_path, message)


def refused(folder: Path | str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_decoder(folder, "cpu", torch.float32)
    assert "\n" not in str(error.value)


Tensors = dict[str, torch.Tensor]
NAME = "model.layers.1.self_attn.k_proj.weight"
TENSOR_ERRORS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "missing": (lambda t: t.pop(NAME), f"tensor {NAME} is missing, expected 16 x 32"),
    "wrong shape": (
        lambda t: t.update({NAME: torch.ones(32, 32)}),
        f"{WHOLE}: tensor {NAME} must be 16 x 32 by config.json, is 32 x 32",
    ),
    "transposed": (
        lambda t: t.update({"model.layers.0.mlp.down_proj.weight": torch.ones(48, 32)}),
        "down_proj.weight must be 32 x 48 by config.json, is 48 x 32",
    ),
    "a norm of one number would broadcast": (
        lambda t: t.update({"model.norm.weight": torch.ones(1)}),
        "model.norm.weight must be 32 by config.json, is 1",
    ),
    "quantised": (
        lambda t: t.update({NAME: torch.ones(16, 32, dtype=torch.int8)}),
        f"tensor {NAME} is of type I8; only F64, F32, F16, BF16 can be loaded",
    ),
    "a bias that the config does not know": (
        lambda t: t.update({"model.layers.1.self_attn.k_proj.bias": torch.ones(16)}),
        "tensor model.layers.1.self_attn.k_proj.bias has no place in the model that config.json describes",
    ),
    "no head": (lambda t: t.pop("lm_head.weight"), "tensor lm_head.weight is missing, expected 97 x 32"),
}


@pytest.mark.parametrize("name", TENSOR_ERRORS)
def test_tensors_that_are_refused(tmp_path: Path, name: str) -> None:
    change, message = TENSOR_ERRORS[name]
    save_model("llama 3.1", tmp_path)
    edit_tensors(tmp_path, change)
    refused(tmp_path, message)


def test_a_missing_shard(tmp_path: Path) -> None:
    save_model("llama 2", tmp_path).save_pretrained(tmp_path / "s", max_shard_size="20KB")
    shard = sorted((tmp_path / "s").glob("*.safetensors"))[1]
    shard.unlink()
    refused(tmp_path / "s", f"{shard.name} is missing, which {INDEX} names")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ([], "weight_map must be an object of tensor names and file names"),
        ({"a": 3}, "weight_map must be an object of tensor names and file names"),
        ({"a": "../secret.safetensors"}, "must name files of its own folder, got '../secret.safetensors'"),
        (
            {"model.embed_tokens.weight": "other.safetensors"},
            "tensor model.embed_tokens.weight cannot be read",
        ),
    ],
)
def test_an_index_that_is_wrong(tmp_path: Path, weight_map: object, message: str) -> None:
    save_model("llama 2", tmp_path)
    save_file({"b": torch.ones(1)}, tmp_path / "other.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    refused(tmp_path, message)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b'\x08\0\0\0\0\0\0\0{"a": 1}', None])
def test_a_corrupt_file(tmp_path: Path, content: bytes | None) -> None:
    """Empty, a header of absurd length, a header that is no header, and a file cut short."""
    save_model("llama 2", tmp_path)
    path = tmp_path / WHOLE
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    refused(tmp_path, f"{WHOLE}: is not a whole safetensors file")


def test_folders_without_what_is_needed(tmp_path: Path) -> None:
    refused(tmp_path, r"config\.json: cannot be read: No such file")
    save_model("llama 2", tmp_path)
    (tmp_path / WHOLE).unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))
    refused(tmp_path, f"has neither {WHOLE} nor {INDEX}")
    refused(tmp_path / "absent", "is no folder with config.json and safetensors")


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("some-one/some-model", "is no local folder, and the hub did not give it: ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("some-one/some-model", "to download it from the hub huggingface_hub must be installed")


def test_the_hub_gives_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Hub:
        @staticmethod
        def snapshot_download(name: str, allow_patterns: list[str]) -> str:
            asked.append((name, allow_patterns))
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert checkpoint_folder("some-one/some-model") == tmp_path
    assert asked == [("some-one/some-model", ["*.json", "*.safetensors"])]
