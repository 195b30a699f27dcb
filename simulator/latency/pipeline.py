"""The latency model of a pipeline: a price list for every stage, and the links between them.

A stage takes its share of the layers' time; the first computes the embedding too, the last the final norm and
the head. Every stage has the whole host time of a step: each of vLLM's workers prepares its own inputs.
Between two stages go the hidden states and the residual of every token of a batch (vLLM's
`IntermediateTensors` of a decoder), by NCCL. The link is priced by the NCCL line of a two-GPU all-reduce, in
which as many bytes cross it each way. Under tensor parallelism each rank sends its part to its peer and the
receivers gather it, as vLLM's `send_tensor_dict` does. Left out: senders that wait until the receiver is
ready, the message on the CPU that precedes the tensors, more than one server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError
from simulator.latency.all_reduce import NUMBER_BYTES, AllReduce, Communication, Line, estimated
from simulator.latency.base import Features, Floats, LatencyModel
from simulator.latency.linear import LinearModel
from simulator.latency.paced import Paced
from simulator.latency.profile import Profile
from simulator.latency.uncertainty import Uncertain
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model
from simulator.specs.stages import stage_layers

TENSORS_SENT = 2  # hidden states and residual, as Llama, Qwen and Mixtral send them in vLLM


@dataclass(frozen=True)
class Link:
    """What carries activations from one stage to the next; `token_bytes` those of a token on one rank."""

    line: Line
    token_bytes: float
    gather: AllReduce | None = None  # of the receiving tensor-parallel group
    source: str = ""

    def seconds(self, num_tokens: int) -> float:
        """Return how long the activations of a batch are under way."""
        latency, bandwidth = self.line
        seconds = latency + num_tokens * self.token_bytes / bandwidth
        if self.gather is not None:
            seconds += float(self.gather.gather(num_tokens * self.token_bytes * self.gather.gpus))
        return seconds


NO_LINK = Link(Line(0.0, float("inf")), 0.0, source="links that take no time")


@dataclass(frozen=True)
class Pipeline:
    """A `LatencyModel` of batches that go through stages one after the other; `layers` a stage.

    `step_time` is that of a batch that finds all stages free; what batches do to each other is the engine's
    to say (`simulator.engine.pipeline`).
    """

    stages: tuple[LatencyModel, ...]
    layers: tuple[int, ...]
    link: Link = NO_LINK

    @property
    def name(self) -> str:
        return f"{self.stages[0].name}, {len(self.stages)} stages"

    @property
    def provenance(self) -> str:
        return f"{self.stages[0].provenance}; {len(self.stages)} stages, {self.link.source}"

    @property
    def error(self) -> float | None:
        return self.stages[0].error

    def stage_times(self, step: Features) -> list[float]:
        """Return the seconds of one batch on each stage."""
        return [stage.step_time(step) for stage in self.stages]

    def step_time(self, step: Features) -> float:
        """Predict one batch that meets no other, in seconds."""
        return sum(self.stage_times(step)) + (len(self.stages) - 1) * self.link.seconds(step.num_tokens)

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps of one batch that meets no other."""
        rows = [stage.decode_times(step, k) for stage in self.stages]
        total: Floats = sum(rows[1:], rows[0]) + (len(self.stages) - 1) * self.link.seconds(step.num_tokens)
        return total

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Say which steps lie outside the measured range, which is that of the whole model."""
        return self.stages[0].extrapolated(steps)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> Pipeline:
        """Return the pipeline of GPUs with this many times the peaks; links stay."""
        return replace(self, stages=tuple(stage.scaled(flops, bandwidth) for stage in self.stages))

    def overlapped(self) -> Pipeline:
        """Return the pipeline whose workers prepare a step while their GPU runs another."""
        return replace(self, stages=tuple(stage.overlapped() for stage in self.stages))

    def paced(self, factor: float) -> Pipeline:
        """Return the pipeline with every stage and link so much slower."""
        line = Line(self.link.line.latency * factor, self.link.line.bandwidth / factor)
        return replace(
            self,
            stages=tuple(Paced(stage, factor) for stage in self.stages),
            link=replace(self.link, line=line),
        )

    @property
    def error_terms(self) -> dict[str, float]:
        """Relative standard errors of the stages' levels, one for all; the links' are not among them."""
        first = self.stages[0]
        if not isinstance(first, Uncertain):
            raise ConfigError(f"n_model_draws: {first.name!r:.60} states no errors that could be drawn")
        return first.error_terms

    def drawn(self, deviates: Mapping[str, float]) -> Pipeline:
        """Return the pipeline whose terms are off by so many standard errors, alike on all stages."""
        drawn = tuple(stage.drawn(deviates) for stage in self.stages if isinstance(stage, Uncertain))
        return replace(self, stages=drawn)


def pipeline_of(latency: LatencyModel) -> Pipeline | None:
    """Return the pipeline that a latency model is, paced or not; None if it is none."""
    if isinstance(latency, Paced) and isinstance(latency.inner, Pipeline):
        return latency.inner.paced(latency.factor)
    return latency if isinstance(latency, Pipeline) else None


def pipelined(
    latency: LatencyModel,
    hardware: Hardware,
    model: Model,
    num_stages: int,
    tensor_parallel_size: int = 1,
    pair: AllReduce | None = None,
) -> Pipeline:
    """Cut the price list of a whole model (of one rank's part of all layers) into stages.

    `pair` is the all-reduce of two linked GPUs, whose NCCL line is a send's; by default the estimate for
    the hardware.
    """
    layers = stage_layers(model.num_layers, num_stages)
    tp = tensor_parallel_size
    pair = pair or estimated(hardware, 2)
    link = Link(
        pair.nccl,
        TENSORS_SENT * NUMBER_BYTES * model.hidden_size / tp,
        estimated(hardware, tp) if tp > 1 else None,
        f"activations sent by NCCL as in an {pair.source}",
    )
    stages = tuple(_stage(latency, layers, stage) for stage in range(num_stages))
    return Pipeline(stages, tuple(layers), link)


def _stage(latency: LatencyModel, layers: list[int], stage: int) -> LatencyModel:
    share, is_first, is_last = layers[stage] / sum(layers), stage == 0, stage == len(layers) - 1
    if isinstance(latency, LinearModel):
        names = ("constant", "per_token", "per_kv_token", "per_prefill_work")
        parts = {name: getattr(latency, name) * share for name in names}
        return replace(latency, **parts)
    if not isinstance(latency, Profile):
        raise ConfigError(f"parallel.pipeline_parallel_size: {latency.name!r:.60} cannot be cut into stages")
    group, alone = latency.communication, latency.alone()
    once = alone.roofline.once(np.arange(len(alone.dense)))  # half for the embedding, half for the final norm
    ends = (is_first + is_last) / 2 * once
    part = replace(
        alone,
        dense=np.maximum(alone.dense - once, 0.0) * share + ends,
        head=alone.head if is_last else np.zeros_like(alone.head),
        decode=alone.decode._replace(seconds=alone.decode.seconds * share),
        prefill=type(alone.prefill)(*(term * share for term in alone.prefill)),
        roofline=alone.roofline.for_model(_cut(alone.roofline.model, layers[stage])),
        mixed=None if alone.mixed is None else alone.mixed.times(share),
    )
    return part if group is None else part.grouped(_communication(group, layers, stage))


def _cut(model: Model, num_layers: int) -> Model:
    sliding = min(model.num_sliding_layers, num_layers)
    window = model.sliding_window if sliding else None
    return replace(model, num_layers=num_layers, num_sliding_layers=sliding, sliding_window=window)


def _communication(group: Communication, layers: list[int], stage: int) -> Communication:
    """Return a stage's all-reduces: two a layer and the embedding's; the last stage gathers the logits."""
    share = (2 * layers[stage] + (stage == 0)) / (2 * sum(layers) + 1)
    head = group.head if stage == len(layers) - 1 else np.zeros_like(group.head)
    return group._replace(dense=group.dense * share, head=head)
