"""Chunked prefill: decodes and prompt chunks share every step (vLLM V1; Sarathi-Serve, OSDI 2024).

Makes exactly the decisions of vLLM 0.33's V1 scheduler; `tests/conformance.py` replays its recordings.
"""

from __future__ import annotations

from simulator.batch import Batch
from simulator.schedulers.base import Scheduler
from simulator.schedulers.repeating import unchanged_steps


class Chunked(Scheduler):
    """Serve what runs, then admit; prompts are cut to the budget left (vLLM; Sarathi-Serve, OSDI 2024)."""

    def schedule(self, now: float) -> Batch:
        batch = self.open_batch(now)
        self.take_running(batch)
        if not batch.preempted:  # a step that had to preempt admits nobody (rule 3.12)
            self.admit(batch)
        return self.commit(batch)

    def steady_steps(self, batch: Batch, limit: float) -> int:
        return unchanged_steps(self, batch, limit)
