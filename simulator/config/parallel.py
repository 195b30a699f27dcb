"""How a model is spread over the GPUs of one server, and what goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from simulator.config.key_types import NonNegative, Section
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from simulator.config.scenario import Scenario
    from simulator.specs import Model

GPUS_OF_A_SERVER = 8
MAX_SKEW = 4.0  # Zipf exponent beyond which one expert gets nearly everything


class ParallelSection(Section):
    tensor_parallel_size: Literal[1, 2, 4, 8] = Field(1, description="GPUs that share the model: 1, 2, 4, 8")
    pipeline_parallel_size: Literal[1, 2, 4, 8] = Field(
        1, description="stages the layers are cut into; GPUs = tensor x pipeline, 8 at most"
    )
    expert_parallel: bool = Field(
        False, description="whole experts on each GPU of the tensor-parallel group (mixture of experts)"
    )
    expert_skew: NonNegative = Field(
        0.0, le=MAX_SKEW, description="Zipf exponent of how popular experts are; 0 = all alike"
    )

    @field_validator("tensor_parallel_size", "pipeline_parallel_size", mode="before")
    @classmethod
    def _no_flag(cls, value: object) -> object:
        if isinstance(value, bool | float):  # equal to 1 in Python, not in a file
            raise ValueError(f"must be 1, 2, 4 or 8, got {value}")
        return value

    @property
    def num_gpus(self) -> int:
        """GPUs that one replica takes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


def check_parallel(scenario: Scenario, model: Model) -> None:
    """Refuse what cannot be spread so, or is not modelled together; ConfigError in one line."""
    keys = scenario.parallel
    if keys.num_gpus > GPUS_OF_A_SERVER:
        raise ConfigError(
            f"parallel: tensor_parallel_size x pipeline_parallel_size must be <= {GPUS_OF_A_SERVER}, "
            f"the GPUs of one server, got {keys.tensor_parallel_size} x {keys.pipeline_parallel_size}"
        )
    if keys.expert_skew and model.moe is None:
        raise ConfigError(f"parallel.expert_skew: must be 0, since {model.name} has no experts")
    if keys.expert_parallel:
        _check_experts(scenario, model)
    if keys.pipeline_parallel_size > 1:
        refuse_pipeline(scenario)


def refuse_pipeline(scenario: Scenario) -> None:
    """Refuse what a pipeline of stages does not model."""
    where = "parallel.pipeline_parallel_size: must be 1 under"
    if scenario.speculative is not None:
        raise ConfigError(f"{where} speculative")
    if scenario.scheduler.async_scheduling:
        raise ConfigError(f"{where} scheduler.async_scheduling, which a pipeline does not model")
    if scenario.kv.tiers:
        raise ConfigError(f"{where} kv.tiers, whose transfers a pipeline does not model")
    if scenario.scheduler.batching == "static":
        raise ConfigError(f"{where} scheduler.batching static, which has one batch at a time")


def _check_experts(scenario: Scenario, model: Model) -> None:
    gpus = scenario.parallel.tensor_parallel_size
    if model.moe is None:
        raise ConfigError(f"parallel.expert_parallel: must be false, since {model.name} has no experts")
    if gpus == 1:
        raise ConfigError("parallel.expert_parallel: needs parallel.tensor_parallel_size > 1")
    if model.moe.num_experts % gpus:
        raise ConfigError(
            f"parallel.tensor_parallel_size {gpus} does not divide the {model.moe.num_experts} experts "
            f"of {model.name}"
        )
    if scenario.latency.kind == "linear":
        raise ConfigError("parallel.expert_parallel: latency.kind linear does not know experts")
