"""Fill a decoder: from safetensors, one tensor at a time straight to its place, or at random for timing.

A checkpoint is a folder with config.json and model.safetensors, or shards that model.safetensors.index.json
lists. Names and shapes are transformers'; everything the model needs must be there, and nothing that it has
no place for. Pickled weights are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpu_backend.checkpoint import Checkpoint, checkpoint_folder
from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.model import Decoder, Layer, Linear, rope_table

INIT_SCALE = 0.02  # standard deviation of random weights: transformers' initializer_range
Fill = Callable[[str, Tensor], None]  # a checkpoint's name of a tensor, and where its values go


def load_decoder(
    source: str | Path,
    device: torch.device | str,
    dtype: torch.dtype,
    num_layers: int | None = None,
) -> Decoder:
    """Load a local folder or, with huggingface_hub installed, a model of the hub; its first layers if told.

    InputError, in one line, names the file and the tensor where the checkpoint is not what config.json says.
    """
    folder = checkpoint_folder(source)
    config = DecoderConfig.read(folder).first_layers(num_layers)
    with Checkpoint(folder) as checkpoint:
        decoder = _Builder(config, device, dtype, checkpoint.fill).decoder()
        checkpoint.refuse_strangers(config.num_layers, config.tied_embeddings)
    return decoder


def random_decoder(
    config: DecoderConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    num_layers: int | None = None,
) -> Decoder:
    """Return a decoder of random weights, the same for a seed on one kind of device.

    Never zeros: a GPU's power draw, and so its clock, depends on the data.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def fill(name: str, target: Tensor) -> None:
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        target.normal_(mean, INIT_SCALE, generator=generator)

    return _Builder(config.first_layers(num_layers), device, dtype, fill).decoder()


@dataclass
class _Builder:
    """Makes a decoder layer by layer, asking `fill` for every tensor by its checkpoint name."""

    config: DecoderConfig
    device: torch.device | str
    dtype: torch.dtype
    fill: Fill

    def decoder(self) -> Decoder:
        config = self.config
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = self._tensor("model.embed_tokens.weight", *vocabulary)
        layers = [self._layer(f"model.layers.{index}") for index in range(config.num_layers)]
        final_norm = self._tensor("model.norm.weight", config.hidden_size)
        head = embedding if config.tied_embeddings else self._tensor("lm_head.weight", *vocabulary)
        rope = rope_table(config, torch.device(self.device), self.dtype)
        return Decoder(config, embedding, layers, final_norm, Linear(head), rope)

    def _layer(self, at: str) -> Layer:
        config, attention, mlp = self.config, f"{at}.self_attn", f"{at}.mlp"
        hidden, width, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys, values = config.qkv_sizes
        qkv = {"q_proj": queries, "k_proj": keys, "v_proj": values}
        return Layer(
            attention_norm=self._tensor(f"{at}.input_layernorm.weight", hidden),
            qkv=self._linear(attention, qkv, hidden, config.qkv_bias),
            q_norm=self._tensor(f"{attention}.q_norm.weight", head_dim) if config.qk_norm else None,
            k_norm=self._tensor(f"{attention}.k_norm.weight", head_dim) if config.qk_norm else None,
            out=self._linear(attention, {"o_proj": hidden}, queries, config.out_bias),
            mlp_norm=self._tensor(f"{at}.post_attention_layernorm.weight", hidden),
            gate_up=self._linear(mlp, {"gate_proj": width, "up_proj": width}, hidden, config.mlp_bias),
            down=self._linear(mlp, {"down_proj": hidden}, width, config.mlp_bias),
        )

    def _linear(self, place: str, rows: dict[str, int], columns: int, bias: bool) -> Linear:
        """Make one matrix of several of the checkpoint, the rows of one below those of the other."""
        total = sum(rows.values())
        fused = Linear(self._empty(total, columns), self._empty(total) if bias else None)
        first = 0
        for name, count in rows.items():
            part = slice(first, first + count)
            self.fill(f"{place}.{name}.weight", fused.weight[part])
            if fused.bias is not None:
                self.fill(f"{place}.{name}.bias", fused.bias[part])
            first += count
        return fused

    def _tensor(self, name: str, *shape: int) -> Tensor:
        target = self._empty(*shape)
        self.fill(name, target)
        return target

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)
