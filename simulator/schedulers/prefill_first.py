"""Prefill first: a step computes waiting prompts if any can be admitted, else all decodes (vLLM V0).

New requests get their first token soon, and everybody who decodes stands still meanwhile
(Kwon et al., SOSP 2023; the stall is what chunked prefill removes). Prompts are never cut.
"""

from __future__ import annotations

from simulator.batch import Batch
from simulator.schedulers.base import Scheduler
from simulator.schedulers.repeating import unchanged_steps


class PrefillFirst(Scheduler):
    """Prompts whenever some can start, decodes only in the steps between (vLLM V0, SOSP 2023)."""

    def schedule(self, now: float) -> Batch:
        batch = self.open_batch(now)
        if self.take_prefills(batch, whole=True):
            self.admit(batch, whole=True)
        if not batch:
            self.take_decodes(batch)
        return self.commit(batch)

    def steady_steps(self, batch: Batch, limit: float) -> int:
        return unchanged_steps(self, batch, limit)
