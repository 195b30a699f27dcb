"""A transformer's shape, and what follows from it: parameters, weight bytes, KV bytes, GEMM shapes.

Covers decoder-only models with MHA, GQA, MQA or multi-head latent attention (DeepSeek-V2, section 2.1),
dense or mixture-of-experts layers, and layers that see only a sliding window. Under tensor parallelism
everything is per rank, as Megatron-LM and vLLM cut it: heads, MLP widths and the vocabulary are split; KV
heads are replicated once there are fewer of them than ranks; MLA's latent, norms and routers are whole on
every rank.
Left out: vision towers, multi-token-prediction heads, scales of 8-bit weights (one a channel: 0.1 %).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.errors import ConfigError, suggest

DTYPE_BITS = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "int4": 4,
}

QUANTIZATIONS = ("int8", "int4", "fp8")
"""What `Model.quantized` takes: weights in 8 or 4 bits with 16-bit activations, or fp8 (latency/roofline)."""

INT4_GROUP_BITS = 16 + 4
INT4_GROUP = 128
"""Weights that share a 16-bit scale and a 4-bit zero point: the usual group of AWQ and GPTQ checkpoints."""

KV_SCALE_BYTES = 4
"""One fp32 scale for each token, head, and of K and V: vLLM's `--kv-cache-dtype int8_per_token_head`."""


def weight_bits(dtype: str) -> float:
    """Return the bits of one weight of a linear layer, its share of a group's scale and zero point included.

    >>> weight_bits("int8"), weight_bits("int4")
    (8, 4.15625)
    """
    return dtype_bits(dtype) + (INT4_GROUP_BITS / INT4_GROUP if dtype == "int4" else 0)


def dtype_bits(dtype: str) -> int:
    """Return the bits of one number of this type; ConfigError for an unknown one."""
    if dtype not in DTYPE_BITS:
        raise ConfigError(f"dtype {dtype[:60]!r} is unknown{suggest(dtype, ['auto', *DTYPE_BITS])}")
    return DTYPE_BITS[dtype]


@dataclass(frozen=True, slots=True)
class MoE:
    """The mixture of experts that replaces the MLP in all but `num_dense_layers` layers."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int  # of one routed expert
    shared_intermediate_size: int = 0  # of all shared experts together
    num_dense_layers: int = 0  # layers that keep the ordinary MLP
    skew: float = 0.0  # Zipf exponent of how popular experts are (`simulator.latency.experts`)
    ranks: int = 1  # GPUs over which whole experts are spread; of a rank's shape, as `rank_of` makes it


@dataclass(frozen=True, slots=True)
class MLA:
    """Multi-head latent attention: a layer caches `kv_lora_rank + qk_rope_head_dim` numbers a token, once."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None  # None: queries are projected directly


@dataclass(frozen=True, slots=True)
class Model:
    """One decoder-only transformer. Sizes count numbers, not bytes; `source` says where they come from."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of a query; with MLA its rope and nope parts together
    intermediate_size: int  # of the dense MLP
    vocab_size: int
    max_model_len: int  # tokens, output included
    dtype: str = "bfloat16"
    quantization: str | None = None  # type of the linear layers' weights where it is not `dtype`
    tied_embeddings: bool = False
    gated_mlp: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None  # tokens that `num_sliding_layers` of the layers can look back
    num_sliding_layers: int = 0
    moe: MoE | None = None
    mla: MLA | None = None
    extra_params: int = 0  # parameters outside the formula: learned positions, other biases and norms
    source: str = ""

    def __post_init__(self) -> None:
        fields = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
        for field in (*fields, "vocab_size", "max_model_len"):
            if getattr(self, field) < 1:
                raise ValueError(f"model {self.name!r}: {field} must be >= 1, got {getattr(self, field)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model {self.name!r}: num_heads must be a multiple of num_kv_heads, "
                f"got {self.num_heads} and {self.num_kv_heads}"
            )
        if (self.sliding_window is None) != (self.num_sliding_layers == 0):
            raise ValueError(f"model {self.name!r}: sliding_window and num_sliding_layers go together")
        if not 0 <= self.num_sliding_layers <= self.num_layers:
            raise ValueError(
                f"model {self.name!r}: num_sliding_layers must be 0..{self.num_layers}, "
                f"got {self.num_sliding_layers}"
            )
        if self.moe and not 1 <= self.moe.experts_per_token <= self.moe.num_experts:
            raise ValueError(
                f"model {self.name!r}: experts_per_token must be 1..{self.moe.num_experts}, "
                f"got {self.moe.experts_per_token}"
            )
        dtype_bits(self.dtype)
        dtype_bits(self.quantization or self.dtype)

    def quantized(self, how: str) -> Model:
        """Return the same model with its linear layers in another type; ConfigError for an unknown one."""
        if how not in QUANTIZATIONS:
            known = ", ".join(QUANTIZATIONS)
            raise ConfigError(f"quantization {how[:60]!r} is not one of {known}{suggest(how, QUANTIZATIONS)}")
        return replace(self, quantization=how)

    # ---- shapes ----

    def heads_per_rank(self, tensor_parallel_size: int = 1) -> tuple[int, int]:
        """Return the query and KV heads that one rank holds; ConfigError where they cannot be split."""
        tp = tensor_parallel_size
        heads = self._split("attention heads", self.num_heads, tp)
        if max(self.num_kv_heads, tp) % min(self.num_kv_heads, tp):
            raise ConfigError(
                f"tensor_parallel_size {tp} neither divides nor is a multiple of "
                f"the {self.num_kv_heads} KV heads of {self.name}"
            )
        return heads, max(1, self.num_kv_heads // tp)

    def layer_gemms(self, tensor_parallel_size: int = 1) -> list[tuple[int, int]]:
        """List the matrices (n, k) that every token is multiplied with in one layer, on one rank.

        Order: attention projections in and out, then the MLP's up (gate and up together) and down. A
        mixture of experts lists the up and down of its shared experts and of `experts_per_token` routed
        ones, in a layer that has them; a batch reads more experts than one token uses.
        """
        tp = tensor_parallel_size
        gemms = self._attention_gemms(tp)
        if self.moe is None:
            return gemms + self._mlp_gemms(self.intermediate_size, tp)
        if self.moe.shared_intermediate_size:
            gemms += self._mlp_gemms(self.moe.shared_intermediate_size, tp)
        return gemms + self.moe.experts_per_token * self._mlp_gemms(self.moe.intermediate_size, tp)

    def head_gemm(self, tensor_parallel_size: int = 1) -> tuple[int, int]:
        """Return the matrix (n, k) that makes logits, on one rank; it runs on sampled rows only."""
        return -(-self.vocab_size // tensor_parallel_size), self.hidden_size

    def _attention_gemms(self, tp: int) -> list[tuple[int, int]]:
        heads, kv_heads = self.heads_per_rank(tp)
        hidden = self.hidden_size
        if self.mla is None:
            return [((heads + 2 * kv_heads) * self.head_dim, hidden), (hidden, heads * self.head_dim)]
        mla = self.mla
        queries = [(heads * self.head_dim, mla.q_lora_rank or hidden)]
        if mla.q_lora_rank:
            queries.insert(0, (mla.q_lora_rank, hidden))
        latent = (mla.kv_lora_rank + mla.qk_rope_head_dim, hidden)
        unfold = (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
        return [*queries, latent, unfold, (hidden, heads * mla.v_head_dim)]

    def _mlp_gemms(self, width: int, tp: int) -> list[tuple[int, int]]:
        part = self._split("MLP columns", width, tp)
        return [((2 if self.gated_mlp else 1) * part, self.hidden_size), (self.hidden_size, part)]

    def _split(self, what: str, count: int, tp: int) -> int:
        if tp < 1 or count % tp:
            raise ConfigError(f"tensor_parallel_size {tp} does not divide the {count} {what} of {self.name}")
        return count // tp

    # ---- parameters ----

    def _linear_params(self, tp: int, experts: int) -> int:
        """Count the weights of the layers' matrices on one rank, with so many routed experts a layer."""
        moe = self.moe
        total = self.num_layers * _size(self._attention_gemms(tp))
        if moe is None:
            return total + self.num_layers * _size(self._mlp_gemms(self.intermediate_size, tp))
        sparse = experts * _size(self._mlp_gemms(moe.intermediate_size, tp))
        if moe.shared_intermediate_size:
            sparse += _size(self._mlp_gemms(moe.shared_intermediate_size, tp))
        total += (self.num_layers - moe.num_dense_layers) * sparse
        return total + moe.num_dense_layers * _size(self._mlp_gemms(self.intermediate_size, tp))

    def _other_params(self, tp: int) -> int:
        """Count what is never quantised, on one rank: embeddings, head, norms, biases, routers."""
        heads, kv_heads = self.heads_per_rank(tp)
        rows, hidden = self.head_gemm(tp)
        norms = 2 * hidden + (2 * self.head_dim if self.qk_norm else 0)
        if self.mla:
            norms += self.mla.kv_lora_rank + (self.mla.q_lora_rank or 0)
        bias = (heads + 2 * kv_heads) * self.head_dim if self.qkv_bias else 0
        total = (1 if self.tied_embeddings else 2) * rows * hidden + hidden + self.extra_params
        total += self.num_layers * (norms + bias)
        if self.moe:
            total += (self.num_layers - self.moe.num_dense_layers) * self.moe.num_experts * hidden
        return total

    @property
    def num_params(self) -> int:
        """All parameters."""
        return self._linear_params(1, self.moe.num_experts if self.moe else 0) + self._other_params(1)

    @property
    def active_params(self) -> int:
        """Parameters that one token uses: all but the experts it is not routed to."""
        return self._linear_params(1, self.moe.experts_per_token if self.moe else 0) + self._other_params(1)

    def weight_bytes(self, dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Return the bytes of the weights on one rank.

        `auto` is the model's own: its `quantization` in the linear layers and its `dtype` elsewhere. A
        type of 16 or 32 bits holds for all weights; one of 8 or 4 bits for the linear layers only.
        """
        linear = (self.quantization or self.dtype) if dtype == "auto" else dtype
        other = linear if dtype != "auto" and dtype_bits(linear) >= 16 else self.dtype
        experts = self.moe.num_experts if self.moe else 0
        bits = self._linear_params(tensor_parallel_size, experts) * weight_bits(linear)
        return int(bits + self._other_params(tensor_parallel_size) * dtype_bits(other)) // 8

    # ---- KV ----

    def kv_bytes_per_token(self, kv_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Return the KV bytes that one token writes on one rank, over all layers (`auto`: the model's dtype).

        An int8 cache has scales beside it (`KV_SCALE_BYTES`), an fp8 one none.

        >>> Model("llama-7b", 32, 4096, 32, 32, 128, 11008, 32000, 2048).kv_bytes_per_token()
        524288
        """
        _, kv_heads = self.heads_per_rank(tensor_parallel_size)
        numbers = 2 * kv_heads * self.head_dim
        if self.mla:
            numbers = self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        bits = dtype_bits(self.dtype if kv_dtype == "auto" else kv_dtype)
        scales = 2 * kv_heads * KV_SCALE_BYTES if kv_dtype == "int8" and self.mla is None else 0
        return self.num_layers * (numbers * bits // 8 + scales)

    def kv_bytes(self, tokens: int, kv_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Return the KV bytes that a sequence of `tokens` keeps on one rank.

        A sliding-window layer keeps its last `sliding_window` tokens at most, every other layer all.
        """
        layer = self.kv_bytes_per_token(kv_dtype, tensor_parallel_size) // self.num_layers
        windowed = min(tokens, self.sliding_window or tokens)
        full = self.num_layers - self.num_sliding_layers
        return layer * (full * tokens + self.num_sliding_layers * windowed)

    @property
    def attention(self) -> str:
        """MLA, MHA, GQA or MQA, by how many heads share a key."""
        if self.mla:
            return "MLA"
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def description(self) -> str:
        """One line for a listing."""
        experts = f", {self.moe.experts_per_token} of {self.moe.num_experts} experts" if self.moe else ""
        window = f", window {self.sliding_window:,}" if self.sliding_window else ""
        return (
            f"{self.num_params / 1e9:.2f} B parameters, {self.num_layers} layers, {self.attention}"
            f"{experts}{window}, {self.kv_bytes_per_token():,} bytes of KV per token"
        )


def _size(gemms: list[tuple[int, int]]) -> int:
    return sum(n * k for n, k in gemms)
