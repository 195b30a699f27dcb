"""Read a Hugging Face `config.json` (transformers 4 or 5) into a `Model`, without transformers or network.

Field names: transformers' configuration classes. A field that may be left out takes the default its
family has there; everything else that is missing is an error, never a guess. `max_position_embeddings`
and the dtype follow vLLM: 2,048 where the file is silent, and bfloat16 for "float32" or silence.
Left out: rope scaling (the file's own length holds) and the vision tower of a multimodal model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, NoReturn

from simulator.errors import InputError, suggest
from simulator.specs.fields import Fields
from simulator.specs.models import DTYPE_BITS, MLA, Model, MoE

MAX_FILE_BYTES = 4 * 2**20  # real ones have some kB; the largest, with label tables, some hundred
NESTED = ("text_config", "llm_config", "language_config")  # where multimodal models keep the language model
DEFAULT_MAX_MODEL_LEN = 2048  # vLLM's where no key gives one


class Family(NamedTuple):
    """What an architecture's name says and its config.json does not."""

    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    tied_embeddings: bool = False  # where the file is silent
    extra_norms: int = 0  # norms per layer beyond two
    sliding_pattern: int = 0  # every n-th layer is full; 0: the window holds in every layer
    gpt2_names: bool = False  # biases everywhere, learned positions


_PLAIN, _QWEN2, _QWEN3 = Family(), Family(qkv_bias=True), Family(qk_norm=True)
_GPT2 = Family(qkv_bias=True, gated_mlp=False, tied_embeddings=True, gpt2_names=True)
_FALCON = Family(gated_mlp=False, tied_embeddings=True)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "phi3", "deepseek_v2", "deepseek_v3", "kimi_k2"), _PLAIN),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl"), _QWEN2),
    **dict.fromkeys(("qwen2_5_vl_text", "qwen2_audio_text"), _QWEN2),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text"), _QWEN3),
    "gemma": Family(tied_embeddings=True),
    "gemma2": Family(tied_embeddings=True, extra_norms=2, sliding_pattern=2),
    "gemma3_text": Family(qk_norm=True, tied_embeddings=True, extra_norms=2, sliding_pattern=6),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _GPT2),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), _FALCON),
}


def read_hf_config(source: str | Path | dict[str, object], name: str | None = None) -> Model:
    """Read a config.json, a folder that holds one, or its parsed content.

    InputError, in one line, names the file, the field and the rule where it cannot be read.
    """
    if isinstance(source, dict):
        return _model(source, name or "config", "config.json")
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    called = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _model(load_json(path), name or called, str(path))


def load_json(path: Path) -> dict[str, object]:
    """Read a small file of one JSON object; InputError, in one line, where it is none."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe or device could be endless
            raise InputError(f"{path}: is not a regular file")
        if size > MAX_FILE_BYTES:
            raise InputError(f"{path}: {size / 1e6:.1f} MB is too large for a {path.name} (at most 4 MiB)")
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: is not JSON: {reason}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: must hold one JSON object, got {type(content).__name__}")
    return content


def _model(config: dict[str, object], name: str, where: str) -> Model:
    outer = Fields(config, where)
    fields = next((inner for key in NESTED if (inner := outer.nested(key))), outer)
    kind = fields.text("model_type")
    fields.owner = f"model_type {kind!r}" if kind else ""
    layers = fields.count("num_hidden_layers", "n_layer", "num_layers", most=10_000)
    hidden = fields.count("hidden_size", "n_embd")
    heads = fields.count("num_attention_heads", "n_head", "num_heads")
    vocab = fields.count("vocab_size")
    if kind and kind not in FAMILIES:
        raise InputError(f"{fields.where}: model_type {kind!r} is not known here{suggest(kind, FAMILIES)}")
    family = FAMILIES[kind] if kind else (_GPT2 if "n_embd" in fields.content else _PLAIN)
    mla = _mla(fields)
    head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else _head_dim(fields, hidden, heads)
    window, sliding = _sliding(fields, family, kind, layers)
    max_len = fields.maybe_count("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    max_len = max_len or DEFAULT_MAX_MODEL_LEN
    width = _mlp_width(fields, family, hidden)
    moe = _moe(fields, layers)
    try:
        return Model(
            name=name,
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=_kv_heads(fields, family, heads),
            head_dim=head_dim,
            intermediate_size=width,
            vocab_size=vocab,
            max_model_len=max_len,
            dtype=_dtype(fields, outer),
            quantization=_quantization(fields, outer),
            tied_embeddings=_tied(fields, outer, family),
            gated_mlp=family.gated_mlp,
            qkv_bias=family.qkv_bias or fields.flag("attention_bias") or fields.flag("bias"),
            qk_norm=family.qk_norm,
            sliding_window=window,
            num_sliding_layers=sliding,
            moe=moe,
            mla=mla,
            extra_params=_extra_params(fields, family, kind, (layers, hidden, width, max_len), moe),
            source=where,
        )
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    explicit = fields.maybe_count("head_dim")
    if explicit is None and hidden % heads:
        raise InputError(
            f"{fields.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}, "
            "and there is no head_dim"
        )
    return explicit or hidden // heads


def _kv_heads(fields: Fields, family: Family, heads: int) -> int:
    """Falcon's `multi_query` overrules its head counts, unless the decoder is the new one."""
    multi_query = fields.flag("multi_query", default=family is _FALCON and "n_head_kv" not in fields.content)
    if multi_query and not fields.flag("new_decoder_architecture"):
        return 1
    return fields.maybe_count("num_key_value_heads", "num_kv_heads", "n_head_kv") or heads


def _mlp_width(fields: Fields, family: Family, hidden: int) -> int:
    if family.gated_mlp:
        return fields.count("intermediate_size")
    return fields.maybe_count("n_inner", "ffn_hidden_size", "intermediate_size") or 4 * hidden


def _mla(fields: Fields) -> MLA | None:
    rank = fields.maybe_count("kv_lora_rank")
    if rank is None:
        return None
    return MLA(
        kv_lora_rank=rank,
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
        q_lora_rank=fields.maybe_count("q_lora_rank"),
    )


def _moe(fields: Fields, layers: int) -> MoE | None:
    experts = fields.maybe_count("num_local_experts", "num_experts", "n_routed_experts", least=0)
    if not experts:
        return None
    width = fields.maybe_count("moe_intermediate_size") or fields.count("intermediate_size")
    shared = fields.maybe_count("shared_expert_intermediate_size", least=0)
    shared = shared or width * (fields.maybe_count("n_shared_experts", least=0) or 0)
    first = fields.maybe_count("first_k_dense_replace", least=0) or 0
    every = fields.maybe_count("moe_layer_freq") or 1
    step, dense = fields.maybe_count("decoder_sparse_step") or 1, set(fields.items("mlp_only_layers"))
    sparse = [i for i in range(first, layers) if i % every == 0 and (i + 1) % step == 0 and i not in dense]
    per_token = fields.count("num_experts_per_tok", "num_experts_per_token", most=experts)
    return MoE(experts, per_token, width, shared, layers - len(sparse))


def _sliding(fields: Fields, family: Family, kind: str | None, layers: int) -> tuple[int | None, int]:
    """Return the window and how many layers have it: by `layer_types`, else by the family's rule."""
    window = fields.maybe_count("sliding_window", least=0) or None
    types = fields.items("layer_types")
    if types:
        if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
            rule = f"must be {layers} of full_attention and sliding_attention"
            raise InputError(f"{fields.where}: layer_types {rule}")
        count = types.count("sliding_attention")
        return (fields.count("sliding_window"), count) if count else (None, 0)
    if window is None:
        return None, 0
    if (kind or "").startswith("qwen"):
        start = fields.maybe_count("max_window_layers", least=0) or 0
        count = max(0, layers - start) if fields.flag("use_sliding_window") else 0
    else:
        pattern = fields.maybe_count("sliding_window_pattern") or family.sliding_pattern
        count = layers - layers // pattern if pattern else layers
    return (window, count) if count else (None, 0)


def _dtype(fields: Fields, outer: Fields) -> str:
    dtype = fields.text("dtype", "torch_dtype") or outer.text("dtype", "torch_dtype") or "float32"
    dtype = dtype.removeprefix("torch.")
    if dtype not in DTYPE_BITS:
        raise InputError(f"{fields.where}: dtype {dtype!r} is unknown{suggest(dtype, DTYPE_BITS)}")
    return "bfloat16" if dtype == "float32" else dtype


def _quantization(fields: Fields, outer: Fields) -> str | None:
    """Return the type of the linear layers' weights, as `quantization_config` says."""
    how = fields.nested("quantization_config") or outer.nested("quantization_config")
    if how is None:
        return None
    method = how.text("quant_method")
    if method == "fp8":
        return "fp8"
    if method in ("awq", "gptq"):
        bits = how.count("bits", "w_bit")
        if bits in (4, 8):
            return f"int{bits}"
        raise InputError(f"{how.where}: bits must be 4 or 8, got {bits}")
    raise InputError(f"{how.where}: quant_method {method!r} is not one of fp8, awq, gptq")


def _tied(fields: Fields, outer: Fields, family: Family) -> bool:
    default = outer.flag("tie_word_embeddings", default=family.tied_embeddings)
    return fields.flag("tie_word_embeddings", default=default)


def _extra_params(
    fields: Fields, family: Family, kind: str | None, sizes: tuple[int, int, int, int], moe: MoE | None
) -> int:
    """Count the biases, norms and learned positions that the general formula leaves out."""
    layers, hidden, width, positions = sizes
    if family.gpt2_names:  # every norm and matrix has a bias; positions are learned
        return positions * hidden + layers * (4 * hidden + width) + hidden
    extra = layers * family.extra_norms * hidden
    if family is _FALCON:  # LayerNorms have biases; its smaller decoder has one per layer, the other two
        two_norms = fields.flag("new_decoder_architecture") or not fields.flag("parallel_attn", default=True)
        biases = 2 * hidden + width if fields.flag("bias") else 0
        return layers * (2 * hidden * two_norms + biases) + hidden
    if fields.flag("attention_bias"):
        extra += layers * hidden
    if fields.flag("mlp_bias"):
        extra += layers * (2 * width + hidden)
    if moe and fields.text("topk_method") == "noaux_tc":  # the router's correction bias, DeepSeek-V3
        extra += (layers - moe.num_dense_layers) * moe.num_experts
    if moe and kind == "qwen2_moe":  # the gate of the shared expert
        extra += (layers - moe.num_dense_layers) * hidden
    return extra
