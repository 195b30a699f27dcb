"""The sequences that decode, as one group described by sums.

It moves them all by one increment and knows how many of them open a block at which step, how much context
they read, and when one reaches its `max_tokens`.
"""

from __future__ import annotations

import heapq
import math

from simulator.request import Sequence


class DecodeGroup:
    """The running sequences that decode one token a step, as aggregates.

    A member's `num_computed` is `offset + steps`. Sums: `offset_sum`; `opens[r]` members open a block when
    `steps % block_size == r`; lazy heaps give the longest context and the next `max_tokens`.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.steps = 0
        self.size = 0
        self.offset_sum = 0
        self.opens = [0] * block_size
        self.num_publishers = 0  # members that fill blocks whose hashes others may know
        self._publishers: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self.longest = 0  # offset of the member with most tokens
        self._by_length: list[tuple[int, int, Sequence]] = []
        self.limits: list[tuple[int, int, Sequence]] = []  # (step that gives the last allowed token, ..)

    def join(self, seq: Sequence) -> None:
        """Take in a sequence whose last known token is the one being sampled."""
        offset = seq._computed - self.steps
        seq.group = self
        self.size += 1
        self._enter(seq, offset)

    def leave(self, seq: Sequence) -> None:
        """Let a member go and store its counters."""
        computed = seq.offset + self.steps
        self.size -= 1
        self._exit(seq)
        seq.group = None
        seq._computed = computed
        seq._output = computed + 1 - seq.num_prompt

    def postpone(self, seq: Sequence) -> None:
        """Leave a member out of the step about to be counted."""
        self._exit(seq)
        self._enter(seq, seq.offset - 1)

    def _enter(self, seq: Sequence, offset: int) -> None:
        size = self.block_size
        seq.offset = offset
        self.offset_sum += offset
        self.opens[-offset % size] += 1
        if offset > self.longest or self.size == 1:
            self.longest = offset
        heapq.heappush(self._by_length, (-offset, seq.order, seq))
        heapq.heappush(self.limits, (seq.limit - 1 + seq.num_prompt - offset, seq.order, seq))
        if seq.hash_private_from * size > offset + self.steps:
            self._publishers[(-offset - 1) % size][seq] = None
            self.num_publishers += 1

    def _exit(self, seq: Sequence) -> None:
        size, offset = self.block_size, seq.offset
        self.offset_sum -= offset
        self.opens[-offset % size] -= 1
        if self.num_publishers and seq in self._publishers[(-offset - 1) % size]:
            del self._publishers[(-offset - 1) % size][seq]
            self.num_publishers -= 1
        if offset == self.longest:
            seq.offset = offset + 1  # no longer what its entry says
            self._find_longest()
            seq.offset = offset

    def _find_longest(self) -> None:
        heap = self._by_length
        while heap and (heap[0][2].group is not self or heap[0][2].offset != -heap[0][0]):
            heapq.heappop(heap)
        self.longest = -heap[0][0] if heap else 0

    @property
    def num_opening(self) -> int:
        """Members that need a new block for their next token."""
        return self.opens[self.steps % self.block_size]

    @property
    def kv_sum(self) -> int:
        """Tokens whose KV the members have computed, together."""
        return self.offset_sum + self.size * self.steps

    @property
    def kv_max(self) -> int:
        """The longest member's computed tokens; 0 without members."""
        return self.longest + self.steps if self.size else 0

    def publishing(self) -> list[Sequence]:
        """Members whose next token fills a block with a hash others may know, in order of admission."""
        members = self._publishers[self.steps % self.block_size]
        return sorted(members, key=lambda seq: seq.order) if members else []

    def next_limit(self) -> float:
        """The step that gives some member its last allowed token; infinite without members."""
        heap = self.limits
        while heap:
            step, _, seq = heap[0]
            if seq.group is self and seq.limit - 1 + seq.num_prompt - seq.offset == step:
                return step
            heapq.heappop(heap)
        return math.inf

    def openings(self, k: int) -> list[int]:
        """Return how many members open a block in each of the next k steps."""
        size = self.block_size
        at = self.steps % size
        if k <= size - at:
            return self.opens[at : at + k]
        turned = self.opens[at:] + self.opens[:at]
        return (turned * (k // size + 1))[:k]

    def pop_limited(self) -> list[Sequence]:
        """Remove and return the members whose token being sampled is the last they may have."""
        done: list[Sequence] = []
        heap = self.limits
        while heap and heap[0][0] <= self.steps:
            step, _, seq = heapq.heappop(heap)
            if seq.group is self and seq.limit - 1 + seq.num_prompt - seq.offset == step:
                self.leave(seq)
                done.append(seq)
        return done
