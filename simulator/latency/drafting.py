"""A step with a draft model: the target's forward pass, and the draft model's passes that propose tokens.

Of its passes the first computes all tokens of the step once more, and one row beyond them for every sequence
(rule 3.1), since the draft model has a KV cache of its own; each of the others decodes one token for every
sequence. The first runs even where nothing is to be drafted, or else that cache would have holes. Looking
drafts up in the text is host time (`WithLookup`). Left out: sampling the drafts, and the passes' host time,
which a server hides behind the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import Features, Floats, LatencyModel, StepFeatures
from simulator.latency.estimate import estimate
from simulator.latency.profile import Host
from simulator.latency.uncertainty import drawn, error_terms
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model

NO_HOST = Host(0.0, 0.0)
DRAFT = "draft "  # before the name of a draft model's term


class DraftingStep(NamedTuple):
    """A step that only decodes, as `Features`, and how many tokens each sequence drafts for the next one."""

    num_tokens: int
    num_seqs: int
    num_sampled: int
    num_decodes: int
    decode_kv: int
    decode_kv_max: int
    prefill_tokens: int = 0
    prefill_work: float = 0.0
    prefill_kv_max: int = 0
    num_to_draft: int | None = None

    @classmethod
    def verifying(cls, n: int, kv: int, longest: int, k: int) -> DraftingStep:
        """Describe n sequences that verify k drafts each and propose k: `kv` tokens of context in all."""
        rows = n * (1 + k)
        return cls(rows, n, rows, n, kv + rows, longest + 1 + k, num_to_draft=k)


def num_to_draft(step: Features, num_tokens: int) -> int:
    """Return how many tokens each sequence of a step drafts: `num_tokens` where the step does not say."""
    said: int | None = getattr(step, "num_to_draft", None)
    return num_tokens if said is None else said


@dataclass(frozen=True)
class WithDraftModel:
    """A `LatencyModel`: the target's price and `num_tokens` passes of a draft model."""

    target: LatencyModel
    draft: LatencyModel
    num_tokens: int  # drafts, where the step does not say how many

    @property
    def name(self) -> str:
        return f"{self.target.name}, drafts: {self.draft.name}"

    @property
    def provenance(self) -> str:
        return f"{self.target.provenance}; draft model {self.draft.provenance}"

    @property
    def error(self) -> float | None:
        """The target's."""
        return self.target.error

    def step_time(self, step: Features) -> float:
        """Predict one step, in seconds, the proposal of the next drafts included."""
        n, passes = step.num_seqs, num_to_draft(step, self.num_tokens)
        first = StepFeatures(
            step.num_tokens + n,
            n,
            n if passes else 0,
            step.num_decodes,
            step.decode_kv,
            step.decode_kv_max,
            step.prefill_tokens,
            step.prefill_work,
            step.prefill_kv_max,
        )
        seconds = self.target.step_time(step) + self.draft.step_time(first)
        kv = step.decode_kv + (n - step.num_decodes) * step.prefill_kv_max  # of prompts, the longest for all
        longest = max(step.decode_kv_max, step.prefill_kv_max)
        for i in range(1, passes):
            seconds += self.draft.step_time(StepFeatures(n, n, n, n, kv + i * n, longest + i))
        return seconds

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps that follow each other."""
        n = step.num_decodes
        steps = (
            StepFeatures(step.num_tokens, step.num_seqs, step.num_sampled, n, step.decode_kv + i * n)
            for i in range(k)
        )
        return np.array([self.step_time(each) for each in steps])

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Say which steps lie outside the target's measured range; the draft model's part is an estimate."""
        return self.target.extrapolated(steps)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> WithDraftModel:
        """Return both models on a GPU with this many times the peaks."""
        return replace(
            self, target=self.target.scaled(flops, bandwidth), draft=self.draft.scaled(flops, bandwidth)
        )

    @property
    def error_terms(self) -> dict[str, float]:
        """The target's terms, and the draft model's with a prefix: their errors have nothing in common."""
        own, theirs = error_terms(self.target), error_terms(self.draft)
        return own | {f"{DRAFT}{term}": error for term, error in theirs.items()}

    def drawn(self, deviates: Mapping[str, float]) -> WithDraftModel:
        """Return both models with their terms off by so many standard errors each."""
        theirs = {term.removeprefix(DRAFT): z for term, z in deviates.items() if term.startswith(DRAFT)}
        return replace(self, target=drawn(self.target, deviates), draft=drawn(self.draft, theirs))

    def overlapped(self) -> WithDraftModel:
        """Return the target with its host time overlapped."""
        return replace(self, target=self.target.overlapped())


@dataclass(frozen=True)
class WithLookup:
    """A `LatencyModel`: another one's price, and host time to look drafts up, `seconds` a sequence.

    The sequences of a step are looked up after it, while the GPU waits; none where nothing is to be drafted.
    """

    target: LatencyModel
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.target.name}, drafts looked up"

    @property
    def provenance(self) -> str:
        return f"{self.target.provenance}; n-gram lookup {1e6 * self.seconds:g} us a sequence, as given"

    @property
    def error(self) -> float | None:
        """The target's."""
        return self.target.error

    def step_time(self, step: Features) -> float:
        """Predict one step, in seconds."""
        drafts = num_to_draft(step, 1) > 0
        return self.target.step_time(step) + (self.seconds * step.num_seqs if drafts else 0.0)

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps that follow each other."""
        return self.target.decode_times(step, k) + (self.step_time(step) - self.target.step_time(step))

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Say which steps lie outside the target's measured range."""
        return self.target.extrapolated(steps)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> WithLookup:
        """Return the target on a GPU with this many times the peaks; the host stays."""
        return replace(self, target=self.target.scaled(flops, bandwidth))

    @property
    def error_terms(self) -> dict[str, float]:
        """The target's: what was given is taken as it is."""
        return error_terms(self.target)

    def drawn(self, deviates: Mapping[str, float]) -> WithLookup:
        """Return the target with its terms off by so many standard errors each."""
        return replace(self, target=drawn(self.target, deviates))

    def overlapped(self) -> WithLookup:
        """Return the target with its host time overlapped; the lookup needs the step's tokens and is not."""
        return replace(self, target=self.target.overlapped())


def with_draft_model(
    target: LatencyModel,
    hardware: Hardware,
    draft: Model,
    num_tokens: int,
    kv_dtype: str = "auto",
    tensor_parallel_size: int = 1,
) -> WithDraftModel:
    """Price a target together with a draft model, which is estimated by the roofline and split alike."""
    return WithDraftModel(
        target, estimate(hardware, draft, kv_dtype, NO_HOST, tensor_parallel_size), num_tokens
    )
