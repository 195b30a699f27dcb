"""The links between the GPU and the tiers below it: when each transfer begins and ends.

Every tier has one link a direction, and a link does one transfer at a time, in the order in which they
were decided. Nothing is overwritten before its copy is elsewhere: what a tier passes down goes first, then
what the GPU copies out, and only then begin the step and the fetches that were decided with it.
Left out: a transfer takes its own tier's link alone, so an nvme that is read through host memory takes
nothing from the host's link; transfers do not slow kernels down.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simulator.batch import Move, Stall
from simulator.kv.tiers import Tiers
from simulator.request import Sequence


class Moved(NamedTuple):
    """When a batch's transfers are done, s. The parts of the stall add up to `start` - now."""

    start: float  # the GPU may overwrite what was copied out
    stall: Stall
    arrivals: dict[Sequence, float]  # when each fetched sequence has all its blocks


class Links:
    """When each tier's link is free, by direction."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._free: dict[tuple[int, str], float] = {}

    def move(self, moves: Iterable[Move], now: float) -> Moved:
        """Begin a batch's transfers at `now` or as soon as their links are free."""
        every = list(moves)
        start = below = now  # below: when the tiers have passed down what they give up
        swap = offload = 0.0
        for move in sorted((each for each in every if each.direction == "out"), key=lambda each: -each.tier):
            end = self._transfer(move, max(now, below))
            longer = max(end - start, 0.0)
            if move.seq is None:
                below = end
                offload += longer
            else:
                swap += longer
            start = max(start, end)
        arrivals: dict[Sequence, float] = {}
        for move in every:
            if move.direction == "in":
                assert move.seq is not None, "blocks are fetched for a sequence"
                end = self._transfer(move, start)
                arrivals[move.seq] = max(arrivals.get(move.seq, end), end)
        return Moved(start, Stall(swap, offload), arrivals)

    def _transfer(self, move: Move, earliest: float) -> float:
        link = move.tier, move.direction
        begin = max(earliest, self._free.get(link, 0.0))
        end = begin + self._tiers[move.tier].transfer_time(move.num_blocks)
        self._free[link] = end
        return end
