"""What each request cost, where the price of the GPUs is known: the run's cost, shared by priced work.

A step serves many requests at once, and what it costs is theirs together, so a share needs a rule. Here a
request's work is what it would take of average steps, in seconds of the latency model:

    computed prompt tokens x a token's part of a step that fills the token budget with prompts
    + output tokens x a sequence's part of the run's mean decode step, without what its contexts cost
    + context read by its decodes x what one more token of context adds to that step

so a long prompt pays for its prefill, a long answer for its decodes and a long context for its KV traffic,
and a prompt found in the cache pays for nothing but its context. What the run cost, idle time included, is
then divided in proportion. Left out: who made a step long by arriving in it; prompts of requests that never
got a token; tokens computed again after a preemption, which fall on all.
"""

from __future__ import annotations

import numpy as np

from simulator.latency.base import LatencyModel, StepFeatures
from simulator.metrics.summary import Bools
from simulator.metrics.tables import Floats, RequestTable, StepTable


def request_costs(
    requests: RequestTable,
    steps: StepTable,
    latency: LatencyModel,
    counted: Bools,
    *,
    total: float,
    max_tokens: int,
) -> Floats:
    """Divide `total`, in any currency, among the requests that count by their work; 0 for all others.

    `max_tokens` is the token budget of a step. All are 0 if nothing was computed.
    """
    work = np.where(counted, request_work(requests, steps, latency, max_tokens), 0.0)
    whole = float(work.sum())
    return work * (total / whole) if whole > 0 else work


def request_work(requests: RequestTable, steps: StepTable, latency: LatencyModel, max_tokens: int) -> Floats:
    """Return each request's work in seconds of average steps."""
    per_prompt = latency.step_time(StepFeatures.prefill([(max_tokens, 0)])) / max_tokens
    per_output, per_kv = _decode_prices(steps, latency)
    served = requests.num_output > 0
    prompt = np.maximum(requests.num_prompt - requests.num_cached, 0)
    decoded = np.maximum(requests.num_output - 1, 0)  # the first token comes with the prompt
    context = decoded * requests.num_prompt + decoded * (decoded + 1) / 2
    work: Floats = per_prompt * prompt + per_output * decoded + per_kv * context
    return np.where(served, work, 0.0)


def _decode_prices(steps: StepTable, latency: LatencyModel) -> tuple[float, float]:
    """Return the seconds of one decode in the run's mean decode step, and those of a token of its context."""
    decoding = steps.num_decodes > 0
    if not decoding.any():
        return 0.0, 0.0
    batch = max(1, round(float(steps.num_decodes[decoding].mean())))
    kv = max(1, round(float(steps.decode_kv[decoding].sum() / steps.num_decodes[decoding].sum())))
    step, longer = (latency.step_time(StepFeatures.decode([length] * batch)) for length in (kv, 2 * kv))
    per_kv = max(0.0, longer - step) / (batch * kv)
    return max(0.0, step - per_kv * batch * kv) / batch, per_kv
