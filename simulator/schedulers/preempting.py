"""What becomes of a preempted sequence: its tokens are computed again, or its KV waits in a tier.

`recompute` is section 4 of vLLM's rules. `swap` copies the victim's blocks into the first tier with room for
them, from where they come back at readmission (Kwon et al., SOSP 2023, section 4.5); without room its tokens
are computed again. `auto` takes what a price predicts to be quicker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simulator.batch import Batch, Move
from simulator.kv.tiers import Room, prefix_hashes
from simulator.latency.base import StepFeatures
from simulator.request import Sequence
from simulator.schedulers.keys import largest
from simulator.schedulers.preemption import VICTIMS, last_admitted

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler

Preemption = Literal["recompute", "swap", "auto"]
"""Whether a victim's tokens are computed again or its blocks copied out and back."""

PREEMPTIONS: dict[Preemption, str] = {
    "recompute": "A victim's blocks are freed and its tokens computed again (vLLM; rules 4.1 to 4.4).",
    "swap": "A victim's blocks wait in a tier, if one has the room (Kwon et al., SOSP 2023, section 4.5).",
    "auto": "Swap where a price predicts that it is quicker, else recompute.",
}

VAIN_PREEMPTIONS = 64
"""Preemptions in a row without a token sampled after which order and victim rule are taken to be at odds."""


def give_up(scheduler: Scheduler, seq: Sequence, batch: Batch, num_scheduled: int = 0) -> None:
    """Take a running sequence's blocks away and put it back into the queue.

    `num_scheduled` tokens of it were allocated in this step.
    """
    if scheduler.flight is not None:
        scheduler.flight.hold(seq)
    scheduler.release(seq, num_scheduled)
    if scheduler.preemption != "recompute" and seq._computed:
        _swap_out(scheduler, seq, batch)
    seq.lost = max(seq.lost, seq._computed)
    seq.cached = None
    seq._computed = 0
    seq.num_preemptions += 1
    scheduler.num_vain += 1
    scheduler.num_livelocks += scheduler.num_vain == VAIN_PREEMPTIONS
    scheduler.waiting.push_preempted(seq)
    batch.preempted = [*batch.preempted, seq]


def choose_victim(scheduler: Scheduler) -> Sequence:
    """Return the running sequence that the victim rule gives up first."""
    rule, running = scheduler.victim, scheduler.running
    if rule is last_admitted or scheduler.is_stuck:
        return next(reversed(running))
    if any(rule is each for each in VICTIMS.values()):  # their keys are numbers and have an order
        return max(running, key=lambda seq: rule(seq, scheduler.ctx))
    return largest("scheduler.victim", rule, running, scheduler.ctx)


def give_claims_back(scheduler: Scheduler, seq: Sequence) -> None:
    """Free what a sequence has in the tiers: it is back on the GPU, or gone."""
    assert scheduler.kv.tiers is not None, "claims are on tiers"
    scheduler.kv.tiers.give_back(seq.claims)
    seq.claims = ()
    seq.swapped = 0
    if scheduler.on_claims_back is not None:
        scheduler.on_claims_back(seq)


def _swap_out(scheduler: Scheduler, seq: Sequence, batch: Batch) -> None:
    """Copy a victim's blocks into a tier, if one has room and, under `auto`, if that is quicker."""
    kv = scheduler.kv
    assert kv.tiers is not None, "a scheduler that swaps has tiers"
    num_blocks = kv.blocks_for(seq._computed)
    hashes = list(prefix_hashes(seq.hash_ranges, 0, seq._computed // kv.block_size))
    room = kv.tiers.find_room(hashes, num_blocks)
    if room is None or (scheduler.preemption == "auto" and not _is_quicker(scheduler, seq, room, num_blocks)):
        return
    seq.claims = [kv.tiers.swap_out(room.tier, hashes, num_blocks)]
    seq.swapped = seq._computed
    if room.num_copied:
        batch.moves = [*batch.moves, Move(seq, room.tier, room.num_copied, "out")]


def _is_quicker(scheduler: Scheduler, seq: Sequence, room: Room, num_blocks: int) -> bool:
    """Say whether copying out and back takes less than the steps that compute the tokens again.

    Both as if nothing else ran: idle links, chunks of the whole token budget, no hits in the prefix cache.
    """
    assert scheduler.kv.tiers is not None, "a scheduler that swaps has tiers"
    tier, size = scheduler.kv.tiers[room.tier], scheduler.max_num_batched_tokens
    copying = tier.transfer_time(num_blocks)
    if room.num_copied:
        copying += tier.transfer_time(room.num_copied)
    computing = 0.0
    for start in range(0, seq._computed, size):
        chunk = min(size, seq._computed - start), start
        computing += scheduler.ctx.step_time(StepFeatures.prefill([chunk], sampled=False))
    return copying < computing
