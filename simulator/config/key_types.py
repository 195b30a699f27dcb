"""What a scenario's values may be, and the base of its sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # strict: true and "1" are no numbers
Whole = Annotated[int, Field(strict=True)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
PositiveFraction = Annotated[Number, Field(gt=0, le=1)]
NonNegativeInt = Annotated[Whole, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1, le=10**9)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError if a name comes twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"each name must appear once, got {name!r:.80} {times} times")
