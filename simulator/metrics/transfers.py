"""What preemption and the tiers below the GPU cost: tokens moved and computed again, and the time lost.

Swapping and offloading hold steps back until the copies are out (`stall`); fetching keeps sequences waiting;
recomputation takes its share of the steps in which it happens.
"""

from __future__ import annotations

import numpy as np

from simulator.batch import NO_STALL, Batch, Chunk, Stall
from simulator.metrics.tables import Floats, StepTable


class Transfers:
    """Collect them in a run; steps are counted from 0."""

    def __init__(self) -> None:
        self.swapped_blocks = 0
        self.offloaded_blocks = 0
        self.fetched_blocks = 0
        self.fetch_wait = 0.0  # s
        self._stalls: dict[int, Stall] = {}
        self._again: dict[int, int] = {}  # step -> tokens that had been computed before
        self.last: tuple[int, int, int, int] | None = None  # step, next position, tokens a step, tokens lost

    def moved(self, batch: Batch, step: int) -> None:
        """Note the transfers that a step begins, and how long it waits for them."""
        for move in batch.moves:
            if move.direction == "in":
                self.fetched_blocks += move.num_blocks
            elif move.seq is None:
                self.offloaded_blocks += move.num_blocks
            else:
                self.swapped_blocks += move.num_blocks
        if batch.stall is not NO_STALL:
            self._stalls[step] = batch.stall

    def recomputed(self, chunk: Chunk, step: int) -> None:
        """Note a chunk that begins below what its sequence had computed when it was preempted."""
        start, n, lost = chunk.start, chunk.num_tokens, chunk.seq.lost
        self._again[step] = self._again.get(step, 0) + min(n, lost - start)
        self.last = step + 1, start + n, n, lost

    def repeated(self, step: int, k: int) -> None:
        """Note that from this step on the last one is taken k times more; its only chunk goes on."""
        if self.last is None or self.last[0] != step:
            return
        _, start, n, lost = self.last
        for i in range(k):
            if start + i * n < lost:
                self._again[step + i] = min(n, lost - start - i * n)
        self.last = step + k, start + k * n, n, lost

    def stall(self, num_steps: int) -> Floats:
        """Return how long each step's forward pass was held back, s."""
        column = np.zeros(num_steps)
        for step, stalls in self._stalls.items():
            if step < num_steps:
                column[step] = sum(stalls)
        return column

    def summary(self, steps: StepTable, block_size: int) -> dict[str, object]:
        """Return the sums over the steps that have ended.

        Moved tokens are counted in whole blocks, once a transfer: what goes on to the tier below counts
        twice. `swap_stall_s` and `offload_stall_s` are the time that steps began later, `fetch_wait_s` that
        between admission and arrival, summed over sequences. `recompute_s` is the duration of forward
        passes, each times the share of its tokens that had been computed before a preemption.
        """
        ended = [(step, n) for step, n in self._again.items() if step < len(steps)]
        stalls = [each for step, each in self._stalls.items() if step < len(steps)]

        def again(i: int, n: int) -> float:
            return float(steps.end[i] - steps.start[i] - steps.stall[i]) * n / int(steps.num_tokens[i])

        return {
            "swapped_tokens": self.swapped_blocks * block_size,
            "offloaded_tokens": self.offloaded_blocks * block_size,
            "fetched_tokens": self.fetched_blocks * block_size,
            "recomputed_tokens": sum(n for _, n in ended),
            "swap_stall_s": sum((each.swap for each in stalls), 0.0),
            "offload_stall_s": sum((each.offload for each in stalls), 0.0),
            "fetch_wait_s": self.fetch_wait,
            "recompute_s": sum((again(step, n) for step, n in ended), 0.0),
        }
