"""Attention of a step that prefills, decodes beside it included: measured as one, priced as one.

Prefill and decode attention do not add up inside one launch: 0.7-3.5 times their sum was measured (latency
model, section 3.5). Inside the measured grid of (chunk, prefix, decodes, mean KV) a step is interpolated
linearly. Outside it the value at the grid's edge grows as a form of seven numbers does:

    c + [ (b1 s + b2 s (kv + s / 2) + b3 n + b4 sum of KV)^p + (b5 longest)^p ]^(1/p)

A step of several chunks is read as one chunk of the same work s * (kv + s / 2): what the sums of a step do
not tell is how many query tiles its chunks fill. Left out: unequal lengths among the decodes.
"""

from __future__ import annotations

from bisect import bisect_right
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.latency.base import Features, Floats

Axis = tuple[float, ...]


class MixedForm(NamedTuple):
    """Seven numbers that any mixed step can be priced by. Seconds of all layers; `power` has no unit."""

    constant: float
    per_token: float  # of the chunk
    per_work: float  # query-key pairs of the chunk
    per_decode: float
    per_kv: float  # token that a decode reads
    per_longest: float  # token of the longest context, which one block walks alone
    power: float

    def at(self, chunk: float, prefix: float, decodes: float, mean_kv: float) -> float:
        """Return the seconds of one chunk beside decodes of one length; always positive."""
        total = self.per_token * chunk + self.per_work * chunk * (prefix + chunk / 2)
        total += self.per_decode * decodes + self.per_kv * decodes * mean_kv
        longest = self.per_longest * max(prefix + chunk, mean_kv if decodes else 0.0)
        power = self.power
        return float(self.constant + (total**power + longest**power) ** (1 / power))

    def scaled(self, flops: float, bandwidth: float) -> MixedForm:
        """Return the form of a GPU with this many times the FLOP/s and bandwidth."""
        c, b1, b2, b3, b4, b5, power = self
        return MixedForm(
            c / bandwidth, b1 / flops, b2 / flops, b3 / bandwidth, b4 / bandwidth, b5 / bandwidth, power
        )

    def times(self, factor: float) -> MixedForm:
        """Return the form whose every time is `factor` times as long."""
        return MixedForm._make([*(term * factor for term in self[:-1]), self.power])


class Mixed:
    """The measured grid and the form beyond it; `table[i, j, k, l]` seconds of all layers.

    Axes: tokens of the chunk, tokens computed before it, decodes beside it (0 among them), their mean KV.
    """

    def __init__(self, axes: tuple[Axis, Axis, Axis, Axis], table: Floats, form: MixedForm) -> None:
        if table.shape != tuple(len(axis) for axis in axes):
            raise ValueError(f"a table of {table.shape} does not fit its axes")
        self.axes = axes
        self.table = table
        self.form = form
        self._flat: list[float] = table.ravel().tolist()
        sizes = [len(axis) for axis in axes]
        self._strides = (sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3])

    def seconds(self, step: Features) -> float:
        """Return the attention seconds of a step that prefills, all layers."""
        tokens, work, decodes = step.prefill_tokens, step.prefill_work, step.num_decodes
        prefix = work / tokens - tokens / 2
        chunk: float = tokens
        if prefix < 0:  # several chunks: together they see less than one of their length would
            chunk, prefix = sqrt(2 * work), 0.0
        chunks, prefixes, batches, lengths = self.axes
        kv = step.decode_kv / decodes if decodes else lengths[0]
        at = (
            _within(chunks, chunk),
            _within(prefixes, prefix),
            _within(batches, decodes),
            _within(lengths, kv),
        )
        seconds = self._interpolated(*at)
        if chunk > chunks[-1] or prefix > prefixes[-1] or decodes > batches[-1] or kv > lengths[-1]:
            seconds *= max(1.0, self.form.at(chunk, prefix, decodes, kv) / self.form.at(*at))
        return seconds

    def _interpolated(self, chunk: float, prefix: float, decodes: float, kv: float) -> float:
        a, b, c, d = self.axes
        i, x = _place(a, chunk)
        j, y = _place(b, prefix)
        k, z = _place(c, decodes)
        m, w = _place(d, kv)
        one, two, three = self._strides
        flat = self._flat
        base = i * one + j * two + k * three + m
        total = 0.0
        for at, share in (
            (base, (1 - x) * (1 - y)),
            (base + two, (1 - x) * y),
            (base + one, x * (1 - y)),
            (base + one + two, x * y),
        ):
            if share:
                low = flat[at] + w * (flat[at + 1] - flat[at])
                up = at + three
                high = flat[up] + w * (flat[up + 1] - flat[up])
                total += share * (low + z * (high - low))
        return total

    def outside(self, chunk: Floats, prefix: Floats, decodes: Floats, mean_kv: Floats) -> NDArray[np.bool_]:
        """Say which steps lie beyond the grid."""
        ends = [axis[-1] for axis in self.axes]
        beyond = (chunk > ends[0]) | (prefix > ends[1]) | (decodes > ends[2]) | (mean_kv > ends[3])
        return np.asarray(beyond, dtype=np.bool_)

    def scaled(self, flops: float, bandwidth: float) -> Mixed:
        """Return the grid of another GPU: each cell moves as the form does there."""
        return self._as(self.form.scaled(flops, bandwidth))

    def with_kv(self, bytes_ratio: float) -> Mixed:
        """Return the grid in which a token that a decode reads has so many times the bytes."""
        return self._as(self.form._replace(per_kv=self.form.per_kv * bytes_ratio))

    def _as(self, form: MixedForm) -> Mixed:
        """Return the grid with each cell moved as the form does there."""
        cells = [
            (a, b, c, d)
            for a in self.axes[0]
            for b in self.axes[1]
            for c in self.axes[2]
            for d in self.axes[3]
        ]
        ratio = np.array([form.at(*cell) / self.form.at(*cell) for cell in cells])
        return Mixed(self.axes, self.table * ratio.reshape(self.table.shape), form)

    def times(self, factor: float) -> Mixed:
        """Return the same with every time `factor` times as long."""
        return Mixed(self.axes, self.table * factor, self.form.times(factor))


def _within(axis: Axis, value: float) -> float:
    return min(max(value, axis[0]), axis[-1])


def _place(axis: Axis, value: float) -> tuple[int, float]:
    """Return the knot below a value that is within the axis, and how far it is to the next."""
    i = min(bisect_right(axis, value), len(axis) - 1) - 1
    return i, (value - axis[i]) / (axis[i + 1] - axis[i])
