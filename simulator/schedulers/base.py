"""What every batching policy shares: queues, decode group, admission, preemption, update.

Numbered rules are those of vLLM 0.33's V1 scheduler as docs/vllm_rules.md restates them. A policy is a
subclass with one method, `schedule(now)`, that fills a batch from the pieces here. Nothing in this package
knows a clock, randomness, I/O, torch or simpy, so the same object drives the simulator and a real engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many

from simulator.batch import Batch, StepResult
from simulator.decode_group import DecodeGroup
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import LatencyModel
from simulator.request import Sequence
from simulator.schedulers import decoding, listed, preempting, speculating
from simulator.schedulers.admission import Admission
from simulator.schedulers.admitting import Hold, admit_head, asked_on_arrival, next_exceeds
from simulator.schedulers.checks import check
from simulator.schedulers.collecting import collected
from simulator.schedulers.context import Context
from simulator.schedulers.fetching import cancel_fetch, finish_fetch
from simulator.schedulers.flight import Flight
from simulator.schedulers.orders import Order, fcfs, priority
from simulator.schedulers.parking import park, unpark
from simulator.schedulers.preempting import VAIN_PREEMPTIONS, Preemption, give_claims_back
from simulator.schedulers.preemption import Victim, last_admitted, least_important
from simulator.schedulers.prefills import take_prefills
from simulator.schedulers.queue import WaitingQueue
from simulator.schedulers.speculating import Speculation


class Scheduler:
    """Decide what each step computes; a subclass gives `schedule(now)`.

    `max_num_seqs` bounds the running sequences and `max_num_batched_tokens` the tokens of a step, as in
    vLLM. `victim` says who is preempted when blocks run out; None takes vLLM's rule for the order, and
    `preemption` what becomes of its blocks. `admission` are rules that may make the first in the queue wait
    or turn it away. `latency` prices what a policy asks the price of, `weights` are the tenants' shares (1
    where none is given). A policy with a collect rule starts when `min_batch` sequences wait or the oldest
    has waited `max_wait` seconds. With `speculation` a decode verifies draft tokens.
    """

    keeps_finished = False
    """Whether finished sequences stay in the batch as padding, with their blocks."""
    parks = False
    """Whether finished sequences keep their blocks until they are removed: others fetch them."""

    def __init__(
        self,
        kv: BlockManager,
        *,
        order: Order = fcfs,
        victim: Victim | None = None,
        preemption: Preemption = "recompute",
        latency: LatencyModel | None = None,
        weights: Mapping[str, float] | None = None,
        admission: Many[Admission] = (),
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        max_model_len: int = 16384,
        long_prefill_token_threshold: int = 0,
        scheduler_reserve_full_isl: bool = True,
        min_batch: int = 1,
        max_wait: float = 0.0,
        speculation: Speculation | None = None,
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs must be >= 1, got {max_num_seqs}")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be >= max_num_seqs ({max_num_seqs})"
            )
        if preemption != "recompute" and kv.tiers is None:
            raise ValueError(f"preemption {preemption!r} needs a memory tier below the GPU (kv.tiers)")
        if victim is None:
            victim = least_important if order is priority else last_admitted
        self.kv = kv
        self.victim = victim
        self.preemption = preemption
        self.latency = latency
        self.weights = dict(weights or {})
        self.admission = tuple(copy.deepcopy(rule) for rule in admission)  # some keep state
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.scheduler_reserve_full_isl = scheduler_reserve_full_isl
        self.min_batch = min_batch
        self.max_wait = max_wait
        self.speculation = copy.deepcopy(speculation)  # its choice of a length may keep state
        if speculation is not None:
            kv.look_ahead(speculation.lookahead, max_model_len)
        self.wake_at: float | None = None  # when a policy that returned an empty batch is to be asked again
        self.has_news = False  # something arrived or left since the last step was decided
        self.ctx = Context(self)
        kv.attach(self.ctx)
        self.waiting = WaitingQueue(order, self.ctx)
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.fetching: dict[Sequence, None] = {}  # admitted, but their blocks are still elsewhere
        self.parked: dict[Sequence, None] = {}  # finished, but their blocks are still to be fetched
        self.prefills: dict[
            Sequence, None
        ] = {}  # of those that run, the ones with a prompt or a recomputation to do
        self.decodes = DecodeGroup(kv.block_size)
        self.flight: Flight | None = None  # of several batches, if the engine has them
        self.padding: dict[Sequence, None] = {}  # finished sequences that a static batch still carries
        self.num_grouped_steps = 0  # steps that took all decodes as one group
        self.num_listed_steps = 0  # steps that had to walk the running sequences one by one
        self.held_by: Hold = ""  # why the last step left somebody waiting, for whoever tells a story
        self.num_oversized = 0  # prompts longer than the token budget, run whole in a step of their own
        self.on_claims_back: Callable[[Sequence], None] | None = None  # told who needs its claims no more
        self.shed: list[tuple[Sequence, str]] = []  # turned away, by which rule; the engine empties it
        self.num_vain = 0  # preemptions since the last token was sampled
        self.num_livelocks = 0  # times that `is_stuck` began to hold
        self._num_admissions = 0
        self.past_service: dict[str, int] = {}  # tokens computed for sequences that run no longer, by tenant

    # What an engine calls.

    def schedule(self, now: float) -> Batch:
        """Decide the next step; an empty batch means that nothing can run now."""
        raise NotImplementedError("a batching policy defines schedule(now)")

    def add(self, seq: Sequence, now: float = 0.0) -> None:
        """Enqueue a new sequence."""
        self.ctx.now = now
        seq.limit = max(1, min(seq.max_tokens, self.max_model_len - seq.num_prompt))
        seq.block_size = self.kv.block_size
        self.has_news = True
        if not self.admission or asked_on_arrival(self, seq):
            self.waiting.push(seq)

    def arrived(self, seq: Sequence, now: float) -> None:
        """Learn that the blocks of a sequence that was being fetched are all on the GPU."""
        self.ctx.now = now
        self.has_news = True
        finish_fetch(self, seq)

    def update(self, batch: Batch, result: StepResult, now: float) -> list[Sequence]:
        """Learn what a batch brought; free and return what it finished, in batch order (rule 8.1)."""
        if self.speculation is not None:
            batch.ending = speculating.learn(self, batch, result)
        if not (batch.ending or result.stopped or result.hashes):
            return []
        self.ctx.now = now
        for seq, ranges in (result.hashes or {}).items():
            seq.hash_ranges = ranges
            if seq.state == "running":  # a block may be full before its last token is known (rule 8.4)
                self.kv.publish(seq, 0)
        done = [seq for seq in (*batch.ending, *result.stopped) if seq.state != "finished"]
        finished = done
        if len(done) > 1:
            finished = sorted(dict.fromkeys(done), key=lambda seq: seq.order)
        for seq in finished:
            self.retire(seq)
        return finished

    def retire(self, seq: Sequence) -> None:
        """Let go of a sequence that has its last token, or keep it as padding if the policy says so."""
        self.has_news = True
        if self.parks and seq.state == "running":
            park(self, seq)
        elif self.keeps_finished and seq.state == "running":
            self._stop_running(seq)
            seq.state = "finished"
            self.padding[seq] = None
        else:
            self.remove(seq)

    def remove(self, seq: Sequence, now: float | None = None) -> None:
        """Forget a sequence that finished or was aborted, in any state, and free its blocks.

        `now` is when, if that is not during an `update`.
        """
        if now is not None:
            self.ctx.now = now
        self.has_news = True
        if seq.state == "waiting":
            self.waiting.remove(seq)
        elif seq.state == "running":
            self.release(seq, 0)
            seq.state = "finished"
        elif seq.state == "fetching":
            cancel_fetch(self, seq)
        elif seq.state == "parked":
            unpark(self, seq)
        if seq.claims:
            give_claims_back(self, seq)

    def check(self) -> None:
        """Raise AssertionError unless blocks, references and aggregates add up."""
        check(self)

    # Pieces of which a policy builds its step.

    open_batch = decoding.open_batch
    take_decodes = decoding.take_decodes

    def take_running(self, batch: Batch) -> None:
        """Schedule what runs in order of admission: decodes a token each, the others a chunk (section 3A)."""
        if self.speculation is not None or not self._decodes_are_first(batch):
            listed.take_listed(self, batch, list(self.running))
            return
        self.take_decodes(batch)
        if self.prefills:
            self.take_prefills(batch)

    def take_prefills(self, batch: Batch, *, whole: bool = False) -> bool:
        """Schedule a chunk of every prefill, the oldest first; False if one of them gets none.

        With `whole` none is cut; then there are prefills to continue only where a fetch has brought some.
        """
        return not self.prefills or take_prefills(self, batch, whole)

    def admit(self, batch: Batch, *, whole: bool = False) -> None:
        """Admit from the head of the queue until tokens, seats or blocks end it (section 3B).

        With `whole`, prompts are never cut: one that exceeds what is left of the budget ends the loop, one
        that exceeds the whole budget runs alone in its step.
        """
        if (self.num_vain and self.is_stuck) or (self.flight is not None and self.flight.limbo):
            self.held_by = "blocks"
            return
        while self.waiting.size:
            self.held_by = admit_head(self, batch, whole)
            if self.held_by:
                return

    def start(self, seq: Sequence, num_cached: int) -> None:
        """Move the head of the queue, which has its blocks, to the running sequences."""
        self.waiting.pop()
        self.join_running(seq, num_cached)

    def join_running(self, seq: Sequence, num_cached: int) -> None:
        """Let a sequence run that neither waits nor runs, and of which `num_cached` tokens are computed."""
        if seq.claims:
            give_claims_back(self, seq)
        self._num_admissions += 1
        seq.order = self._num_admissions
        seq.state = "running"
        seq._computed = seq.joined_with = num_cached
        self.running[seq] = None
        self.prefills[seq] = None

    def collected(self, now: float) -> bool:
        """Say whether the collect rule lets a batch start; if not, ask to be woken when it will.

        It is for new arrivals: what was preempted has waited already.
        """
        return collected(self, now)

    def head_needs_a_step(self) -> bool:
        """Say whether the next prompt has more to compute than the decodes leave of the budget."""
        rows = self.decodes.size if self.speculation is None else speculating.num_rows(self)
        return next_exceeds(self, self.max_num_batched_tokens - rows)

    def count_oversized(self, seq: Sequence) -> None:
        """Count a prompt that a step computes beyond its budget; once, though it may be computed again."""
        self.num_oversized += not seq.num_preemptions

    choose_victim = preempting.choose_victim
    preempt = preempting.give_up

    @property
    def spare_slots(self) -> int:
        """Token slots that a sequence may come to hold beyond its tokens: for drafts (rule 5.4)."""
        return 0 if self.speculation is None else self.speculation.spare_slots

    @property
    def is_stuck(self) -> bool:
        """Whether order and victim rule undo each other: so many preemptions without a token in between.

        Then nobody is admitted and the one admitted last is preempted, so that the first one gets on.
        """
        return self.num_vain >= VAIN_PREEMPTIONS and bool(self.running)

    commit = decoding.commit

    def steady_steps(self, batch: Batch, limit: float) -> int:
        """Say for how many steps, at most `limit`, `schedule` would repeat `batch`; 0 if unknown."""
        return 0

    def _stop_running(self, seq: Sequence) -> None:
        if seq.group is not None:
            seq.group.leave(seq)
        elif seq.speculates:
            seq.speculates, seq.num_draft = False, 0
        else:
            self.prefills.pop(seq, None)
        del self.running[seq]
        self.past_service[seq.tenant] = self.past_service.get(seq.tenant, 0) + seq._computed - seq.joined_with

    def release(self, seq: Sequence, num_scheduled: int) -> None:
        """Free the blocks of a running sequence, which then neither runs nor waits."""
        self._stop_running(seq)
        self.kv.release(seq, seq._computed + num_scheduled)

    _decodes_are_first = listed.decodes_are_first
