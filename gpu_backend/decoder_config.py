"""What the decoder must know of a model beyond its sizes: rotary embedding, biases, windows, end tokens.

Read from a Hugging Face config.json of transformers 4 or 5, for the families llama (2, 3, 3.1), mistral,
qwen2 and qwen3; another family, another activation, quantised weights or another rotary scaling are
refused rather than run wrong. Sizes and their checks: simulator.specs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from simulator.errors import ConfigError, InputError
from simulator.specs import Model, read_hf_config
from simulator.specs.fields import Fields
from simulator.specs.hf_config import load_json

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
DEFAULT_ROPE_THETA = 10_000.0  # transformers' default in all four families
DEFAULT_NORM_EPS = 1e-6  # likewise


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear` divides all of them by `factor`.

    `llama3` divides long waves only: those beyond original_max_len / low_freq_factor tokens, and in part
    those down to original_max_len / high_freq_factor (Llama 3.1's release; transformers has the formula).
    """

    kind: str  # linear or llama3
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_len: int = 0  # tokens

    def __post_init__(self) -> None:
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor must be above low_freq_factor, got {self.high_freq_factor:g} "
                f"and {self.low_freq_factor:g}"
            )


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder. Sizes count numbers; `dtype` is the name of the type that the model is served in."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    dtype: str = "bfloat16"
    rms_norm_eps: float = DEFAULT_NORM_EPS
    rope_theta: float = DEFAULT_ROPE_THETA
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    out_bias: bool = False  # of attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of every query and key head, before the rotary embedding (Qwen3)
    sliding_window: int | None = None  # tokens, itself included
    sliding_layers: tuple[bool, ...] = ()  # which layers have the window
    tied_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, got {self.head_dim}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.sliding_window is not None and len(self.sliding_layers) != self.num_layers:
            raise ValueError(f"sliding_layers must name all {self.num_layers} layers")

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values of one token."""
        kv = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv, kv

    def window(self, layer: int) -> int | None:
        """Return how many tokens a row of this layer reads at most, None for all."""
        return self.sliding_window if self.sliding_window and self.sliding_layers[layer] else None

    def first_layers(self, num_layers: int | None) -> DecoderConfig:
        """Return the same decoder with its first layers only, None for all."""
        if num_layers is None:
            return self
        if not 1 <= num_layers <= self.num_layers:
            raise ConfigError(f"num_layers must be 1..{self.num_layers}, got {num_layers}")
        return replace(self, num_layers=num_layers, sliding_layers=self.sliding_layers[:num_layers])

    @classmethod
    def of(cls, model: Model) -> DecoderConfig:
        """Take a shipped model's sizes, for random weights: rotary embedding and norms as by default."""
        beyond = {
            "mixture-of-experts layers": model.moe,
            "multi-head latent attention": model.mla,
            "an MLP without a gate": not model.gated_mlp,
            "norms or biases of other families": model.extra_params,
        }
        for what, present in beyond.items():
            if present:
                raise ConfigError(f"model {model.name!r} has {what}, which gpu_backend does not run")
        return _from_model(model, tuple([True] * model.num_sliding_layers))

    @classmethod
    def read(cls, source: str | Path) -> DecoderConfig:
        """Read a config.json, or the one of this folder; InputError, in one line, where it is not ours."""
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        fields = Fields(load_json(path), str(path))
        family = _family(fields)
        model = read_hf_config(path)
        scaling_fields, theta = _rope_fields(fields)
        biased = family in ("llama", "qwen3") and fields.flag("attention_bias")
        try:
            return replace(
                _from_model(model, _sliding_types(fields)),
                rms_norm_eps=fields.maybe_number("rms_norm_eps") or DEFAULT_NORM_EPS,
                rope_theta=theta,
                rope_scaling=_rope_scaling(scaling_fields, model.max_model_len),
                qkv_bias=family == "qwen2" or biased,
                out_bias=biased,
                mlp_bias=family == "llama" and fields.flag("mlp_bias"),
                eos_token_ids=_eos_token_ids(fields, path),
            )
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None


def _from_model(model: Model, sliding: tuple[bool, ...]) -> DecoderConfig:
    """Where the file names no layers, the window holds in the last ones (Qwen) or in all (Mistral)."""
    if model.sliding_window is None:
        sliding = ()
    elif len(sliding) != model.num_layers:
        full = model.num_layers - model.num_sliding_layers
        sliding = tuple(layer >= full for layer in range(model.num_layers))
    return DecoderConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        dtype=model.dtype,
        qkv_bias=model.qkv_bias,
        qk_norm=model.qk_norm,
        sliding_window=model.sliding_window,
        sliding_layers=sliding,
        tied_embeddings=model.tied_embeddings,
    )


def _family(fields: Fields) -> str:
    """Refuse what would load and compute something else."""
    kind = fields.text("model_type") or ""
    supported = f"gpu_backend runs {', '.join(SUPPORTED)}"
    if kind not in SUPPORTED:
        experts = any(key in fields.content for key in ("num_local_experts", "num_experts"))
        experts = experts or "n_routed_experts" in fields.content
        what = " (mixture of experts)" if experts else ""
        what = " (multi-head latent attention)" if "kv_lora_rank" in fields.content else what
        raise InputError(f"{fields.where}: model_type {kind!r}{what} is not supported: {supported}")
    activation = fields.text("hidden_act") or "silu"
    if activation != "silu":
        raise InputError(f"{fields.where}: hidden_act {activation!r} is not supported: only silu is")
    quantization = fields.nested("quantization_config")
    if quantization:
        method = quantization.text("quant_method")
        raise InputError(
            f"{fields.where}: quant_method {method!r} is not supported: load the unquantised checkpoint"
        )
    return kind


def _sliding_types(fields: Fields) -> tuple[bool, ...]:
    return tuple(kind == "sliding_attention" for kind in fields.items("layer_types"))


def _rope_fields(fields: Fields) -> tuple[Fields | None, float]:
    """Return the scaling's fields and the base: transformers 5 keeps both in `rope_parameters`."""
    new = fields.nested("rope_parameters")
    theta = (new and new.maybe_number("rope_theta")) or fields.maybe_number("rope_theta")
    return new or fields.nested("rope_scaling"), theta or DEFAULT_ROPE_THETA


def _rope_scaling(fields: Fields | None, max_model_len: int) -> RopeScaling | None:
    if fields is None:
        return None
    partial = fields.maybe_number("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise InputError(f"{fields.where}: partial_rotary_factor {partial:g} is not supported: only 1 is")
    kind = fields.text("rope_type", "type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, fields.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind,
            fields.number("factor"),
            fields.number("low_freq_factor"),
            fields.number("high_freq_factor"),
            fields.maybe_count("original_max_position_embeddings") or max_model_len,
        )
    raise InputError(f"{fields.where}: rope_type {kind!r} is not supported: default, linear and llama3 are")


def _eos_token_ids(fields: Fields, path: Path) -> tuple[int, ...]:
    """Collect the end tokens of config.json and of generation_config.json, where chat models add theirs."""
    places = [fields]
    beside = path.with_name("generation_config.json")
    if beside.is_file():
        places.append(Fields(load_json(beside), str(beside)))
    found: list[int] = []
    for place in places:
        value = place.content.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise InputError(f"{place.where}: eos_token_id must hold token ids, got {str(token)[:40]!r}")
            found.append(token)
    return tuple(dict.fromkeys(found))
