"""Read a profile's prefill attention: a line in microseconds a layer, and its `residual` if it has one.

The residual is a factor on the line: `tokens` (mean tokens a chunk) and `chunks` rise; `factor` has one row
for each of `tokens`, with a number for each of `chunks`. Profiles written before it existed have none and are
the line alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.errors import InputError
from simulator.latency.checked_json import Section
from simulator.latency.prefill import PrefillFactor
from simulator.latency.roofline import PrefillTerms, Roofline

RESIDUAL = "residual"
FARTHEST = 5.0  # a line that is off by more than this, either way, is no fit
MOST_CHUNKS = 4096  # rows are laid out for each number of chunks up to the last
US = 1e-6


class Prefill(NamedTuple):
    """Prefill attention of all layers, in seconds; `longest` is the longest context measured, in tokens."""

    terms: PrefillTerms
    factor: PrefillFactor | None
    longest: float


def read_prefill(section: Section, roofline: Roofline) -> Prefill:
    """Read `prefill_attention` of a model's section."""
    fields = section.section("prefill_attention")
    longest, layers = fields.number("longest", 1), roofline.model.num_layers
    terms = PrefillTerms(
        constant=layers * US * fields.number("constant_us"),
        per_seq=layers * US * fields.number("per_seq_us"),
        per_token=layers * US * fields.number("per_token_us"),
        per_work=layers * US * fields.number("per_work_us"),
        per_kv=layers * roofline.kv_token_bytes / roofline.bandwidth,
    )
    return Prefill(terms, _factor(fields), longest)


def _factor(prefill: Section) -> PrefillFactor | None:
    if RESIDUAL not in prefill.fields:
        return None
    grid = prefill.section(RESIDUAL)
    tokens, chunks = (grid.numbers(name, rising=True) for name in ("tokens", "chunks"))
    if chunks[-1] > MOST_CHUNKS:
        raise InputError(f"{grid.place}: chunks must end at {MOST_CHUNKS} or before, got {chunks[-1]:g}")
    factor = grid.table("factor", len(tokens), len(chunks))
    if np.any((factor < 1 / FARTHEST) | (factor > FARTHEST)):
        raise InputError(f"{grid.place}: factor must be between {1 / FARTHEST:g} and {FARTHEST:g}")
    return PrefillFactor(tokens, chunks, factor)
