"""Speculative decoding: sequences that decode propose tokens, and a step verifies them all at once.

A sequence that decodes is a chunk here: its last known token and its drafts, of which the model accepts a
first few and adds one of its own (Leviathan et al., ICML 2023). `update` takes back what was rejected. Rules
3.1, 3.5, 3.7, 3.10, 3.17, 5.4, 6.5, 8.1 and 8.2 of vLLM's scheduler. Where the drafts come from and which are
accepted is the executor's to say; how many are drafted may change from step to step (`draft_length`). Left
out: asynchronous scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulator.batch import ONE_TOKEN, Batch, Chunk, StepResult
from simulator.request import Sequence
from simulator.schedulers.draft_length import DraftLength
from simulator.schedulers.fetching import add_evicted
from simulator.schedulers.listed import take_listed

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


class Speculation(NamedTuple):
    """How many tokens are drafted at most, and what the drafter needs for it.

    `lookahead` token slots are kept beyond those of the step (rule 5.4), for what the draft model writes;
    `draft_slots` rows of the token budget go to every sequence of a step (rule 3.1). `length` chooses in each
    step how many are drafted for the next; None: always all.
    """

    num_tokens: int
    lookahead: int = 0
    draft_slots: int = 0
    length: DraftLength | None = None

    @classmethod
    def by_ngram(cls, num_tokens: int, length: DraftLength | None = None) -> Speculation:
        """Look the drafts up in the sequence itself; costs neither slots nor rows."""
        return cls(num_tokens, length=length)

    @classmethod
    def by_draft_model(cls, num_tokens: int, length: DraftLength | None = None) -> Speculation:
        """Let a smaller model draft; it has KV of its own in the same blocks."""
        return cls(num_tokens, lookahead=num_tokens, draft_slots=1, length=length)

    @property
    def spare_slots(self) -> int:
        """Token slots that a sequence may hold beyond its tokens."""
        return self.num_tokens + self.lookahead


class SpeculativeBatch(Batch):
    """A step with drafts. `budget` is what the next sequence may have, the drafter's rows left aside.

    A verified sequence reads its context once, as a decode does: it counts in `num_decodes` and `decode_kv`,
    its drafts are further rows in `num_tokens`, and the head computes them all (`num_sampled`).
    """

    __slots__ = ("draft_slots", "max_model_len", "num_drafts", "num_to_draft", "num_verified")

    def __init__(self, budget: int, threshold: int, draft_slots: int, max_model_len: int) -> None:
        super().__init__(budget - draft_slots, threshold)
        self.draft_slots = draft_slots
        self.max_model_len = max_model_len
        self.num_drafts = 0
        self.num_verified = 0
        self.num_to_draft: int | None = None

    def chunk_size(self, seq: Sequence, computed: int) -> int:
        """Tokens to schedule, drafts included: threshold, then budget, then length (rule 3.5)."""
        n = seq.num_tokens + seq.num_draft - computed
        if 0 < self.threshold < n:
            n = self.threshold
        return min(n, self.budget, self.max_model_len - computed - 1)

    def add_chunk(self, seq: Sequence, n: int, start: int, cached: int | None = None) -> None:
        """Schedule n tokens of a sequence from `start` on; those beyond its last known one are drafts."""
        end = start + n
        num_draft = max(0, end - seq.num_tokens)
        samples = end >= seq.num_tokens
        if seq.cached is not None:
            cached, seq.cached = seq.cached, None
        self.chunks.append(Chunk(seq, n, start, samples, cached, num_draft, seq.speculates))
        self.budget -= n + self.draft_slots
        self.num_tokens += n
        self.num_seqs += 1
        self.num_sampled += samples + num_draft
        self.num_drafts += num_draft
        if seq.speculates:
            self.num_verified += 1
            self.num_decodes += 1
            self.decode_kv += end
            self.group_kv_max = max(self.group_kv_max, end)
        else:
            n -= num_draft
            self.prefill_tokens += n
            self.prefill_work += n * (start + n / 2)
            self.prefill_kv_max = max(self.prefill_kv_max, start + n)


def open_batch(scheduler: Scheduler, threshold: int) -> SpeculativeBatch:
    """Begin a step."""
    assert scheduler.speculation is not None, "a step with drafts"
    slots = scheduler.speculation.draft_slots
    return SpeculativeBatch(scheduler.max_num_batched_tokens, threshold, slots, scheduler.max_model_len)


def take_decodes(scheduler: Scheduler, batch: Batch) -> None:
    """Schedule what decodes, in order of admission; while blocks are short, preempt (3.7)."""
    take_listed(scheduler, batch, [seq for seq in scheduler.running if seq.speculates])


def num_rows(scheduler: Scheduler) -> int:
    """Tokens of the budget that verifying all drafts takes, and that the sequence after them leaves aside."""
    assert scheduler.speculation is not None, "rows of a scheduler that speculates"
    slots = scheduler.speculation.draft_slots
    return slots + sum(1 + seq.num_draft + slots for seq in scheduler.running if seq.speculates)


def num_placeholders(scheduler: Scheduler, batch: Batch, seq: Sequence, start: int) -> int:
    """Drafts with which a sequence is padded that is admitted with one token to compute (rule 3.17).

    Beside decodes alone it then has as many rows as they have. None where the number of drafts changes.
    """
    speculation = scheduler.speculation
    if speculation is None or speculation.length is not None or seq.num_tokens - start > 1:
        return 0
    if start + speculation.num_tokens + 2 > scheduler.max_model_len:
        return 0
    ran = [chunk for chunk in batch.chunks if chunk.cached is None]
    if any(not chunk.is_decode for chunk in ran) or not (ran or start):
        return 0
    return min(speculation.num_tokens, batch.threshold - 1) if batch.threshold else speculation.num_tokens


def commit(scheduler: Scheduler, batch: Batch) -> Batch:
    """Count what is scheduled as computed (3.24), drafts too."""
    if batch.num_sampled:
        scheduler.num_vain = 0
    served = scheduler.waiting.served
    for chunk in batch.chunks:
        seq = chunk.seq
        if served is not None:
            served(seq, chunk.num_tokens - chunk.num_draft)
        seq._computed += chunk.num_tokens
        if chunk.samples and not chunk.is_decode:
            del scheduler.prefills[seq]
            seq.speculates = True
    if scheduler.kv.tiers is not None:
        add_evicted(scheduler.kv.tiers, batch)
    speculation = scheduler.speculation
    if speculation is not None and speculation.length is not None:
        assert isinstance(batch, SpeculativeBatch), "as open_batch made it"
        batch.num_to_draft = min(speculation.length.choose(batch, scheduler.ctx), speculation.num_tokens)
    return batch


def learn(scheduler: Scheduler, batch: Batch, result: StepResult) -> list[Sequence]:
    """Give the sequences their tokens and take rejected drafts back (8.1); new ones replace the old (8.2).

    Returns those that have their last allowed token; what was sampled beyond it is dropped.
    """
    ended: list[Sequence] = []
    served = scheduler.waiting.served
    sampled, drafts = result.sampled or {}, result.drafts or {}
    length = None if scheduler.speculation is None else scheduler.speculation.length
    for chunk in batch.chunks:
        seq = chunk.seq
        if not chunk.samples or seq.state != "running":
            continue
        num_tokens, num_accepted = sampled.get(seq, ONE_TOKEN)
        if not 0 <= num_accepted <= chunk.num_draft or not 1 <= num_tokens <= num_accepted + 1:
            raise ValueError(
                f"{seq!r}: {num_tokens} tokens with {num_accepted} of {chunk.num_draft} drafts accepted"
            )
        if length is not None and chunk.is_decode and chunk.num_draft:
            length.learnt(chunk.num_draft, num_accepted)
        seq._output += min(num_tokens, seq.limit - seq._output)
        seq._computed = seq.num_tokens - 1  # as recorded: accepted drafts beyond the last token do not count
        seq.num_draft = drafts.get(seq, 0)
        if served is not None and num_accepted:
            served(seq, num_accepted)
        if seq.num_hashed < seq.hash_private_from:
            scheduler.kv.arrived(seq)  # blocks that accepted drafts have filled (6.5)
        if seq._output >= seq.limit:
            ended.append(seq)
    return ended
