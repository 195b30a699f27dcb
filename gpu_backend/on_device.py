"""A scenario's model and memory on a device: weights, draft model, pages; what does not fit is told first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from gpu_backend.decoder_config import DecoderConfig
from gpu_backend.device import check_room, free_bytes
from gpu_backend.kv_tensors import KvTensors
from gpu_backend.loader import load_decoder, random_decoder
from gpu_backend.model import Decoder
from gpu_backend.quant import quantize_decoder
from simulator.config.build import Machine
from simulator.config.scenario import Scenario
from simulator.config.speculative import build_draft_model
from simulator.errors import ConfigError
from simulator.specs import Model

RANDOM = "random"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def dtype_for(model: Model, device: torch.device) -> torch.dtype:
    """Return the type to compute in: the model's on CUDA, float32 on the CPU."""
    if device.type == "cpu":
        return torch.float32
    if model.dtype not in DTYPES:
        raise ConfigError(f"model.dtype: the engine computes in {', '.join(DTYPES)}, not {model.dtype}")
    return DTYPES[model.dtype]


def check_types(model: Model, kv_cache_dtype: str) -> None:
    """Raise ConfigError for types of weights or KV that the engine does not compute with."""
    if model.quantization not in (None, "int8"):
        raise ConfigError(f"model.quantization: the engine knows int8 weights only, got {model.quantization}")
    if kv_cache_dtype != "auto":
        raise ConfigError(
            f"kv.kv_cache_dtype: the engine keeps KV in the type it computes in (auto), got {kv_cache_dtype}"
        )


@dataclass(frozen=True)
class Place:
    """Where a scenario runs. Methods raise ConfigError or InputError, in one line, for what cannot be."""

    scenario: Scenario
    machine: Machine
    device: torch.device
    dtype: torch.dtype

    def load(self, weights: str | Path) -> Decoder:
        """Return the model, from a folder or with random weights, rounded to INT8 if the scenario says so."""
        model = self.machine.model
        remedy = "name a smaller model with --model"
        if weights == RANDOM:
            decoder = self._random(self.scenario.model.name, model, remedy)
        else:
            self._check_weights(model, remedy)
            decoder = load_decoder(weights, self.device, self.dtype)
            _check_shape(decoder.config, model, f"--weights {weights}", "--model")
            if self.machine.max_model_len > decoder.config.max_model_len:
                raise ConfigError(
                    f"model.max_model_len: {self.machine.max_model_len} exceeds the checkpoint's "
                    f"{decoder.config.max_model_len}"
                )
        if model.quantization == "int8":
            quantize_decoder(decoder)
        return decoder

    def load_draft(self, weights: str | Path) -> Decoder | None:
        """Return the draft model, None if the scenario has none."""
        keys = self.scenario.speculative
        model = build_draft_model(keys, self.machine.model)
        if model is None or keys is None or keys.draft_model is None:
            return None
        remedy = "name a smaller speculative.draft_model"
        if weights == RANDOM:
            draft = self._random(keys.draft_model, model, remedy)
        else:
            self._check_weights(model, remedy)
            draft = load_decoder(weights, self.device, self.dtype)
            _check_shape(draft.config, model, f"--draft-weights {weights}", "speculative.draft_model")
        if self.machine.max_model_len > draft.config.max_model_len:
            raise ConfigError(
                f"model.max_model_len: {self.machine.max_model_len} exceeds the "
                f"{draft.config.max_model_len} of the draft model {model.name}"
            )
        return draft

    def pages(self, config: DecoderConfig) -> KvTensors:
        """Allocate the scenario's KV blocks for a model; the error says how many would fit."""
        size, num_blocks = self.scenario.kv.block_size, self.machine.kv.usable_blocks
        heads = (config.num_kv_heads, config.head_dim)
        block_bytes = 2 * config.num_layers * size * heads[0] * heads[1] * self.dtype.itemsize
        fit = max(free_bytes(self.device) // block_bytes - 1, 0)
        check_room(
            num_blocks * block_bytes,
            self.device,
            f"{num_blocks:,} KV blocks",
            f"{fit:,} would fit; lower kv.gpu_memory_utilization, or set kv.num_gpu_blocks_override to at "
            f"most {fit + 1}",
        )
        sizes = (config.num_layers, num_blocks, size)
        return KvTensors(*sizes, *heads, dtype=self.dtype, device=self.device)

    @contextmanager
    def telling_of_memory(self) -> Iterator[None]:
        """Turn PyTorch's out-of-memory error into one line that names the keys to lower."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            keys = self.scenario
            raise ConfigError(
                f"{self.device}: {str(error).partition('. ')[0]}; lower scheduler.max_num_batched_tokens "
                f"({keys.scheduler.max_num_batched_tokens}), which a step's activations grow with, or "
                f"kv.gpu_memory_utilization ({keys.kv.gpu_memory_utilization:g})"
            ) from None

    def _check_weights(self, model: Model, remedy: str) -> None:
        check_room(
            model.num_params * self.dtype.itemsize, self.device, f"the weights of {model.name}", remedy
        )

    def _random(self, name: str, model: Model, remedy: str) -> Decoder:
        config = DecoderConfig.read(name) if Path(name).exists() else DecoderConfig.of(model)
        self._check_weights(model, remedy)
        return random_decoder(config, self.device, self.dtype, seed=self.scenario.seed)


def _check_shape(config: DecoderConfig, model: Model, weights: str, key: str) -> None:
    """Raise ConfigError unless a checkpoint has the sizes that the scenario's memory was counted for."""
    for name in ("num_layers", "hidden_size", "num_kv_heads", "head_dim", "vocab_size"):
        mine, theirs = getattr(model, name), getattr(config, name)
        if mine != theirs:
            raise ConfigError(
                f"{weights}: {name} is {theirs}, and {mine} in the scenario's model {model.name}; name the "
                f"checkpoint's config.json with {key}"
            )
