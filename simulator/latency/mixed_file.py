"""Read a profile's grid of mixed steps: `mixed_attention` in a model's section, microseconds a layer.

The axes `chunk`, `prefix`, `decodes` (both from 0) and `kv` rise; `us` has one row for each chunk, prefix and
number of decodes, in that order, with a time for each `kv`. `form` is what prices steps beyond the grid.
"""

from __future__ import annotations

import numpy as np

from simulator.errors import InputError
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section
from simulator.latency.mixed import Mixed, MixedForm

KEY = "mixed_attention"
US = 1e-6


def read_mixed(section: Section, layers: int) -> Mixed | None:
    """Return the grid of all layers, None where the model's section has none."""
    if KEY not in section.fields:
        return None
    grid, us = section.section(KEY), layers * US
    chunk, kv = grid.numbers("chunk", rising=True), grid.numbers("kv", rising=True)
    prefix, decodes = (_from_zero(grid, name) for name in ("prefix", "decodes"))
    rows = grid.table("us", len(chunk) * len(prefix) * len(decodes), len(kv))
    if np.any(rows <= 0):
        raise InputError(f"{grid.place}: us must be > 0")
    form = grid.section("form")
    terms = [us * form.number(f"{name}_us") for name in MixedForm._fields[:-1]]
    axes = (_axis(chunk), _axis(prefix), _axis(decodes), _axis(kv))
    table = us * rows.reshape([len(axis) for axis in axes])
    return Mixed(axes, table, MixedForm._make([*terms, form.number("power", 0.1, 100)]))


def _axis(numbers: Floats) -> tuple[float, ...]:
    return tuple(numbers.tolist())


def _from_zero(section: Section, key: str) -> Floats:
    numbers = section.numbers(key)
    if numbers[0] != 0 or np.any(np.diff(numbers) <= 0):
        raise InputError(f"{section.place}: {key} must start at 0 and rise")
    return numbers
