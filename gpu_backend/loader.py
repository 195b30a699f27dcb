"""Fill a decoder: from safetensors, one tensor at a time straight to its place, or at random for timing.

A checkpoint is a folder with config.json and model.safetensors, or shards that model.safetensors.index.json
lists. Names and shapes are transformers'; everything the model needs must be there, and nothing that it has
no place for. Pickled weights are never read.
"""

from __future__ import annotations

from collections.abc import Callable
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
    config = DecoderConfig.read(folder)
    with Checkpoint(folder) as checkpoint:
        decoder = _build(config, device, dtype, num_layers, checkpoint.fill)
        checkpoint.refuse_strangers(decoder.config.num_layers, config.tied_embeddings)
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

    return _build(config, device, dtype, num_layers, fill)


def _build(
    config: DecoderConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    num_layers: int | None,
    fill: Fill,
) -> Decoder:
    """Make the decoder layer by layer, asking `fill` for every tensor by its checkpoint name."""
    config = config if num_layers is None else config.first_layers(num_layers)
    device = torch.device(device)

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def filled(name: str, *shape: int) -> Tensor:
        target = new(*shape)
        fill(name, target)
        return target

    def linear(place: str, rows: dict[str, int], columns: int, bias: bool) -> Linear:
        """One matrix of several of the checkpoint, its rows one part below the other."""
        total = sum(rows.values())
        fused = Linear(new(total, columns), new(total) if bias else None)
        first = 0
        for name, count in rows.items():
            part = slice(first, first + count)
            fill(f"{place}.{name}.weight", fused.weight[part])
            if fused.bias is not None:
                fill(f"{place}.{name}.bias", fused.bias[part])
            first += count
        return fused

    hidden, width, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    embedding = filled("model.embed_tokens.weight", config.vocab_size, hidden)
    queries, keys, values = config.qkv_sizes
    qkv = {"q_proj": queries, "k_proj": keys, "v_proj": values}
    layers = []
    for index in range(config.num_layers):
        at = f"model.layers.{index}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        layers.append(
            Layer(
                attention_norm=filled(f"{at}.input_layernorm.weight", hidden),
                qkv=linear(attention, qkv, hidden, config.qkv_bias),
                q_norm=filled(f"{attention}.q_norm.weight", head_dim) if config.qk_norm else None,
                k_norm=filled(f"{attention}.k_norm.weight", head_dim) if config.qk_norm else None,
                out=linear(attention, {"o_proj": hidden}, queries, config.out_bias),
                mlp_norm=filled(f"{at}.post_attention_layernorm.weight", hidden),
                gate_up=linear(mlp, {"gate_proj": width, "up_proj": width}, hidden, config.mlp_bias),
                down=linear(mlp, {"down_proj": hidden}, width, config.mlp_bias),
            )
        )
    final_norm = filled("model.norm.weight", hidden)
    head = embedding if config.tied_embeddings else filled("lm_head.weight", config.vocab_size, hidden)
    return Decoder(config, embedding, layers, final_norm, Linear(head), rope_table(config, device, dtype))
