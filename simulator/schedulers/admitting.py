"""Admitting the first in the queue, or saying what keeps it there (section 3B of vLLM's rules)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simulator.batch import Batch
from simulator.errors import ConfigError
from simulator.request import Sequence
from simulator.schedulers.admission import ADMIT, SHED, WAIT, Verdict

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
    if len(scheduler.running) >= scheduler.max_num_seqs:
        return "seats"
    if batch.budget <= 0:
        return "budget"
    kv, seq = scheduler.kv, scheduler.waiting.head()
    assert seq is not None, "the queue counts what waits"
    if scheduler.admission and (verdict := asked_as_head(scheduler, seq)) != ADMIT:
        return "rule" if verdict == WAIT else ""
    hit = kv.lookup(seq)
    start = hit.num_blocks * kv.block_size
    n = seq.num_tokens - start if whole else batch.chunk_size(seq, start)
    if n > batch.budget and batch:
        return "budget"
    must_fit = min(seq.num_tokens, scheduler.max_model_len) if scheduler.scheduler_reserve_full_isl else 0
    if not kv.admit(seq, hit, n, must_fit=must_fit, watermark=bool(scheduler.running)):
        return "blocks"
    if n > batch.budget:
        scheduler.count_oversized(seq)
    scheduler.start(seq, start)
    batch.add_chunk(seq, n, start, cached=start)
    return ""
