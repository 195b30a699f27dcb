"""The model that a scenario serves, and its accuracy as its user measured it: carried, never guessed."""

from __future__ import annotations

from math import isfinite
from typing import Literal

from pydantic import Field, field_validator

from simulator.config.key_types import Count, Number, Section
from simulator.errors import suggest

PLAIN = "none"  # weights as they are
WEIGHTS = (PLAIN, "int8", "int4", "fp8")
KV_CACHES = ("fp8", "int8")
TYPES = (*WEIGHTS, *(f"{weights}/{kv}" for weights in WEIGHTS for kv in KV_CACHES))
"""Of a score: the type of the weights, and after a slash that of a KV cache with a type of its own."""

Accuracy = Number | dict[str, Number]


def check_types(value: object) -> object:
    """Raise ValueError unless this is a finite number, or a mapping to such of types a scenario can have."""
    if isinstance(value, dict):
        for key in value:
            if key not in TYPES:
                raise ValueError(
                    f"unknown type {key!r:.80}{suggest(str(key), TYPES)}; e.g. none, int8, int8/fp8"
                )
        if not value:
            raise ValueError("a mapping of scores must have one, e.g. {none: 68.4, int8: 68.1}")
    scores = list(value.values()) if isinstance(value, dict) else [value]
    for score in scores if value is not None else []:
        if isinstance(score, bool) or not isinstance(score, int | float) or not isfinite(score):
            raise ValueError(f"a score must be a finite number, got {score!r:.80}")
    return value


class ModelSection(Section):
    name: str = Field("llama-3.1-8b", description="shipped name, or path to a Hugging Face config.json")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="auto = the model's own | bfloat16 | float16 | float32"
    )
    quantization: Literal["int8", "int4", "fp8"] | None = Field(
        None,
        description="weights of the layers: int8 | int4 (16-bit activations) | fp8 (activations too, if the "
        "GPU has it); null = the model's own",
    )
    accuracy: Accuracy | None = Field(
        None,
        description="your own measured score, any unit, carried to the results; or one by types: "
        "{none: 68.4, int8: 68.1, int8/fp8: 67.9}, weights or weights/KV cache",
    )
    max_model_len: Count | None = Field(16384, description="prompt + output at most; null = the model's own")

    _known_types = field_validator("accuracy", mode="before")(check_types)


def accuracy_of(model: ModelSection, kv_cache_dtype: str) -> float | None:
    """Return the score of the types in use: the number given for all, else the mapping's; None without one.

    >>> accuracy_of(ModelSection(quantization="int8", accuracy={"none": 68.4, "int8": 68.1}), "auto")
    68.1
    """
    scores = model.accuracy
    return scores.get(_types(model, kv_cache_dtype)) if isinstance(scores, dict) else scores


def accuracy_notes(model: ModelSection, kv_cache_dtype: str) -> list[str]:
    """Say that scores were given, but none for the types in use."""
    if model.accuracy is None or accuracy_of(model, kv_cache_dtype) is not None:
        return []
    return [f"model.accuracy has no score for {_types(model, kv_cache_dtype)}: none is carried, none guessed"]


def _types(model: ModelSection, kv_cache_dtype: str) -> str:
    weights = model.quantization or PLAIN
    return weights if kv_cache_dtype == "auto" else f"{weights}/{kv_cache_dtype}"
