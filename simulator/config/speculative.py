"""The section `speculative` of a scenario, and what it makes: scheduler settings, acceptance, draft model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from simulator.config.key_types import NonNegative, NonNegativeInt, Number, Section, Whole
from simulator.errors import ConfigError
from simulator.schedulers.draft_length import DraftLength, Goodput, PerBatchSize
from simulator.schedulers.speculating import Speculation
from simulator.specs import Model, get_model
from simulator.speculative import Acceptance, ByLog, ByRate, read_log, same_rate

Ranges = list[Annotated[list[NonNegativeInt], Field(min_length=3, max_length=3)]]
Share = Annotated[Number, Field(ge=0, le=1)]
_STREAM = 7  # of the seed; the workload uses those below
_RULE = "must be a rate such as 0.7, a falling list of them, or the path of an acceptance log"
_LENGTHS = "must be null, auto, or ranges of batch sizes and drafts such as [[1, 16, 3], [17, 256, 0]]"


class SpeculativeSection(Section):
    method: Literal["ngram", "draft_model"]
    num_speculative_tokens: Annotated[Whole, Field(ge=1, le=64)] = 3
    acceptance: Share | list[Share] | str
    draft_model: str | None = None
    num_speculative_tokens_per_batch_size: Literal["auto"] | Ranges | None = Field(
        None,
        description="drafts by sequences in a step: null | [[1, 16, 3], [17, 256, 0]] | auto",
    )
    lookup_us: NonNegative = Field(0.0, description="host time to look n-grams up, us a sequence and step")

    @field_validator("num_speculative_tokens_per_batch_size", mode="wrap")
    @classmethod
    def _ranges(cls, value: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            found = check(value)
        except ValidationError:
            raise ValueError(f"{_LENGTHS}, got {value!r:.80}") from None
        if isinstance(found, list):
            PerBatchSize(found)  # ValueError says what is wrong with them
        return found

    @field_validator("acceptance", mode="wrap")
    @classmethod
    def _one_kind(cls, value: object, check: ValidatorFunctionWrapHandler) -> object:
        try:
            found = check(value)
        except ValidationError:
            raise ValueError(f"{_RULE}, got {value!r:.80}") from None
        if isinstance(found, list) and any(later > rate for rate, later in pairwise(found)):
            raise ValueError(f"{_RULE}, got {value!r:.80}")
        return found

    @model_validator(mode="after")
    def _parts_fit(self) -> SpeculativeSection:
        if (self.method == "draft_model") != (self.draft_model is not None):
            raise ValueError("draft_model is needed for method: draft_model, and only there")
        if isinstance(self.acceptance, list) and len(self.acceptance) != self.num_speculative_tokens:
            raise ValueError(
                f"acceptance has {len(self.acceptance)} rates for {self.num_speculative_tokens} "
                "num_speculative_tokens; give one for each"
            )
        ranges = self.num_speculative_tokens_per_batch_size
        if (
            isinstance(ranges, list)
            and (most := max(each[2] for each in ranges)) > self.num_speculative_tokens
        ):
            raise ValueError(
                f"num_speculative_tokens_per_batch_size drafts {most}, "
                f"num_speculative_tokens allows {self.num_speculative_tokens}"
            )
        if self.lookup_us and self.method != "ngram":
            raise ValueError("lookup_us is the time to look n-grams up: 0 without method: ngram")
        return self


def build_speculation(keys: SpeculativeSection | None) -> Speculation | None:
    """Return what the scheduler must know."""
    if keys is None:
        return None
    n, lengths = keys.num_speculative_tokens, keys.num_speculative_tokens_per_batch_size
    length: DraftLength | None = None
    if lengths is not None:
        length = Goodput(n) if lengths == "auto" else PerBatchSize(lengths)
    by = Speculation.by_ngram if keys.method == "ngram" else Speculation.by_draft_model
    return by(n, length)


def build_acceptance(keys: SpeculativeSection | None, seed: int) -> Acceptance | None:
    """Return what the simulated executor must know; InputError or ConfigError for an unusable log."""
    if keys is None:
        return None
    stream, n = np.random.SeedSequence(seed, spawn_key=(_STREAM,)), keys.num_speculative_tokens
    if not isinstance(keys.acceptance, str):
        rates = keys.acceptance if isinstance(keys.acceptance, list) else same_rate(keys.acceptance, n)
        return ByRate(rates, stream)
    log = read_log(Path(keys.acceptance))
    most = max(row.drafted for row in log)
    if n > most:
        raise ConfigError(
            f"speculative.num_speculative_tokens: {n}, but {keys.acceptance} has at most {most} drafts a row"
        )
    return ByLog(log, n, stream)


def build_draft_model(keys: SpeculativeSection | None, model: Model) -> Model | None:
    """Look the draft model up; ConfigError unless it has the vocabulary of the model that it drafts for."""
    if keys is None or keys.draft_model is None:
        return None
    try:
        draft = get_model(keys.draft_model)
    except ConfigError as error:
        raise ConfigError(str(error).replace("model.name", "speculative.draft_model", 1)) from None
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"speculative.draft_model: {draft.name} has a vocabulary of {draft.vocab_size:,} tokens, "
            f"{model.name} one of {model.vocab_size:,}"
        )
    return draft
