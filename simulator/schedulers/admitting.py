"""Admitting the first in the queue, or saying what keeps it there (section 3B of vLLM's rules)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simulator.batch import Batch
from simulator.errors import ConfigError
from simulator.kv.block_manager import Hit
from simulator.request import Sequence
from simulator.schedulers.admission import ADMIT, SHED, WAIT, Verdict
from simulator.schedulers.fetching import begin_fetch, find_fetch
from simulator.schedulers.speculating import num_placeholders

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler

Hold = Literal["", "seats", "budget", "blocks", "rule", "collecting", "batch"]
"""What keeps the head of the queue waiting: seats, tokens or blocks are short, a rule forbids it, or the
policy bides its time."""


def asked_on_arrival(scheduler: Scheduler, seq: Sequence) -> bool:
    """Let the admission rules turn an arrival away; say whether it may enter the queue."""
    scheduler.ctx.arriving = True
    verdict = _ask(scheduler, seq)
    scheduler.ctx.arriving = False
    if verdict == SHED:
        seq.state = "finished"
    return verdict != SHED


def asked_as_head(scheduler: Scheduler, seq: Sequence) -> Verdict:
    """Ask the admission rules about the first in the queue; what they turn away has left it."""
    if seq.num_preemptions:
        return ADMIT
    verdict = _ask(scheduler, seq)
    if verdict == SHED:
        scheduler.remove(seq)
    return verdict


def _ask(scheduler: Scheduler, seq: Sequence) -> Verdict:
    """Return the first verdict that is not ADMIT, and note who turned a sequence away."""
    for rule in scheduler.admission:
        name = getattr(rule, "__name__", type(rule).__name__)
        verdict = rule(seq, scheduler.ctx)
        if verdict not in (ADMIT, WAIT, SHED):
            raise ConfigError(
                f"scheduler.admission: {name} returned {verdict!r:.80}, not ADMIT, WAIT or SHED"
            )
        if verdict == SHED:
            scheduler.shed.append((seq, name))
        if verdict != ADMIT and not (verdict == WAIT and scheduler.ctx.arriving):
            return verdict
    return ADMIT


def admit_head(scheduler: Scheduler, batch: Batch, whole: bool) -> Hold:
    """Admit the first in the queue, or say what keeps it there; with `whole` its prompt is not cut."""
    if len(scheduler.running) + len(scheduler.fetching) >= scheduler.max_num_seqs:
        return "seats"
    if batch.budget <= 0:
        return "budget"
    kv, seq = scheduler.kv, scheduler.waiting.head()
    assert seq is not None, "the queue counts what waits"
    if scheduler.admission and (verdict := asked_as_head(scheduler, seq)) != ADMIT:
        return "rule" if verdict == WAIT else ""
    hit = kv.lookup(seq)
    if kv.tiers is not None:
        held_by = _admit_fetched(scheduler, batch, seq, hit)
        if held_by is not None:
            return held_by
    start = hit.num_blocks * kv.block_size
    n = seq.num_tokens - start if whole else batch.chunk_size(seq, start)
    if n == 1 and scheduler.speculation is not None:
        n += num_placeholders(scheduler, batch, seq, start)
    if n > batch.budget and batch:
        return "budget"
    must_fit = min(seq.num_tokens, scheduler.max_model_len) if scheduler.scheduler_reserve_full_isl else 0
    if not kv.admit(seq, hit, n, must_fit=must_fit, watermark=_others_run(scheduler)):
        return "blocks"
    if n > batch.budget:
        scheduler.count_oversized(seq)
    scheduler.start(seq, start)
    batch.add_chunk(seq, n, start, cached=start)
    return ""


def _admit_fetched(scheduler: Scheduler, batch: Batch, seq: Sequence, hit: Hit) -> Hold | None:
    """Admit a sequence of which a tier has blocks, if all its known tokens fit; None: nothing to fetch."""
    watermark = _others_run(scheduler)
    fits = scheduler.kv.has_room(hit, 0, must_fit=seq.num_tokens, watermark=watermark)
    if not fits and scheduler.scheduler_reserve_full_isl:
        return "blocks"  # with or without a fetch
    fetch = find_fetch(scheduler, seq, hit)
    if fetch is None:
        return None
    if not fits:
        return "blocks"
    begin_fetch(scheduler, batch, seq, hit, fetch)
    return ""


def _others_run(scheduler: Scheduler) -> bool:
    """Say whether blocks will become free without an admission, so that one may wait."""
    return bool(scheduler.running or scheduler.fetching or scheduler.parked)


def next_exceeds(scheduler: Scheduler, num_tokens: int) -> bool:
    """Say whether the next prompt, one that runs or else the first in the queue, has more to compute.

    One that is to be fetched first has nothing to compute yet.
    """
    for seq in scheduler.prefills:
        return seq.num_tokens - seq._computed > num_tokens
    head = scheduler.waiting.head()
    if head is None or head.num_tokens <= num_tokens:
        return False
    hit = scheduler.kv.lookup(head)
    rest = head.num_tokens - hit.num_blocks * scheduler.kv.block_size
    return rest > num_tokens and find_fetch(scheduler, head, hit) is None
