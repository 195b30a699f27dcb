"""What one engine step computes: one decode group and explicit chunks, described by sums.

A step's cost must not grow with the number of running sequences, so the sequences that decode are
not listed: they form a `DecodeGroup` that moves them all by one increment and knows how many of them
open a block at which step, how much context they read, and when one reaches its `max_tokens`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Literal, NamedTuple

from simulator.request import Sequence


@dataclass(eq=False, slots=True)
class Chunk:
    """Part of a sequence computed in one step: `num_tokens` from position `start` on."""

    seq: Sequence
    num_tokens: int
    start: int
    samples: bool  # reaches the sequence's last token, so a new token is sampled
    cached: int | None = None  # tokens found in the prefix cache, if the step admitted the sequence


class Move(NamedTuple):
    """A transfer between the GPU and a tier below it, which the executor does beside or before the step.

    `out` copies blocks away that the step may overwrite, `in` fetches what a sequence needs before it runs.
    """

    seq: Sequence | None  # whose blocks; None: cached blocks of nobody's, which the GPU evicted
    tier: int
    num_blocks: int
    direction: Literal["in", "out"]


class Stall(NamedTuple):
    """Seconds by which copies out held a step's forward pass back: of swapped and of evicted blocks."""

    swap: float
    offload: float


NO_STALL = Stall(0.0, 0.0)


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


class Batch:
    """One step: `num_decodes` members of the decode group and the chunks, with the sums that price it.

    Satisfies `simulator.latency.Features`. Lengths in tokens.
    """

    __slots__ = (
        "budget",
        "chunks",
        "decode_kv",
        "ending",
        "group_kv_max",
        "moves",
        "num_decodes",
        "num_padding",
        "num_sampled",
        "num_seqs",
        "num_tokens",
        "padding_kv_max",
        "postponed",
        "preempted",
        "prefill_kv_max",
        "prefill_tokens",
        "prefill_work",
        "stall",
        "threshold",
    )

    def __init__(self, budget: int, threshold: int = 0) -> None:
        self.budget = budget  # tokens that may still be scheduled in this step
        self.threshold = threshold  # most tokens of one sequence in this step; 0 = no such limit
        self.chunks: list[Chunk] = []
        self.preempted: Many[Sequence] = ()  # sequences that lost their blocks to this step
        self.postponed: Many[Sequence] = ()  # members of the group that this step leaves out
        self.ending: Many[Sequence] = ()  # sequences whose token sampled in this step is their last allowed
        self.moves: Many[
            Move
        ] = ()  # transfers that this step begins, in the order in which they were decided
        self.stall = NO_STALL  # the engine says
        self.num_padding = 0  # finished sequences that a static batch still computes
        self.num_decodes = 0  # padding included
        self.decode_kv = self.padding_kv_max = 0
        self.group_kv_max = 0  # longest context that a member of the group reads
        self.num_tokens = self.num_seqs = self.num_sampled = 0
        self.prefill_tokens = self.prefill_kv_max = 0
        self.prefill_work = 0.0

    @property
    def decode_kv_max(self) -> int:
        return max(self.group_kv_max, self.padding_kv_max)

    def __bool__(self) -> bool:
        return self.num_tokens > 0

    def chunk_size(self, seq: Sequence, computed: int) -> int:
        """Tokens of a sequence to schedule when `computed` are done: threshold, then budget (rule 3.5)."""
        n = seq.num_prompt + (seq._output if seq.group is None else seq.num_output) - computed
        if 0 < self.threshold < n:
            n = self.threshold
        return n if n < self.budget else self.budget

    def add_decodes(self, n: int, kv: int, longest: int) -> None:
        """Schedule n decodes that read `kv` tokens of context in all, the new ones included."""
        more = n - self.num_decodes
        self.num_decodes = n
        self.decode_kv = kv
        self.group_kv_max = longest
        self.num_tokens += more
        self.num_seqs += more
        self.num_sampled += more
        self.budget -= more

    def add_padding(self, kv_lens: list[int]) -> None:
        """Let finished sequences be computed on beside the decodes; their tokens are thrown away."""
        n = len(kv_lens)
        if n:
            self.num_padding = n
            self.padding_kv_max = max(kv_lens)
            self.add_decodes(self.num_decodes + n, self.decode_kv + sum(kv_lens), self.group_kv_max)

    def grow(self, members: int, k: int) -> None:
        """Describe the step k steps later: `members` decodes read a token more each, a chunk goes on."""
        n = self.prefill_tokens
        self.decode_kv += k * members
        self.group_kv_max += k
        self.prefill_work += k * n * n
        self.prefill_kv_max += k * n

    def add_chunk(self, seq: Sequence, n: int, start: int, cached: int | None = None) -> None:
        """Schedule n tokens of a sequence from position `start` on."""
        end = start + n
        if seq.cached is not None:
            cached, seq.cached = seq.cached, None
        samples = end == seq.num_prompt + seq._output
        self.chunks.append(Chunk(seq, n, start, samples, cached))
        self.budget -= n
        self.num_tokens += n
        self.num_seqs += 1
        self.num_sampled += samples
        self.prefill_tokens += n
        self.prefill_work += n * (start + n / 2)
        if end > self.prefill_kv_max:
            self.prefill_kv_max = end

    def rows(self, running: Iterable[Sequence]) -> list[tuple[Sequence, int]]:
        """List the scheduled sequences in the order of `running`, each with its number of tokens."""
        chunks = {chunk.seq: chunk.num_tokens for chunk in self.chunks}
        skipped = set(self.postponed)
        decodes = self.num_decodes > self.num_padding
        rows = []
        for seq in running:
            if seq in chunks:
                rows.append((seq, chunks[seq]))
            elif decodes and ((seq.group is not None and seq not in skipped) or seq in self.ending):
                rows.append((seq, 1))
        return rows


@dataclass(eq=False, slots=True)
class StepResult:
    """What executing a batch taught. Every scheduled sequence that reached its end sampled one token."""

    stopped: list[Sequence]  # sequences whose sampled token ended the answer
    hashes: dict[Sequence, list[tuple[int, int]]] | None = None  # hashes of blocks whose tokens are now known


NOTHING_ENDED = StepResult([])
