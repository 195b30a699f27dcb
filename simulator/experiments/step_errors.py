"""How well a latency model prices the steps that a machine took, by kind of step.

The model is asked for the time of each measured step's own sums, so no alignment of two runs is needed and no
decision plays a part. What a step waited for copies is left out on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import LatencyModel, StepFeatures
from simulator.metrics.tables import Floats, StepTable

KINDS = ("decode", "prefill", "mixed", "padded", "speculative")
"""Only decodes; only prompts; both; decodes of a static batch that carries finished sequences; with drafts to
verify, which are rows beyond one a decode."""


@dataclass(frozen=True, eq=False, slots=True)
class StepTimes:
    """Forward passes of a measured run: kind (an index into KINDS), and measured and predicted seconds."""

    kind: NDArray[np.int64]
    measured: Floats
    model: Floats


@dataclass(frozen=True, slots=True)
class KindError:
    """A model's error on one kind of step: `mape` is the mean of |errors|, `bias` that of summed times."""

    kind: str
    count: int
    measured_ms: float  # median
    model_ms: float  # median
    mape: float  # percent
    bias: float  # percent


def step_times(steps: StepTable, latency: LatencyModel) -> StepTimes:
    """Price the forward passes of a measured run with a latency model."""
    rows = np.flatnonzero((steps.num_tokens > 0) & (steps.end - steps.start > steps.stall))
    # A padded row is computed like any other, but its token is not sampled for anybody.
    is_padded = (steps.prefill_tokens == 0) & (steps.num_sampled < steps.num_decodes)
    columns = {name: getattr(steps, name)[rows].tolist() for name in StepFeatures._fields}
    columns["num_sampled"] = np.where(is_padded, steps.num_decodes, steps.num_sampled)[rows].tolist()
    prices = [latency.step_time(StepFeatures(*row)) for row in zip(*columns.values(), strict=True)]
    kind = np.where(steps.prefill_tokens == 0, 0, np.where(steps.num_decodes == 0, 1, 2))
    kind[is_padded] = KINDS.index("padded")
    kind[steps.num_tokens > steps.num_decodes + steps.prefill_tokens] = KINDS.index("speculative")
    return StepTimes(
        kind[rows],
        (steps.end - steps.start - steps.stall)[rows],
        np.array(prices, dtype=np.float64),
    )


def by_kind(times: StepTimes) -> tuple[KindError, ...]:
    """Return the errors of each kind of step that occurs."""
    found = []
    for i, name in enumerate(KINDS):
        measured, model = times.measured[times.kind == i], times.model[times.kind == i]
        if len(measured):
            found.append(
                KindError(
                    name,
                    len(measured),
                    1e3 * float(np.median(measured)),
                    1e3 * float(np.median(model)),
                    100 * float(np.mean(np.abs(model / measured - 1))),
                    100 * (float(model.sum() / measured.sum()) - 1),
                )
            )
    return tuple(found)
