"""Continuous batching: admit and retire at every step, prompts whole (Orca, OSDI 2022, section 3.1).

A step computes every decode and the prompts that fit into what is left of the token budget, uncut, so a
long prompt makes a long step for everybody; one that does not fit beside the decodes gets a step of its own.
The collect rule may hold admissions back while others run; an idle GPU never waits. Left out: Orca's
reservation of max_tokens; memory is paged and sequences are preempted.
"""

from __future__ import annotations

from simulator.batch import Batch
from simulator.schedulers.base import Scheduler
from simulator.schedulers.repeating import unchanged_steps


class Continuous(Scheduler):
    """Every decode, and beside them whole prompts as they come (Orca, OSDI 2022, section 3.1)."""

    def schedule(self, now: float) -> Batch:
        batch = self.open_batch(now)
        ready = not self.running or self.collected(now)
        if (ready or self.prefills) and self.head_needs_a_step():
            if self.take_prefills(batch, whole=True) and ready:
                self.admit(batch, whole=True)  # or it would wait until few decode
            ready = False  # if there are no blocks for it, there are none for those behind it
        if not batch:
            self.take_decodes(batch)
            ready = self.take_prefills(batch, whole=True) and ready
            if ready and not batch.preempted:
                self.admit(batch, whole=True)
        return self.commit(batch)

    def steady_steps(self, batch: Batch, limit: float) -> int:
        # the less of its prompt is cached, the sooner the head of the queue needs a step of its own
        if self.held_by == "budget" and self.head_needs_a_step():
            return 0
        return unchanged_steps(self, batch, limit, may_evict=not self.waiting.size)
