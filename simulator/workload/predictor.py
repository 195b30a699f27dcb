"""A predictor of answer lengths that is wrong by a lognormal factor.

Real predictors sort answers into classes of length (S3, Jin et al., NeurIPS 2023) or rank them (Fu et al.,
"Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024). Here one number says how wrong they are:
sigma, the standard deviation of log(predicted / true), which has the mean 0. Left out: a bias, errors that
depend on the prompt or the length, and predictions that get better as the answer grows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.errors import ConfigError
from simulator.workload.requests import DEFAULT_MAX_TOKENS

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

MAX_SIGMA = 10.0
"""A factor of e^10 either way in a third of the cases: such a prediction says nothing."""


def with_predicted_len(workload: Workload, sigma: float, rng: np.random.Generator) -> Workload:
    """See `Workload.with_predicted_len`."""
    if not 0 <= sigma <= MAX_SIGMA:
        raise ConfigError(f"workload.predicted_len.sigma: must be 0 to {MAX_SIGMA:g}, got {sigma}")
    asked = np.where(workload.max_tokens > 0, workload.max_tokens, DEFAULT_MAX_TOKENS)
    true = np.minimum(workload.num_output, asked)
    factor = np.exp(sigma * rng.standard_normal(len(workload)))
    return replace(workload, predicted_len=np.maximum(true * factor, 1.0))
