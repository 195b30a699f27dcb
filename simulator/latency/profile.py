"""A step priced by tables: host + layers * (dense by tokens + attention) + head by sampled rows.

    gpu  = dense[tokens] + head[sampled rows] + decode attention(batch, sum of KV) + prefill attention
    step = gpu + host            or the longer of the two, when the engine overlaps them

Dense is a list over the step's tokens, padded to CUDA-graph sizes, because tile quantisation makes steps of
up to 43 % in it (latency model, section 3.2) and no smooth curve follows them. Decode attention is bilinear
in (batch, mean KV); for a batch that stays the same it is piecewise linear in the sum of KV, so that many
future steps are one NumPy expression, bitwise equal to as many calls. Only additions and multiplications
vary along such a run: NumPy's pow and exp may differ from Python's in the last bit.
Mixed steps have a grid of their own where they were measured (`mixed`); elsewhere prefill and decode
attention are added, unverified (section 3.5 saw 0.7-3.5 times the sum). Left out: unequal KV lengths within
a batch (+2-3 %), the sampler (in the host's share, or measured with the head).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.latency.all_reduce import Communication
from simulator.latency.base import Features, Floats
from simulator.latency.grid import DecodeGrid
from simulator.latency.mixed import Mixed
from simulator.latency.prefill import PrefillFactor, PrefillPrice
from simulator.latency.reach import Reach
from simulator.latency.roofline import PrefillTerms, Roofline

MAX_TOKENS = 16_384  # rows of the dense table; larger steps are computed when asked for
MAX_ROWS = 2_048  # rows of the head's table
MAX_BATCH = 1_024  # batches whose decode attention is laid out in advance

Row = tuple[list[float], list[float], list[float]]  # knots in sum of KV, seconds there, seconds per token


class Host(NamedTuple):
    """What the CPU adds to a step, in seconds."""

    per_step: float
    per_seq: float


class Errors(NamedTuple):
    """Relative standard error of each term's level, for `draws`; each a parameter of `_times`."""

    dense: float
    decode: float
    prefill: float
    host: float


@dataclass(frozen=True, eq=False)
class Profile:
    """The price list of one model on one GPU; a `LatencyModel`. Seconds, all layers, whole model.

    `dense[m]` covers m tokens, `head[r]` r sampled rows; index 0 is there and 0 for the head.
    """

    name: str
    provenance: str
    error: float | None
    host: Host
    dense: Floats
    head: Floats
    decode: DecodeGrid
    prefill: PrefillTerms
    roofline: Roofline
    reach: Reach | None  # None: nothing is measured, every step is extrapolated
    errors: Errors
    notes: tuple[str, ...] = ()  # which source served which operation
    kernels: str | None = None  # whose kernels were timed, None if unknown
    overlap: bool = False
    communication: Communication | None = None  # of a tensor-parallel group; `dense` and `head` have it in
    derived: tuple[str, ...] = ()  # what another width of weights or KV made of the measured times
    ratio_errors: Mapping[str, float] = field(default_factory=dict)  # of the terms so moved, by name
    mixed: Mixed | None = None  # attention of steps that prefill; None: prefill and decode are added
    prefill_factor: PrefillFactor | None = None  # None: `prefill` alone
    _dense: list[float] = field(init=False, repr=False)
    _head: list[float] = field(init=False, repr=False)
    _rows: list[Row] = field(init=False, repr=False)
    _columns: tuple[Floats, Floats, Floats] = field(init=False, repr=False)
    _prefill: PrefillPrice = field(init=False, repr=False)
    _host: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        columns = self.decode.rows(np.arange(MAX_BATCH + 1))
        lay = object.__setattr__  # frozen for others; the same numbers as plain lists and tuples
        lay(self, "_dense", self.dense.tolist())
        lay(self, "_head", self.head.tolist())
        lay(self, "_prefill", PrefillPrice(self.prefill, self.prefill_factor, self.roofline.pair_seconds))
        lay(self, "_host", tuple(self.host))
        lay(self, "_columns", columns)
        lay(self, "_rows", list(zip(*(part.tolist() for part in columns), strict=True)))

    def step_time(self, step: Features) -> float:
        """Predict one step, in seconds. Reads each sum once; past the tables the roofline continues them."""
        tokens = step.num_tokens
        sampled = step.num_sampled
        try:
            gpu = self._dense[tokens] + self._head[sampled]
        except IndexError:
            gpu = self._beyond(tokens, sampled)
        batch = step.num_decodes
        prefill_tokens = step.prefill_tokens
        mixed = self.mixed if prefill_tokens else None
        if mixed is not None:
            gpu += mixed.seconds(step)
        elif batch:
            try:
                knots, seconds, slopes = self._rows[batch]
            except IndexError:
                knots, seconds, slopes = self._row(batch)
            kv = step.decode_kv
            j = bisect_right(knots, kv) - 1
            gpu += seconds[j] + slopes[j] * (kv - knots[j])
        num_seqs = step.num_seqs
        if prefill_tokens and mixed is None:
            chunks = num_seqs - batch
            gpu += self._prefill.seconds(chunks, prefill_tokens, step.prefill_work, step.prefill_kv_max)
        per_step, per_seq = self._host
        host = per_step + per_seq * num_seqs
        if self.overlap:
            return gpu if gpu > host else host
        return gpu + host

    def decode_times(self, step: Features, k: int) -> Floats:
        """Predict k decode steps that follow each other: the arithmetic of `step_time`, in its order."""
        tokens, sampled, batch = step.num_tokens, step.num_sampled, step.num_decodes
        try:
            base = self._dense[tokens] + self._head[sampled]
        except IndexError:
            base = self._beyond(tokens, sampled)
        if batch <= MAX_BATCH:
            knots, seconds, slopes = (part[batch] for part in self._columns)
        else:
            knots, seconds, slopes = (np.array(part) for part in self._row(batch))
        kv = step.decode_kv + batch * np.arange(k)
        j = knots.searchsorted(kv, side="right") - 1
        gpu: Floats = base + (seconds[j] + slopes[j] * (kv - knots[j]))
        per_step, per_seq = self.host
        host = per_step + per_seq * step.num_seqs
        return np.maximum(gpu, host) if self.overlap else gpu + host

    def _beyond(self, tokens: int, sampled: int) -> float:
        """Dense and head seconds where a table ends: its last entry, in proportion to the roofline."""
        return _continued(self.dense, self.roofline.dense, tokens) + _continued(
            self.head, self.roofline.head, sampled
        )

    def _row(self, batch: int) -> Row:
        knots, seconds, slopes = (part[0].tolist() for part in self.decode.rows([batch]))
        return knots, seconds, slopes

    def extrapolated(self, steps: dict[str, NDArray[np.generic]]) -> NDArray[np.bool_]:
        """Say which steps lie outside the measured range. Added mixed ones inside it are not marked."""
        if self.reach is None:
            return np.ones(len(steps["num_tokens"]), dtype=np.bool_)
        return self.reach.outside(steps, self.mixed)

    def scaled(self, flops: float = 1.0, bandwidth: float = 1.0) -> Profile:
        """Return the profile of a GPU with this many times the FLOP/s and memory bandwidth.

        Dense and head move as the roofline does at each size; decode attention with the bandwidth,
        prefill attention with the FLOP/s; the host stays. An estimate: overheads are scaled too.
        """
        if flops <= 0 or bandwidth <= 0:
            raise ValueError(f"flops and bandwidth must be > 0, got {flops} and {bandwidth}")
        if self.communication is not None:  # links stay as they are
            return self.alone().scaled(flops, bandwidth).grouped(self.communication)
        old, new = self.roofline, self.roofline.scaled(flops, bandwidth)
        tokens, rows = np.arange(len(self.dense)), np.arange(len(self.head))
        head = np.maximum(old.head(rows), 1e-300)
        work = PrefillTerms(*(term / flops for term in self.prefill))
        return replace(
            self,
            dense=self.dense * (new.dense(tokens) / old.dense(tokens)),
            head=self.head * (new.head(rows) / head),
            decode=self.decode._replace(seconds=self.decode.seconds / bandwidth),
            prefill=work._replace(per_kv=self.prefill.per_kv / bandwidth),
            roofline=new,
            mixed=None if self.mixed is None else self.mixed.scaled(flops, bandwidth),
            provenance=f"{self.provenance}; scaled: FLOP/s x {flops:g}, bandwidth x {bandwidth:g}",
        )

    def grouped(self, communication: Communication) -> Profile:
        """Return the profile of a tensor-parallel group whose ranks are each what this one prices."""
        return replace(
            self,
            dense=self.dense + communication.dense,
            head=self.head + communication.head,
            communication=communication,
            provenance=f"{self.provenance}; {communication.source}",
        )

    def alone(self) -> Profile:
        """Return one rank's profile, without communication."""
        group = self.communication
        if group is None:
            return self
        return replace(
            self,
            dense=self.dense - group.dense,
            head=self.head - group.head,
            communication=None,
            provenance=self.provenance.removesuffix(f"; {group.source}"),
        )

    def overlapped(self) -> Profile:
        """Return the profile of an engine that prepares the next step while the GPU runs this one."""
        return replace(self, overlap=True)

    @property
    def least_prefill(self) -> PrefillTerms:
        """Terms below which no step's prefill attention is priced: `prefill` times the least factor."""
        return self._prefill.least()

    @property
    def error_terms(self) -> dict[str, float]:
        """Relative standard error of each term's level, by term; `communication` within a group of GPUs.

        `weights` and `kv_cache` are those of the ratios by which a derived profile's terms were moved.
        """
        group = {} if self.communication is None else {"communication": self.communication.error}
        return {**self.errors._asdict(), **group, **self.ratio_errors}

    def drawn(self, deviates: Mapping[str, float]) -> Profile:
        """Return the profile whose terms are off by so many standard errors each.

        A term's factor is log-normal with median 1 if its deviate is normal; 0 leaves it to the bit.
        """
        return self._times(
            **{term: math.exp(deviates[term] * error) for term, error in self.error_terms.items()}
        )

    def with_gpu_scale(self, scale: float) -> Profile:
        """Return the profile with every GPU time multiplied; the host stays."""
        return self if scale == 1 else self._times(scale, scale, scale, 1.0)

    def draws(self, k: int, rng: np.random.Generator | None = None) -> list[Profile]:
        """Return k profiles that the truth might as well be: each term times a log-normal factor.

        Factors are drawn once per profile, not per step: it is the level of a term that is uncertain. For
        several candidates under the same draws see `simulator.latency.uncertainty`.
        """
        if k < 0:
            raise ValueError(f"k must be >= 0, got {k}")
        generator = np.random.default_rng(0) if rng is None else rng
        terms, own = self.error_terms, len(self.errors)
        drawn = [generator.standard_normal((k, n)) for n in (own, len(terms) - own)]
        rows = np.concatenate(drawn, axis=1).tolist()  # what a group adds changes no other term's draws
        return [self.drawn(dict(zip(terms, row, strict=True))) for row in rows]

    def _times(
        self,
        dense: float,
        decode: float,
        prefill: float,
        host: float,
        communication: float = 1.0,
        weights: float = 1.0,
        kv_cache: float = 1.0,
    ) -> Profile:
        if self.communication is not None:
            alone = self.alone()._times(dense, decode, prefill, host, 1.0, weights, kv_cache)
            return alone.grouped(self.communication.times(communication))
        dense, decode, head = dense * weights, decode * kv_cache, dense
        return replace(
            self,
            dense=self.dense * dense,
            head=self.head * head,
            decode=self.decode._replace(seconds=self.decode.seconds * decode),
            prefill=PrefillTerms(*(term * prefill for term in self.prefill)),
            host=Host(*(term * host for term in self.host)),
            mixed=None if self.mixed is None else self.mixed.times(decode),
        )


def _continued(table: Floats, formula: Callable[[float], Floats], at: int) -> float:
    last = len(table) - 1
    return float(table[at] if at <= last else table[last] * (formula(at) / formula(last)))
