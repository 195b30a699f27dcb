"""How a model is spread over the GPUs of one server."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from simulator.config.key_types import Section


class ParallelSection(Section):
    tensor_parallel_size: Literal[1, 2, 4, 8] = Field(1, description="GPUs that share the model: 1, 2, 4, 8")

    @field_validator("tensor_parallel_size", mode="before")
    @classmethod
    def _no_flag(cls, value: object) -> object:
        if isinstance(value, bool | float):  # equal to 1 in Python, not in a file
            raise ValueError(f"must be 1, 2, 4 or 8, got {value}")
        return value
