"""The decoder of Llama, Mistral, Qwen2 and Qwen3, computed over paged KV for one flattened batch.

Every row is one token of some sequence; rows meet in attention alone. Queries, keys and values are one
matrix product, gate and up another. RMSNorm (Zhang and Sennrich, 2019), rotary embedding (Su et al., 2021)
and SwiGLU (Shazeer, 2020) as transformers computes them: norms in float32 whatever the model's type.
Weights are plain tensors and nothing records gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_backend.attention.base import AttentionBackend, AttentionInputs
from gpu_backend.decoder_config import DecoderConfig, RopeScaling
from gpu_backend.kv_tensors import KvTensors


@dataclass(slots=True)
class Linear:
    """x W^T + b: x is (rows, in), the weight (out, in)."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


Projection = Callable[[Tensor], Tensor]  # a Linear, or what stands in for it: (rows, in) -> (rows, out)


@dataclass(slots=True)
class Layer:
    """One layer's weights; its four projections can be exchanged for quantised ones."""

    attention_norm: Tensor  # (hidden,)
    qkv: Projection  # rows of the weight: queries, keys, values
    q_norm: Tensor | None  # (head_dim,)
    k_norm: Tensor | None
    out: Projection
    mlp_norm: Tensor  # (hidden,)
    gate_up: Projection  # rows of the weight: gate, up
    down: Projection


@dataclass(slots=True)
class Decoder:
    """A model's weights on one device. `forward` computes a step's rows, `head` the logits of some."""

    config: DecoderConfig
    embedding: Tensor  # (vocab, hidden)
    layers: list[Layer]
    final_norm: Tensor  # (hidden,)
    lm_head: Projection
    rope: Tensor  # (max_model_len, head_dim): cosines, then sines, of each position

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and of KV."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    def projections(self) -> Iterator[tuple[Layer, str, Projection]]:
        """List the layers' projections with the layer and the name by which `setattr` exchanges them."""
        for layer in self.layers:
            for name in ("qkv", "out", "gate_up", "down"):
                yield layer, name, getattr(layer, name)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        kv: KvTensors,
        inputs: AttentionInputs,
        attention: AttentionBackend,
    ) -> Tensor:
        """Return hidden states, (rows, hidden), before the last norm; writes the rows' KV.

        `tokens` and `positions` are (rows,) int64; a position is the token's index in its sequence.
        """
        hidden = F.embedding(tokens, self.embedding)
        rotation = self._rotation(positions)
        eps = self.config.rms_norm_eps
        for index, layer in enumerate(self.layers):
            normed = _rms_norm(hidden, layer.attention_norm, eps)
            hidden = hidden + self._attend(index, normed, rotation, kv, inputs, attention)
            gate, up = layer.gate_up(_rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits, (n, vocab) float32, of n rows of hidden states."""
        return self.lm_head(_rms_norm(hidden, self.final_norm, self.config.rms_norm_eps)).float()

    def _attend(
        self,
        index: int,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        kv: KvTensors,
        inputs: AttentionInputs,
        attention: AttentionBackend,
    ) -> Tensor:
        config, layer = self.config, self.layers[index]
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = layer.qkv(x).view(-1, heads + 2 * kv_heads, head_dim)
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            qk = F.rms_norm(qk, (head_dim,), None, config.rms_norm_eps)
            qk[:, :heads] *= layer.q_norm
            qk[:, heads:] *= layer.k_norm
        qk = _rotate(qk, *rotation)
        keys, values = kv.layer(index)
        attention.write(qk[:, heads:], v, keys, values, inputs.slots)
        scale, window = head_dim**-0.5, config.window(index)
        attended = attention.attend(qk[:, :heads], keys, values, inputs, scale=scale, window=window)
        return layer.out(attended.reshape(-1, heads * head_dim))

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines of these rows, each (rows, 1, head_dim)."""
        cos, sin = F.embedding(positions, self.rope).unsqueeze(1).chunk(2, dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + head_dim / 2]) by its angle."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)


def rope_table(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the cosines and sines of every position, (max_model_len, head_dim), computed in float32."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / (config.rope_theta ** (steps / config.head_dim))
    frequencies = _scaled(frequencies, config.rope_scaling)
    positions = torch.arange(config.max_model_len, dtype=torch.float32, device=device)
    angles = torch.outer(positions, frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    if scaling is None:
        return frequencies
    stretched = frequencies / scaling.factor
    if scaling.kind == "linear":
        return stretched
    turns = scaling.original_max_len * frequencies / (2 * math.pi)  # of each wave in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: short waves stay, 0: long ones are stretched
    return (1 - kept) * stretched + kept * frequencies
