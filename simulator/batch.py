"""What one engine step computes: one decode group and explicit chunks, described by sums.

A step's cost must not grow with the number of running sequences, so those that decode are not listed: they
form a `DecodeGroup` (`simulator.decode_group`). Under speculation every sequence is a chunk instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from simulator.request import Sequence

if TYPE_CHECKING:
    from simulator.decode_group import DecodeGroup


@dataclass(eq=False, slots=True)
class Chunk:
    """Part of a sequence computed in one step: `num_tokens` from position `start` on."""

    seq: Sequence
    num_tokens: int
    start: int
    samples: bool  # reaches the sequence's last token, so a new token is sampled
    cached: int | None = None  # tokens found in the prefix cache, if the step admitted the sequence
    num_draft: int = (
        0  # of its last tokens, drafts to verify; in a chunk that is no decode, placeholders (3.17)
    )
    is_decode: bool = False  # of a sequence that decodes by speculation


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


class Batch:
    """One step: `num_decodes` members of the decode group and the chunks, with the sums that price it.

    Satisfies `simulator.latency.Features`. Lengths in tokens.
    """

    # What `SpeculativeBatch` counts.
    draft_slots = 0  # rows beyond its tokens that the drafter needs for every sequence (rule 3.1)
    num_drafts = 0  # draft tokens to verify
    num_verified = 0  # chunks of sequences that decode, which `num_decodes` counts too
    num_to_draft: int | None = None  # most tokens each sequence drafts for its next step; None: all it may

    __slots__ = (
        "budget",
        "chunks",
        "decode_kv",
        "ending",
        "group",
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
        self.group: DecodeGroup | None = None  # that of its decodes, if several batches are in flight
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

    def _has(self, seq: Sequence) -> bool:
        return seq.group is not None and (self.group is None or seq.group is self.group)

    def rows(self, running: Iterable[Sequence]) -> list[tuple[Sequence, int]]:
        """List the scheduled sequences in the order of `running`, each with its number of tokens."""
        chunks = {chunk.seq: chunk.num_tokens for chunk in self.chunks}
        skipped = set(self.postponed)
        decodes = self.num_decodes > self.num_padding
        rows = []
        for seq in running:
            if seq in chunks:
                rows.append((seq, chunks[seq]))
            elif decodes and ((self._has(seq) and seq not in skipped) or seq in self.ending):
                rows.append((seq, 1))
        return rows


class Sampled(NamedTuple):
    """What one step gave a sequence under speculation.

    `num_tokens` of its answer, cut where that ends; `num_accepted` drafts, those beyond the end included.
    """

    num_tokens: int
    num_accepted: int


ONE_TOKEN = Sampled(1, 0)


@dataclass(eq=False, slots=True)
class StepResult:
    """What executing a batch taught. Every scheduled sequence that reached its end sampled one token.

    Under speculation `sampled` says what it got instead, and `drafts` how many tokens are proposed for its
    next step; a sequence that is missing there sampled one token, and has none.
    """

    stopped: list[Sequence]  # sequences whose sampled token ended the answer
    hashes: dict[Sequence, list[tuple[int, int]]] | None = None  # hashes of blocks whose tokens are now known
    sampled: dict[Sequence, Sampled] | None = None
    drafts: dict[Sequence, int] | None = None


NOTHING_ENDED = StepResult([])
