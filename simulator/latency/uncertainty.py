"""Latency models that the truth might as well be: the errors a model states of itself, drawn.

A model that knows its errors lists them by term (`error_terms`: the relative standard error of that term's
level) and gives back a copy of itself for a set of deviates (`drawn`). Deviates are standard normal, one per
term and draw, independent of each other. They are fixed by seed, source and term alone, so that draw i is
the same for every policy, whatever the number of draws and whatever other terms a model has.
Left out: errors of form, which differ from step to step; dependence between terms.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from simulator.errors import ConfigError
from simulator.latency.base import LatencyModel

_STREAM = 100  # of the seed; workload, speculation and engine use single digits


@runtime_checkable
class Uncertain(Protocol):
    """A latency model that states its errors."""

    @property
    def error_terms(self) -> dict[str, float]: ...

    def drawn(self, deviates: Mapping[str, float]) -> LatencyModel: ...


def error_terms(latency: LatencyModel) -> dict[str, float]:
    """Return the relative standard error of each term's level; ConfigError for a model that states none."""
    if not isinstance(latency, Uncertain):
        raise ConfigError(
            f"n_model_draws: the latency model {latency.name!r:.60} states no errors that could be drawn; "
            "latency.kind must be profile or roofline"
        )
    return latency.error_terms


def drawn(latency: LatencyModel, deviates: Mapping[str, float]) -> LatencyModel:
    """Return the model whose terms are off by so many standard errors each; ConfigError as above."""
    error_terms(latency)
    assert isinstance(latency, Uncertain), "it states errors"
    return latency.drawn(deviates)


def draw_deviates(terms: Iterable[str], k: int, seed: int, source: str = "") -> list[dict[str, float]]:
    """Return k draws of a standard normal number for each term.

    `source` names where the times come from: two sources err independently, one errs once.

    >>> draw_deviates(["host"], 3, seed=0)[:2] == draw_deviates(["dense", "host"], 2, seed=0)
    False
    >>> [z["host"] for z in draw_deviates(["host"], 3, seed=0)][:1] == [
    ...     z["host"] for z in draw_deviates(["dense", "host"], 1, seed=0)
    ... ]
    True
    """
    columns = {term: _column(term, k, seed, source) for term in terms}
    return [{term: column[i] for term, column in columns.items()} for i in range(k)]


def _column(term: str, k: int, seed: int, source: str) -> list[float]:
    key = (_STREAM, zlib.crc32(source.encode()), zlib.crc32(term.encode()))
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    return [float(z) for z in rng.standard_normal(k)]
